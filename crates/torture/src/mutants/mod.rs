//! Who tests the tests: product faults that are planted one at a time, each of which the quickest harness that
//! should find it must find. The harnesses are the ones that try the product (`black_box`), with one fault more
//! or without any: then they must hold.

#![expect(
    clippy::unwrap_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

mod checks;
mod failing_disk;

use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::Args;

use self::checks::{Check, FAILED_SYNC, KILLS, POINT, POWER_CUTS, TAIL, WELL};
use self::failing_disk::FAILING_DISK;
use crate::black_box::episode::{is_invalid, words};
use crate::{Budget, Verdict};

/// A planted fault, and where it is found.
struct Mutant {
    name: &'static str,
    found_by: Check,
}

const fn mutant(name: &'static str, found_by: Check) -> Mutant {
    Mutant { name, found_by }
}

/// All of them, with the names that the product plants them by.
const MUTANTS: [Mutant; 15] = [
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
];

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

/// Runs it. Under `--control` each mutant counts as broken, as it is.
pub fn run(arguments: &Arguments) -> Verdict {
    let budget = &arguments.budget;
    let wanted = |mutant: &&Mutant| {
        let only = arguments.only.as_deref();
        only.is_none_or(|only| only == mutant.name)
    };
    let most = usize::try_from(budget.count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let mut survived = Vec::new();
    let mut found = 0;
    for mutant in MUTANTS.iter().filter(wanted).take(most) {
        match hunt(mutant, budget.seed) {
            Hunt::Found(seed, by) => {
                found += 1;
                let first = by.lines().find(|line| line.contains(": ")).unwrap_or(&by);
                println!(
                    "{}: found by {}, seed {seed}: {first}",
                    mutant.name, mutant.found_by.name
                );
            }
            Hunt::Survived => survived.push(mutant.name),
            Hunt::Invalid(why) => return Verdict::Invalid(format!("{}: {why}", mutant.name)),
        }
    }
    println!("mutants: {found} found, {} survived", survived.len());
    if found == 0 && survived.is_empty() {
        return Verdict::Invalid("no such mutant".to_owned());
    }
    if !survived.is_empty() {
        return Verdict::Broken(format!("nobody finds {survived:?}"));
    }
    match budget.control {
        true => Verdict::Broken(format!("as planted: {found} faults were found")),
        false => sound(budget.seed),
    }
}

/// How looking for a planted fault ended.
enum Hunt {
    Found(u64, String),
    Survived,
    Invalid(String),
}

fn hunt(mutant: &Mutant, first_seed: u64) -> Hunt {
    let mut invalid = None;
    for seed in first_seed..first_seed + TRIES {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            (mutant.found_by.run)(seed, Some(mutant.name));
        }));
        match ran {
            Ok(()) => {}
            Err(thrown) => match is_invalid(thrown.as_ref()) {
                // It may be the fault itself that lets too little happen; another seed may say more.
                Some(why) => invalid = Some(why.to_owned()),
                None => return Hunt::Found(seed, words(thrown.as_ref()).to_owned()),
            },
        }
    }
    invalid.map_or(Hunt::Survived, Hunt::Invalid)
}

/// Without a planted fault every one of these harnesses holds.
fn sound(seed: u64) -> Verdict {
    for check in [
        WELL,
        KILLS,
        POINT,
        POWER_CUTS,
        FAILED_SYNC,
        FAILING_DISK,
        TAIL,
    ] {
        let ran = catch_unwind(AssertUnwindSafe(|| (check.run)(seed, None)));
        if let Err(thrown) = ran {
            let said = words(thrown.as_ref());
            return match is_invalid(thrown.as_ref()) {
                Some(why) => Verdict::Invalid(format!("{}: {why}", check.name)),
                None => Verdict::Broken(format!("{} without a planted fault: {said}", check.name)),
            };
        }
        println!("no fault: {} holds", check.name);
    }
    Verdict::Held
}
