//! Random histories of the store against a small reference: accept, repeat, read, settle, set aside, dead-letter,
//! redrive, discard, drop, compact, reshard, restart, kill, power cut, at limits that a few events reach and at production's.
//! After each step the store must say what the reference says.

#![expect(
    clippy::panic,
    clippy::expect_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

mod reference;
mod seen;
mod steps;
mod subject;
mod values;
mod world;

use std::panic::resume_unwind;
use std::time::Duration;

use clap::Args;

use self::seen::Seen;
use self::steps::{History, Step};
use self::subject::Subject;
use self::world::{End, World};
use crate::black_box::ending::{Ending, attempt, broken, invalid};
use crate::black_box::episode::Series;
use crate::{Budget, Verdict};

/// Histories of a short run.
const HISTORIES: u64 = 40;

/// Histories that are judged together: enough of them meet everything that a run has to meet.
const HISTORIES_PER_EPISODE: u64 = 20;

/// Most steps of a history.
const STEPS_MAX: u64 = 300;

/// Longest that a step may take: far more than it needs.
const STEP_TAKES_MAX: Duration = Duration::from_secs(60);

/// What is tried.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    budget: Budget,

    /// Prints the steps of each history.
    #[arg(long)]
    verbose: bool,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Verdict {
    let series = Series {
        kind: "model",
        cases: "histories",
        count: HISTORIES,
        per_episode: HISTORIES_PER_EPISODE,
    };
    let damaged = arguments.budget.control;
    series.run(&arguments.budget, |seed, histories| {
        let mut seen = Seen::default();
        for history in 0..histories {
            // Spread, so that the histories of neighbouring episodes are different ones.
            let history = History::of(seed * HISTORIES_PER_EPISODE + history, STEPS_MAX);
            if arguments.verbose {
                println!("{history}");
            }
            seen = seen.plus(judged(&history, damaged));
        }
        if histories == HISTORIES_PER_EPISODE
            && let Some(never) = seen.never()
        {
            invalid(&format!("{never} never came about: {seen:?}"));
        }
        format!("{histories} histories, {seen:?}")
    })
}

/// Plays one history. The store lives in this process: what panics may be the store, which must not.
fn judged(history: &History, damaged: bool) -> Seen {
    match attempt(|| play(history, damaged)) {
        Ok(seen) => seen,
        Err(Ending::Stopped(words)) => broken(&format!(
            "history {}: a panic: {words}\n{history}",
            history.seed
        )),
        Err(said) => resume_unwind(Box::new(said)),
    }
}

/// Plays one history; throws where the store says something else than the reference.
fn play(history: &History, damaged: bool) -> Seen {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime needs a thread");
    runtime.block_on(async {
        let mut world = World::new(history, damaged);
        let mut subject = Subject::new(world.open()).unwrap_or_else(|error| broken(&error));
        for (number, step) in history.steps.iter().enumerate() {
            if matches!(step, Step::Restart | Step::Kill | Step::PowerCut) {
                subject.count_compactions();
            }
            let done = take(step, &mut world, &mut subject);
            let done = tokio::time::timeout(STEP_TAKES_MAX, done).await;
            let hangs = |_| Err(format!("is not done after {} s", STEP_TAKES_MAX.as_secs()));
            if let Err(what) = done.unwrap_or_else(hangs) {
                broken(&format!(
                    "history {}, step {number} {step:?}: {what}\n{history}",
                    history.seed
                ));
            }
        }
        subject.count_compactions();
        subject.store().stop();
        let end = subject
            .restarted(world.open())
            .await
            .and_then(|()| subject.drain());
        if let Err(what) = end {
            broken(&format!(
                "history {}, at its end: {what}\n{history}",
                history.seed
            ));
        }
        subject.store().stop();
        subject.seen
    })
}

async fn take(step: &Step, world: &mut World, subject: &mut Subject) -> Result<(), String> {
    match step {
        Step::Pass { minutes } => {
            world.pass(*minutes).await;
            subject.check().await
        }
        Step::Restart => {
            subject.store().stop();
            subject.restarted(world.open()).await
        }
        Step::Kill | Step::PowerCut => {
            let end = match step {
                Step::Kill => End::Kill,
                _ => End::PowerCut,
            };
            let reopened = world.end(subject.store(), end);
            subject.ended(reopened, end).await
        }
        other => subject.step(other).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(control: bool) -> Arguments {
        Arguments {
            budget: Budget {
                control,
                ..Budget::of(HISTORIES_PER_EPISODE)
            },
            verbose: false,
        }
    }

    #[test]
    fn random_histories_agree_with_the_reference() {
        assert_eq!(run(&arguments(false)), Verdict::Held);
    }

    #[test]
    fn a_store_that_loses_its_last_group_when_it_ends_is_found_out() {
        let found = run(&arguments(true));
        assert!(matches!(found, Verdict::Broken(_)), "{found:?}");
    }
}
