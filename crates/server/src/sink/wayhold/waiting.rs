//! What waits for its batch, in the order in which it came. No IO: the sink's callers and its one task share it
//! under a lock, so that whoever hands something over sees either all of a failure or nothing of it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use wayhold_model::{Failure, FailureClass, Outcome};

use super::config::BatchLimits;
use super::request::weight;
use crate::sink::Attempt;

/// Attempts that wait.
#[derive(Debug)]
pub(super) struct Waiting {
    limits: BatchLimits,
    attempts: VecDeque<Held>,
    bytes: usize,
    /// Whether what ended last says that the other one may be down.
    trouble: bool,
    stopping: bool,
}

#[derive(Debug)]
struct Held {
    attempt: Attempt,
    weight: usize,
    since: Instant,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this.
    Batch(Vec<Attempt>),
    /// Look again then, or when something came.
    At(Instant),
    /// Look again when something came.
    Later,
    /// Nothing more.
    End,
}

impl Waiting {
    pub(super) fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            attempts: VecDeque::new(),
            bytes: 0,
            trouble: false,
            stopping: false,
        }
    }

    /// Takes attempts in, behind those that wait. One that was handed over before its lane knew of a failure
    /// goes back: what failed may be an earlier event of its key.
    pub(super) fn enter(&mut self, attempts: &mut Vec<Attempt>, now: Instant) {
        for attempt in attempts.drain(..) {
            if self.stopping {
                attempt.finish(interrupted("the destination is stopping", self.trouble));
            } else if !attempt.is_informed() {
                let reason = "an event before it failed while it was handed over";
                attempt.finish(interrupted(reason, self.trouble));
            } else {
                let weight = weight(&attempt.event.event);
                self.bytes += weight;
                self.attempts.push_back(Held {
                    attempt,
                    weight,
                    since: now,
                });
            }
        }
    }

    /// The next batch, if it is time for one.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        if self.stopping {
            return Next::End;
        }
        let Some(first) = self.attempts.front() else {
            return Next::Later;
        };
        let due = first.since + self.limits.linger;
        let is_full = self.attempts.len() >= self.limits.events || self.bytes >= self.limits.bytes;
        match due <= now || is_full {
            true => Next::Batch(self.take()),
            false => Next::At(due),
        }
    }

    /// As many from the front as one batch holds; there is at least one.
    fn take(&mut self) -> Vec<Attempt> {
        let events = self.limits.events;
        let mut batch = Vec::with_capacity(events.min(self.attempts.len()));
        let mut bytes = 0;
        while batch.len() < events
            && let Some(next) = self.attempts.front()
            && (batch.is_empty() || bytes + next.weight <= self.limits.bytes)
            && let Some(held) = self.attempts.pop_front()
        {
            bytes += held.weight;
            batch.push(held.attempt);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        batch
    }

    /// Ends attempts that failed for no fault of their own, and everything that waits: whatever was in the way
    /// of those is in the way of these, and the other one may have asked to be left alone.
    pub(super) fn failed(&mut self, failed: Vec<Attempt>, rest: Vec<Attempt>, outcome: &Outcome) {
        self.trouble = outcome.is_trouble();
        for attempt in failed {
            attempt.finish(outcome.clone());
        }
        let unsent = unsent_of(outcome);
        for attempt in rest.into_iter().chain(self.drain()) {
            attempt.finish(unsent.clone());
        }
    }

    /// Ends an attempt whose event was refused, and hands back those of `rest` that may go on: what of its key
    /// comes after it waits for what becomes of it.
    pub(super) fn refused(
        &mut self,
        refused: Attempt,
        failure: Failure,
        rest: Vec<Vec<Attempt>>,
    ) -> Vec<Vec<Attempt>> {
        self.trouble = false;
        let key = refused.event.key_hash;
        refused.finish(Outcome::Refused(failure));
        let Some(key) = key else { return rest };
        let mut goes_on = |attempt: Attempt| {
            if attempt.event.key_hash != Some(key) {
                return Some(attempt);
            }
            let reason = "an event before it of the same key was refused";
            attempt.finish(interrupted(reason, false));
            None
        };
        let keep = |part: Vec<Attempt>| part.into_iter().filter_map(&mut goes_on).collect();
        let mut kept: Vec<Vec<Attempt>> = rest.into_iter().map(keep).collect();
        kept.retain(|part| !part.is_empty());
        for held in std::mem::take(&mut self.attempts) {
            let (weight, since) = (held.weight, held.since);
            match goes_on(held.attempt) {
                Some(attempt) => self.attempts.push_back(Held {
                    attempt,
                    weight,
                    since,
                }),
                None => self.bytes = self.bytes.saturating_sub(weight),
            }
        }
        kept
    }

    /// A batch crashed whoever handled it; its attempts have ended. From now on each event goes alone, so that only
    /// the one at fault does so again.
    pub(super) fn crashed(&mut self) {
        self.limits.events = 1;
        let failure = Failure::new(FailureClass::Crashed, "handling a batch panicked");
        self.failed(Vec::new(), Vec::new(), &Outcome::Unknown(failure));
    }

    /// Takes no more, and ends everything that waits.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        for attempt in self.drain() {
            attempt.finish(interrupted("the destination is stopping", self.trouble));
        }
    }

    fn drain(&mut self) -> Vec<Attempt> {
        self.bytes = 0;
        self.attempts.drain(..).map(|held| held.attempt).collect()
    }
}

/// The outcome of what was not sent because something else failed like this.
fn unsent_of(outcome: &Outcome) -> Outcome {
    let Some(failure) = outcome.failure() else {
        return interrupted("it was not sent", false);
    };
    let reason = format!("not sent, after {}", failure.reason);
    let mut unsent = Failure::new(FailureClass::Interrupted, reason);
    unsent.retry_after = failure.retry_after;
    unsent.of_part = !outcome.is_trouble();
    Outcome::NotExecuted(unsent)
}

/// The outcome of what we kept back ourselves. Whether the other one is down is not told by it, so it says the
/// same as what ended before.
fn interrupted(reason: &str, trouble: bool) -> Outcome {
    let mut failure = Failure::new(FailureClass::Interrupted, reason);
    failure.of_part = !trouble;
    Outcome::NotExecuted(failure)
}

/// How long an attempt may take in a batch: the longest of what its events were given.
pub(super) fn timeout_of(batch: &[Attempt]) -> Duration {
    let timeouts = batch.iter().map(|attempt| attempt.timeout);
    timeouts.max().unwrap_or_default()
}
