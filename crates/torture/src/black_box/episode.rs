//! One seeded episode after the other until the budget is spent, and what is said of them.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::process::Command;
use std::time::Instant;

use crate::{Budget, Verdict};

/// Why nothing can be said: thrown by `invalid`, caught by `series`.
#[derive(Debug)]
struct Invalid(String);

/// Ends an episode of which nothing can be said: too little happened, or what it needs is not there.
pub fn invalid(why: &str) -> ! {
    println!("invalid: {why}");
    panic_any(Invalid(why.to_owned()))
}

/// What is tried in episodes.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// The kind, with what its command line needs to run the same again.
    pub kind: &'a str,
    /// What one case is called in the figures, in the plural.
    pub cases: &'a str,
    /// Cases where the command line asks for no number.
    pub count: u64,
    /// Cases of one episode at most; it is judged at its end.
    pub per_episode: u64,
}

impl Series<'_> {
    /// Runs episodes, each with its seed and its number of cases, until one breaks a promise or the budget is
    /// spent. `run` answers with what there is to say of an episode.
    pub fn run(&self, budget: &Budget, run: impl Fn(u64, u64) -> String) -> Verdict {
        let wanted = budget.count.unwrap_or(self.count);
        let deadline = budget.deadline();
        let begun = Instant::now();
        let (mut done, mut seed) = (0, budget.seed);
        while done < wanted && deadline.is_none_or(|at| Instant::now() < at) {
            let cases = self.per_episode.min(wanted - done);
            match catch_unwind(AssertUnwindSafe(|| run(seed, cases))) {
                Ok(account) => println!("{} seed {seed}: {account}", self.kind),
                Err(thrown) => return self.failed(thrown.as_ref(), seed, cases),
            }
            done += cases;
            seed += 1;
        }
        if done == 0 {
            return Verdict::Invalid("no episode fits into the time".to_owned());
        }
        self.say_figures(done, budget.seed, seed - 1, begun);
        Verdict::Held
    }

    fn failed(&self, thrown: &(dyn std::any::Any + Send), seed: u64, cases: u64) -> Verdict {
        if let Some(why) = is_invalid(thrown) {
            return Verdict::Invalid(format!("{}, seed {seed}: {why}", self.kind));
        }
        Verdict::Broken(format!(
            "{}: {}\nagain: scripts/torture {} --count {cases} --seed {seed}",
            self.kind,
            words(thrown),
            self.kind
        ))
    }

    fn say_figures(&self, done: u64, first: u64, last: u64, begun: Instant) {
        println!(
            "{}: {done} {}, 0 failures, seeds {first} to {last}, {} s, commit {}, {}",
            self.kind,
            self.cases,
            begun.elapsed().as_secs(),
            said_by("git", &["describe", "--always", "--dirty"]),
            said_by("date", &["-u", "+%F"]),
        );
    }
}

/// Why an episode says nothing, where that is how it ended.
pub fn is_invalid(thrown: &(dyn std::any::Any + Send)) -> Option<&str> {
    thrown.downcast_ref().map(|Invalid(why)| why.as_str())
}

/// What a panic said.
pub fn words(thrown: &(dyn std::any::Any + Send)) -> &str {
    let owned = thrown.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| thrown.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without words")
}

fn said_by(command: &str, arguments: &[&str]) -> String {
    let run = Command::new(command)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let said = run.map(|run| String::from_utf8_lossy(&run.stdout).trim().to_owned());
    said.ok()
        .filter(|said| !said.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIES: Series<'_> = Series {
        kind: "test",
        cases: "cases",
        count: 25,
        per_episode: 10,
    };

    fn budget(count: Option<u64>, minutes: Option<u64>) -> Budget {
        Budget {
            count,
            minutes,
            seed: 7,
            control: false,
        }
    }

    #[test]
    fn a_series_counts_its_cases_and_says_how_to_run_a_failure_again() {
        let run = std::cell::RefCell::new(Vec::new());
        let held = SERIES.run(&budget(None, None), |seed, cases| {
            run.borrow_mut().push((seed, cases));
            String::new()
        });
        assert_eq!(held, Verdict::Held);
        assert_eq!(*run.borrow(), [(7, 10), (8, 10), (9, 5)]);
        let broken = SERIES.run(&budget(None, None), |seed, _| {
            assert!(seed != 8, "lost an event");
            String::new()
        });
        let Verdict::Broken(what) = broken else {
            panic!("{broken:?}")
        };
        assert!(what.contains("lost an event") && what.ends_with("test --count 10 --seed 8"));
    }

    #[test]
    fn what_says_nothing_is_neither_held_nor_broken() {
        let floor = SERIES.run(&budget(Some(1), None), |_, _| invalid("too little"));
        assert!(matches!(floor, Verdict::Invalid(_)), "{floor:?}");
        let no_time = SERIES.run(&budget(None, Some(0)), |_, _| String::new());
        assert!(matches!(no_time, Verdict::Invalid(_)), "{no_time:?}");
    }
}
