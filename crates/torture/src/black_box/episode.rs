//! One seeded episode after the other until the budget is spent, and what is said of them.

use std::process::Command;
use std::time::Instant;

use super::ending::{Ending, attempt};
use crate::{Budget, Verdict};

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
            match attempt(|| run(seed, cases)) {
                Ok(account) => println!("{} seed {seed}: {account}", self.kind),
                Err(ending) => return self.failed(ending, seed, cases),
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

    /// The same with a fault that is planted: a run that holds did not notice it, and says nothing.
    pub fn control(&self, budget: &Budget, run: impl Fn(u64, u64) -> String) -> Verdict {
        match self.run(budget, run) {
            Verdict::Held => Verdict::Invalid(format!(
                "{}: the control is not sensitive: the planted fault was not noticed",
                self.kind
            )),
            other => other,
        }
    }

    fn failed(&self, ending: Ending, seed: u64, cases: u64) -> Verdict {
        let kind = self.kind;
        let again = format!("again: scripts/torture {kind} --count {cases} --seed {seed}");
        match ending {
            Ending::Broken(what) => Verdict::Broken(format!("{kind}: {what}\n{again}")),
            Ending::Invalid(why) => Verdict::Invalid(format!("{kind}, seed {seed}: {why}")),
            Ending::Stopped(words) => {
                Verdict::Invalid(format!("{kind}: the harness stopped: {words}\n{again}"))
            }
        }
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
    use crate::black_box::ending::{broken, invalid};

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
        let broken = SERIES.run(&budget(None, None), |seed, _| match seed {
            8 => broken("lost an event"),
            _ => String::new(),
        });
        let Verdict::Broken(what) = broken else {
            panic!("{broken:?}")
        };
        assert!(what.contains("lost an event") && what.ends_with("test --count 10 --seed 8"));
    }

    #[test]
    fn a_control_that_notices_nothing_says_nothing() {
        let asleep = SERIES.control(&budget(Some(1), None), |_, _| String::new());
        assert!(matches!(asleep, Verdict::Invalid(_)), "{asleep:?}");
        let awake = SERIES.control(&budget(Some(1), None), |_, _| broken("lost"));
        assert!(matches!(awake, Verdict::Broken(_)), "{awake:?}");
    }

    #[test]
    fn what_says_nothing_is_neither_held_nor_broken() {
        let floor = SERIES.run(&budget(Some(1), None), |_, _| invalid("too little"));
        assert!(matches!(floor, Verdict::Invalid(_)), "{floor:?}");
        let stopped = SERIES.run(&budget(Some(1), None), |_, _| panic!("a socket is gone"));
        assert!(matches!(stopped, Verdict::Invalid(_)), "{stopped:?}");
        let no_time = SERIES.run(&budget(None, Some(0)), |_, _| String::new());
        assert!(matches!(no_time, Verdict::Invalid(_)), "{no_time:?}");
    }
}
