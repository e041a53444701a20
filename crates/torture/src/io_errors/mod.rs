//! The n-th call to the disk fails, for every n until a run meets no fault: EIO, ENOSPC or a short write,
//! once or from then on, in SQLite's files and all others.
//!
//! While calls fail the store is used as before. Then they work again, and it has to accept by itself or say
//! why not. It is stopped, and judged three times by what it acknowledged: started again as it is, after a
//! power failure at the end, and after one soon after the first fault.
//!
//! Then, as root, the shipped binary on disks that fail and fill up for real (`real`).

mod case;
pub mod real;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use self::case::{Case, MODES, Met};
use crate::disk::Operation;
use crate::{Budget, Verdict};

/// Faults tried where nobody says how many.
const COUNT: u64 = 500;

/// Of so many calls that fail, one real disk fails and one is full.
const REAL_OF: u64 = 50;

/// Cases at a time for each processor: most of a case is waiting.
const AT_A_TIME: usize = 4;

/// Below so many faults a run says nothing of the kinds of calls that it never met.
const COUNTERS_FROM: u64 = 1_000;

/// Kinds of calls of which some must have failed.
const OPERATIONS: [Operation; 9] = [
    Operation::Open,
    Operation::Read,
    Operation::Write,
    Operation::Truncate,
    Operation::Sync,
    Operation::SyncDirectory,
    Operation::MakeDirectory,
    Operation::Rename,
    Operation::List,
];

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Only faults of this disk; otherwise of all of them, of the recorded one first.
    #[arg(long)]
    disk: Option<Disk>,

    /// Only the case in which this call of the script of `--seed` fails.
    #[arg(long, value_name = "N")]
    call: Option<u64>,

    /// The way in which that call fails, 0 to 7.
    #[arg(long, value_name = "R", default_value_t = 0)]
    round: u64,
}

/// Whose calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Disk {
    /// A disk in this process that writes down every call; the n-th one fails.
    Recorded,
    /// A real one that accepts writes and fails their syncs.
    Failing,
    /// A real one without a free byte.
    Full,
}

impl Arguments {
    /// So many faults of the recorded disk from a seed on, as tests ask for them.
    pub fn new(count: u64, seed: u64, control: bool) -> Self {
        Self {
            budget: Budget {
                count: Some(count),
                minutes: None,
                seed,
                control,
            },
            disk: Some(Disk::Recorded),
            call: None,
            round: 0,
        }
    }
}

/// Panics of any thread, the store's among them, since the process began.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    match arguments.disk {
        Some(Disk::Recorded) => on_recorded_disk(arguments, arguments.budget.deadline()),
        Some(Disk::Failing) => real::failing::run(&arguments.budget),
        Some(Disk::Full) => real::full::run(&arguments.budget),
        None if arguments.call.is_some() => on_recorded_disk(arguments, None),
        None => all(arguments),
    }
}

/// The calls in turn, then one real disk of either kind for so many of them. Of a time, half is for the calls and
/// a quarter, at least a minute, for each kind of real disks.
fn all(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    let half = budget.minutes.map(|minutes| {
        Duration::from_secs(30).saturating_mul(u32::try_from(minutes).unwrap_or(u32::MAX))
    });
    let verdict = on_recorded_disk(
        arguments,
        half.and_then(|half| Instant::now().checked_add(half)),
    );
    let is_as_asked = match budget.control {
        true => matches!(verdict, Verdict::Broken(_)),
        false => verdict == Verdict::Held,
    };
    if !is_as_asked || !real::is_possible() {
        return verdict;
    }
    let some = Budget {
        count: Some(count_of(budget).div_ceil(REAL_OF)),
        minutes: budget.minutes.map(|minutes| minutes.div_ceil(4)),
        ..budget.clone()
    };
    match real::failing::run(&some) {
        Verdict::Held => real::full::run(&some),
        ended => ended,
    }
}

/// How many calls fail.
fn count_of(budget: &Budget) -> u64 {
    budget.count.unwrap_or(match budget.minutes {
        Some(_) => u64::MAX,
        None => COUNT,
    })
}

fn on_recorded_disk(arguments: &Arguments, deadline: Option<Instant>) -> Verdict {
    count_panics();
    let budget = &arguments.budget;
    let count = count_of(budget);
    let begun = Instant::now();
    let mut faults: BTreeMap<Operation, u64> = BTreeMap::new();
    let (mut total, mut seed, mut round) = (0, budget.seed, arguments.round);
    while total < count && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let script = Rounds {
            seed,
            round,
            planted: budget.control,
            most: count - total,
            only: arguments.call,
        };
        match script.run() {
            Ok(met) => {
                for operation in &met {
                    *faults.entry(*operation).or_default() += 1;
                }
                total += met.len() as u64;
                println!(
                    "seed {seed}, round {round}: {} calls failed; {total} in {:.1} s",
                    met.len(),
                    begun.elapsed().as_secs_f64()
                );
            }
            Err(broken) => return Verdict::Broken(broken),
        }
        if arguments.call.is_some() {
            return Verdict::Held;
        }
        // A script is done when every call of it failed in every way.
        round += 1;
        if round == MODES {
            (seed, round) = (seed + 1, 0);
        }
    }
    println!(
        "{total} faults, 0 failures, seeds {}..={seed}, {:.1} s\n{faults:?}",
        budget.seed,
        begun.elapsed().as_secs_f64(),
    );
    let never = OPERATIONS.iter().find(|one| !faults.contains_key(one));
    match never {
        Some(never) if total >= COUNTERS_FROM => {
            Verdict::Invalid(format!("no call of this kind ever failed: {never:?}"))
        }
        _ => Verdict::Held,
    }
}

/// The calls of one script, each of which fails once in a way that goes round with its number.
struct Rounds {
    seed: u64,
    round: u64,
    planted: bool,
    most: u64,
    only: Option<u64>,
}

impl Rounds {
    fn run(&self) -> Result<Vec<Operation>, String> {
        let next = AtomicU64::new(self.only.unwrap_or(0));
        let met = Mutex::new(Vec::new());
        // Number of the first case that met no fault: the script has no more calls.
        let end = AtomicU64::new(self.only.map_or(self.most, |only| only + 1));
        let broken = Mutex::new(None);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..processors * AT_A_TIME {
                scope.spawn(|| {
                    loop {
                        let call = next.fetch_add(1, Ordering::SeqCst);
                        if call >= end.load(Ordering::SeqCst) {
                            return;
                        }
                        let case = Case::new(self.seed, call, self.round, self.planted);
                        let result = case.run().and_then(|met| match no_panic() {
                            true => Ok(met),
                            false => Err("a thread panicked".to_owned()),
                        });
                        match result {
                            Ok(Met::Fault(operation)) => {
                                if let Ok(mut met) = met.lock() {
                                    met.push(operation);
                                }
                            }
                            Ok(Met::Nothing) => {
                                end.fetch_min(call, Ordering::SeqCst);
                            }
                            Err(what) => {
                                end.store(0, Ordering::SeqCst);
                                if let Ok(mut broken) = broken.lock() {
                                    broken.get_or_insert(format!("{what}\n{case}"));
                                }
                            }
                        }
                    }
                });
            }
        });
        match broken.into_inner() {
            Ok(Some(broken)) => Err(broken),
            _ => Ok(met.into_inner().unwrap_or_default()),
        }
    }
}

/// Counts panics from now on, wherever they happen: the store's threads have nobody to tell.
fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
}

fn no_panic() -> bool {
    PANICS.load(Ordering::SeqCst) == 0
}
