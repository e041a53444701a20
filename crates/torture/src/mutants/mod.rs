//! Who tests the tests: product faults that are planted one at a time, each of which the quickest harness that
//! should find it must find. The harnesses are the ones that try the product (`black_box`), and first they must
//! hold without any fault. Found is what a check of theirs says in words; a harness that merely stops found
//! nothing.

#![expect(
    clippy::unwrap_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

mod checks;
mod failing_disk;
mod restored;

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Args;

use self::checks::{CHANGES, COMMANDS, Check, FAILED_SYNC, KILLS, POINT, POWER_CUTS, TAIL, WELL};
use self::failing_disk::FAILING_DISK;
use self::restored::BACKUP;
use crate::black_box::ending::{Ending, attempt};
use crate::commands::SENT_BLINDLY;
use crate::{Budget, Verdict};

/// A planted fault, and where it is found.
#[derive(Clone, Copy)]
struct Mutant {
    name: &'static str,
    found_by: Check,
}

const fn mutant(name: &'static str, found_by: Check) -> Mutant {
    Mutant { name, found_by }
}

/// All of them, with the names that the product plants them by.
const MUTANTS: [Mutant; 19] = [
    mutant("answer-before-sync", POWER_CUTS),
    mutant("failure-answered-as-success", FAILED_SYNC),
    mutant("append-after-a-failed-sync", FAILING_DISK),
    mutant("retry-a-failed-sync", FAILING_DISK),
    mutant("unproven-served", TAIL),
    mutant("mark-ahead-of-the-truth", POINT),
    mutant("ids-forgotten-at-restart", KILLS),
    mutant("settle-before-the-answer", KILLS),
    mutant("delete-before-acknowledgement", KILLS),
    mutant("key-order-ignored", WELL),
    mutant("letter-without-its-bit", KILLS),
    mutant("bit-without-its-letter", KILLS),
    mutant("sent-again-too-early", WELL),
    mutant("body-written-anew", WELL),
    mutant("payload-logged", WELL),
    mutant("reshard-forgets-order", CHANGES),
    mutant("backup-without-its-end", BACKUP),
    mutant("compaction-forgets", WELL),
    mutant(SENT_BLINDLY, COMMANDS),
];

/// A name that the product plants nothing by: with it every harness must hold, exactly as it runs with a fault.
const NOTHING: Mutant = mutant("nothing-at-all", WELL);

/// Seeds that a mutant may survive before it counts as not found.
const TRIES: u64 = 4;

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Only the mutant of this name.
    #[arg(long)]
    only: Option<String>,
}

/// Runs it. Under `--control` it hunts for a fault that changes nothing: that nobody finds it must be said.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    let wanted: Vec<Mutant> = match budget.control {
        true => vec![NOTHING],
        false => wanted(arguments.only.as_deref(), budget.count),
    };
    if wanted.is_empty() {
        return Verdict::Invalid("no such mutant".to_owned());
    }
    let deadline = budget.deadline();
    let in_time = || deadline.is_none_or(|at| Instant::now() < at);
    let checks = wanted.iter().map(|it| (it.found_by.name, it.found_by));
    for check in BTreeMap::from_iter(checks).values() {
        if let Err(ending) = attempt(|| (check.run)(budget.seed, NOTHING.name)) {
            return unsound(check.name, ending);
        }
        println!("no fault: {} holds", check.name);
    }
    let (mut found, mut survived) = (0, Vec::new());
    for mutant in wanted.iter().take_while(|_| in_time()) {
        let name = mutant.name;
        let seeds = budget.seed..budget.seed + TRIES;
        match hunt(seeds, |seed| (mutant.found_by.run)(seed, name)) {
            Hunt::Found { seed, what } => {
                found += 1;
                let first = what.lines().find(|line| line.contains(": "));
                println!(
                    "{name}: found by {}, seed {seed}: {}",
                    mutant.found_by.name,
                    first.unwrap_or(&what)
                );
            }
            Hunt::Survived => survived.push(name),
            Hunt::Invalid(why) => return Verdict::Invalid(format!("{name}: {why}")),
        }
    }
    println!("mutants: {found} found, {} survived", survived.len());
    match survived.is_empty() {
        false => Verdict::Broken(format!("nobody finds {survived:?}")),
        true if found == 0 => Verdict::Invalid("no hunt fits into the time".to_owned()),
        true => Verdict::Held,
    }
}

/// The first of them, or the one of this name.
fn wanted(only: Option<&str>, count: Option<u64>) -> Vec<Mutant> {
    let most = usize::try_from(count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let is_wanted = |mutant: &&Mutant| only.is_none_or(|only| only == mutant.name);
    let wanted = MUTANTS.iter().filter(is_wanted).take(most);
    wanted.copied().collect()
}

/// What it means that a harness does not hold without a fault.
fn unsound(check: &str, ending: Ending) -> Verdict {
    match ending {
        Ending::Broken(what) => Verdict::Broken(format!("{check} without a planted fault: {what}")),
        Ending::Invalid(why) => Verdict::Invalid(format!("{check}: {why}")),
        Ending::Stopped(words) => Verdict::Invalid(format!("{check} stopped: {words}")),
    }
}

/// How looking for a planted fault ended.
#[derive(Debug, PartialEq, Eq)]
enum Hunt {
    /// A check said so.
    Found { seed: u64, what: String },
    /// Every seed went through without a word.
    Survived,
    /// With no seed a check said so, and not all of them went through.
    Invalid(String),
}

/// Tries one seed after the other until a check says what is broken.
fn hunt(seeds: impl IntoIterator<Item = u64>, run: impl Fn(u64)) -> Hunt {
    let mut invalid = None;
    for seed in seeds {
        match attempt(|| run(seed)) {
            Ok(()) => {}
            Err(Ending::Broken(what)) => return Hunt::Found { seed, what },
            // It may be the fault itself that lets too little happen; another seed may say more.
            Err(Ending::Invalid(why)) => invalid = Some(why),
            Err(Ending::Stopped(words)) => {
                invalid = Some(format!("the harness stopped: {words}"));
            }
        }
    }
    invalid.map_or(Hunt::Survived, Hunt::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::black_box::ending::{broken, invalid};

    #[test]
    fn every_fault_that_the_product_can_be_planted_with_is_hunted() {
        let mut hunted = MUTANTS.map(|mutant| mutant.name);
        hunted.sort_unstable();
        assert_eq!(hunted.as_slice(), crate::sources::faults());
    }

    #[test]
    fn only_what_a_check_says_counts_as_found() {
        let found = |seed| Hunt::Found {
            seed,
            what: "lost".to_owned(),
        };
        assert_eq!(hunt([7, 8], |_| broken("lost")), found(7));
        assert_eq!(hunt([7, 8], |_| {}), Hunt::Survived);
        // A seed that says nothing is no reason not to try the next one.
        let second = |seed: u64| match seed {
            7 => panic!("a port is taken"),
            8 => invalid("too little"),
            _ => broken("lost"),
        };
        assert_eq!(hunt([7, 8, 9], second), found(9));
        assert_eq!(hunt([7, 8], second), Hunt::Invalid("too little".to_owned()));
        let stopped = "the harness stopped: a port is taken".to_owned();
        assert_eq!(hunt([7], second), Hunt::Invalid(stopped));
    }
}
