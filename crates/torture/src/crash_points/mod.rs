//! The power fails at each call that changes the disk, under every fate of what was not synced.
//!
//! A script is played on the real store, SQLite and all, over a disk that records every call. For each
//! call the disk is worked out as it may be found when the power failed just before: everything that was not
//! synced lost, all of it kept, some of it, the last write torn. A store is opened on that and judged by the
//! history up to that call. Of some, the opening is recorded too, and the power fails in the middle of it.

mod episode;
mod point;
mod sometimes;

use std::time::Instant;

use clap::Args;

use self::episode::Episode;
use self::point::{Broken, Points};
use self::sometimes::Sometimes;
use crate::disk::Fate;
use crate::{Budget, Verdict};

/// Points tried where nobody says how many: about a minute.
const COUNT: u64 = 3_000;

/// A run is spread over at least so many scripts, as far as they have the points.
const SCRIPTS: u64 = 10;

/// Fewer acknowledged events in a script than this show nothing.
const ACKNOWLEDGED_MIN: usize = 5;

/// Below so many points a run says nothing of what it never met.
const COUNTERS_FROM: u64 = 10_000;

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Only the power failure before this call of the script of `--seed`.
    #[arg(long, value_name = "K")]
    point: Option<usize>,

    /// Only this fate: `lost`, `kept`, `some:N` or `torn:N`.
    #[arg(long, value_name = "F", requires = "point")]
    fate: Option<Fate>,
}

impl Arguments {
    /// So many points from a seed on, as tests ask for them.
    pub fn new(count: u64, seed: u64, control: bool) -> Self {
        Self {
            budget: Budget {
                count: Some(count),
                minutes: None,
                seed,
                control,
            },
            point: None,
            fate: None,
        }
    }
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    let count = budget.count.unwrap_or(match budget.minutes {
        Some(_) => u64::MAX,
        None => COUNT,
    });
    let deadline = budget.deadline();
    let begun = Instant::now();
    let mut sometimes = Sometimes::default();
    let (mut points, mut seed) = (0, budget.seed);
    while points < count && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let episode = match Episode::record(seed, budget.control) {
            Ok(episode) => episode,
            Err(what) => return Verdict::Broken(format!("{what}\n{}", replay(seed))),
        };
        if episode.acknowledged() < ACKNOWLEDGED_MIN {
            return Verdict::Invalid(format!("the script of seed {seed} accepted too little"));
        }
        let most = count.div_ceil(SCRIPTS).min(count - points);
        let tried = Points {
            episode: &episode,
            most,
            only: arguments.point.map(|point| (point, arguments.fate)),
        };
        match tried.run() {
            Ok(met) => {
                points += met.points;
                println!(
                    "seed {seed}: {} calls, {} events, {} points ({} in recoveries); {points} in {:.1} s",
                    episode.calls(),
                    episode.acknowledged(),
                    met.points,
                    met.in_recovery,
                    begun.elapsed().as_secs_f64(),
                );
                sometimes.add(&met);
            }
            Err(broken) => return Verdict::Broken(told(&episode, &broken)),
        }
        if arguments.point.is_some() {
            return Verdict::Held;
        }
        seed += 1;
    }
    println!(
        "{points} points, 0 failures, seeds {}..={}, {:.1} s\n{sometimes}",
        budget.seed,
        seed.saturating_sub(1),
        begun.elapsed().as_secs_f64(),
    );
    match sometimes.never() {
        Some(never) if points >= COUNTERS_FROM => {
            Verdict::Invalid(format!("it never happened: {never}"))
        }
        _ => Verdict::Held,
    }
}

fn replay(seed: u64) -> String {
    format!("replay: scripts/torture crash-points --seed {seed}")
}

fn told(episode: &Episode, broken: &Broken) -> String {
    format!(
        "{}\nwhen the power failed {}, {}\nthe disk is kept in {}\n{:?}\n{} --point {} --fate {}",
        broken.what,
        episode.before_call(broken.point),
        broken.fate,
        broken.kept.display(),
        episode.script.steps,
        replay(episode.script.seed),
        broken.point,
        broken.fate,
    )
}
