//! What is counted of decisions and of questions to targets since the process began, for metrics. It names nobody:
//! outcomes, results and kinds are few and known.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use wayhold_model::approval::State as RequestState;

use crate::telemetry::histogram::{Histogram, LONG_BOUNDS, Reading};

/// How a request for approval ended. What was edited or taken back ends without anybody deciding, and is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All people that were asked said yes.
    Approved,
    /// Somebody said no.
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// Its undo window passed without a no.
    Elapsed,
}

impl Ending {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Approved, Self::Rejected, Self::Expired, Self::Elapsed];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Elapsed => "elapsed",
        }
    }

    /// What a decision of a person ended a request with; `None` where others are still asked.
    pub const fn by_a_person(state: RequestState) -> Option<Self> {
        match state {
            RequestState::Consumed => Some(Self::Approved),
            RequestState::Rejected => Some(Self::Rejected),
            RequestState::Pending
            | RequestState::Expired
            | RequestState::Cancelled
            | RequestState::Invalidated => None,
        }
    }
}

/// Counts of ended requests.
#[derive(Debug)]
pub struct Decisions {
    ended: [Counter; Ending::ALL.len()],
    /// From the request to the decision that ended it, of those that people decided.
    time: Histogram,
}

impl Default for Decisions {
    fn default() -> Self {
        Self {
            ended: std::array::from_fn(|_| Counter::default()),
            time: Histogram::new(LONG_BOUNDS),
        }
    }
}

impl Decisions {
    /// Counts a request that has ended `after` it was made, once that is durable.
    pub fn count(&self, decided: Ending, after: Duration) {
        if let Some(counter) = self.ended.get(decided as usize) {
            counter.inc();
        }
        if matches!(decided, Ending::Approved | Ending::Rejected) {
            self.time.observe(after);
        }
    }

    /// What was counted.
    pub fn report(&self) -> DecisionsReport {
        let ended = Ending::ALL.into_iter().zip(&self.ended);
        DecisionsReport {
            ended: ended
                .map(|(one, counter)| (one.name(), counter.get()))
                .collect(),
            time: self.time.read(),
        }
    }
}

/// Counts of decisions at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionsReport {
    /// Ended requests by how.
    pub ended: Vec<(&'static str, u64)>,
    /// Time from request to decision.
    pub time: Reading,
}

/// Counts of what targets said when they were asked, by kind and result.
#[derive(Debug, Default)]
pub struct Answers(Mutex<BTreeMap<(String, &'static str), u64>>);

impl Answers {
    /// Counts what was found out about a command of this kind.
    pub fn count(&self, kind: &str, result: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((kind.to_owned(), result)).or_default() += 1;
    }

    /// What was counted.
    pub fn report(&self) -> Vec<((String, &'static str), u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .map(|((kind, result), count)| ((kind.clone(), *result), *count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_people_decided_says_how_long_they_take() {
        let decisions = Decisions::default();
        for decided in Ending::ALL {
            decisions.count(decided, Duration::from_secs(90));
        }
        let report = decisions.report();
        let names: Vec<_> = report.ended.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["approved", "rejected", "expired", "elapsed"]);
        assert!(report.ended.iter().all(|(_, count)| *count == 1));
        let timed: u64 = report.time.buckets.iter().map(|(_, count)| count).sum();
        assert_eq!(timed, 2);
    }

    #[test]
    fn a_decision_that_leaves_others_to_be_asked_ends_nothing() {
        assert_eq!(Ending::by_a_person(RequestState::Pending), None);
        assert_eq!(
            Ending::by_a_person(RequestState::Consumed),
            Some(Ending::Approved)
        );
        assert_eq!(
            Ending::by_a_person(RequestState::Rejected),
            Some(Ending::Rejected)
        );
    }
}
