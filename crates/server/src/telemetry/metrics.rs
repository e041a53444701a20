//! The counters and histograms that the process keeps while it runs. Everything else on `/metrics` is
//! read from the store and the lanes when somebody asks (`exposition`). They start at zero with the
//! process; nothing here survives a crash, and nothing durable rests on it.
//!
//! Labels come from closed sets: refusals, outcomes, and the destinations that the catalogue knows.
//! Handles are resolved once, so the hot path only adds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use wayhold_model::{FailureClass, OutcomeKind};

use super::histogram::{Histogram, LONG_BOUNDS, SHORT_BOUNDS};

/// What the process counts; one per process, shared as `Arc<Metrics>`.
#[derive(Debug)]
pub struct Metrics {
    /// Events stored and acknowledged, duplicates not among them.
    pub events_accepted: Counter,
    /// Events that were accepted before and got their first receipt again.
    pub events_duplicate: Counter,
    /// Events that matched no route where the configuration says to ignore those.
    pub events_ignored: Counter,
    /// From the first byte of a request to its answer, for requests that stored something.
    pub accept_duration: Histogram,
    /// Panics that were caught and answered or counted as a failed attempt.
    pub panics: Counter,
    refused: [Counter; Refusal::ALL.len()],
    reloaded: [Counter; ReloadResult::ALL.len()],
    destinations: Mutex<BTreeMap<Box<str>, Arc<DestinationMetrics>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            events_accepted: Counter::default(),
            events_duplicate: Counter::default(),
            events_ignored: Counter::default(),
            accept_duration: Histogram::new(SHORT_BOUNDS),
            panics: Counter::default(),
            refused: std::array::from_fn(|_| Counter::default()),
            reloaded: std::array::from_fn(|_| Counter::default()),
            destinations: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Events, or requests whose events could not be told apart, that were refused for this reason.
    pub fn refused(&self, reason: Refusal) -> &Counter {
        let [
            malformed,
            too_large,
            conflict,
            unmatched,
            route_failed,
            not_allowed,
            busy,
            backlog_full,
            destination_full,
            no_space,
            unavailable,
            stopping,
        ] = &self.refused;
        match reason {
            Refusal::Malformed => malformed,
            Refusal::TooLarge => too_large,
            Refusal::Conflict => conflict,
            Refusal::Unmatched => unmatched,
            Refusal::RouteFailed => route_failed,
            Refusal::NotAllowed => not_allowed,
            Refusal::Busy => busy,
            Refusal::BacklogFull => backlog_full,
            Refusal::DestinationFull => destination_full,
            Refusal::NoSpace => no_space,
            Refusal::Unavailable => unavailable,
            Refusal::Stopping => stopping,
        }
    }

    /// Times that the configuration was asked to be read again, with this result.
    pub fn reloaded(&self, result: ReloadResult) -> &Counter {
        let [applied, unchanged, refused] = &self.reloaded;
        match result {
            ReloadResult::Applied => applied,
            ReloadResult::Unchanged => unchanged,
            ReloadResult::Refused => refused,
        }
    }

    /// The counters of one destination. Keep the handle: finding it takes a lock.
    pub fn destination(&self, name: &str) -> Arc<DestinationMetrics> {
        let mut destinations = self
            .destinations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(destinations.entry(name.into()).or_default())
    }

    /// Every destination's counters, by name.
    pub fn destinations(&self) -> Vec<(Box<str>, Arc<DestinationMetrics>)> {
        let destinations = self
            .destinations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        destinations
            .iter()
            .map(|(name, metrics)| (name.clone(), Arc::clone(metrics)))
            .collect()
    }
}

/// What came of reading the configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    /// It is in force.
    Applied,
    /// It says what was in force already.
    Unchanged,
    /// It is wrong or cannot be followed; nothing has changed.
    Refused,
}

impl ReloadResult {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Refused];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// What one lane counts.
#[derive(Debug)]
pub struct DestinationMetrics {
    /// From an attempt's submission to its outcome.
    pub attempt_duration: Histogram,
    /// From acceptance to the settlement as delivered.
    pub delivery_latency: Histogram,
    /// Attempts that followed an unknown outcome within this run: what the destination may have seen
    /// twice.
    pub repeats: Counter,
    /// Attempts that delivered.
    pub delivered: Counter,
    /// Events that replays delivered; not among the attempts.
    pub replayed: Counter,
    // By outcome and class; made when the first of them ends, and failures have time for a lock.
    failed: Mutex<BTreeMap<(OutcomeKind, FailureClass), Counter>>,
}

impl Default for DestinationMetrics {
    fn default() -> Self {
        Self {
            attempt_duration: Histogram::new(SHORT_BOUNDS),
            delivery_latency: Histogram::new(LONG_BOUNDS),
            repeats: Counter::default(),
            delivered: Counter::default(),
            replayed: Counter::default(),
            failed: Mutex::default(),
        }
    }
}

impl DestinationMetrics {
    /// Attempts that failed with this outcome for this class of reasons.
    pub fn failed(&self, outcome: OutcomeKind, class: FailureClass) -> Counter {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.entry((outcome, class)).or_default().clone()
    }

    /// All failures that were ever counted, by outcome and class.
    pub fn failures(&self) -> Vec<(OutcomeKind, FailureClass, u64)> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let each = failed.iter();
        each.map(|((outcome, class), counter)| (*outcome, *class, counter.get()))
            .collect()
    }
}

/// Why an event was not accepted: the `reason` label of `events_refused_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no event, or breaks a rule of the format it claims.
    Malformed,
    /// It exceeds a limit of size or number.
    TooLarge,
    /// Its id is taken by a different event.
    Conflict,
    /// No route wants it.
    Unmatched,
    /// A route's condition failed on it.
    RouteFailed,
    /// The principal may not send events.
    NotAllowed,
    /// The queue before the store was full.
    Busy,
    /// More was pending than the limits on the whole backlog let in.
    BacklogFull,
    /// More was pending for a destination than its limits let in.
    DestinationFull,
    /// The volume is nearly full.
    NoSpace,
    /// The store could not take events.
    Unavailable,
    /// The server was stopping.
    Stopping,
}

impl Refusal {
    /// All of them, in the order in which `/metrics` shows them.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::TooLarge,
        Self::Conflict,
        Self::Unmatched,
        Self::RouteFailed,
        Self::NotAllowed,
        Self::Busy,
        Self::BacklogFull,
        Self::DestinationFull,
        Self::NoSpace,
        Self::Unavailable,
        Self::Stopping,
    ];

    /// The label's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::Conflict => "conflict",
            Self::Unmatched => "unmatched",
            Self::RouteFailed => "route_failed",
            Self::NotAllowed => "not_allowed",
            Self::Busy => "busy",
            Self::BacklogFull => "backlog_full",
            Self::DestinationFull => "destination_full",
            Self::NoSpace => "no_space",
            Self::Unavailable => "unavailable",
            Self::Stopping => "stopping",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_own_counter_and_name() {
        let metrics = Metrics::default();
        for (times, reason) in (1..).zip(Refusal::ALL) {
            metrics.refused(reason).inc_by(times);
        }
        for (times, reason) in (1..).zip(Refusal::ALL) {
            assert_eq!(metrics.refused(reason).get(), times, "{}", reason.name());
        }
    }

    #[test]
    fn a_destination_is_one_set_of_counters_whoever_asks() {
        let metrics = Metrics::default();
        metrics
            .destination("orders")
            .failed(OutcomeKind::Unknown, FailureClass::Timeout)
            .inc();
        assert_eq!(
            metrics.destination("orders").failures(),
            [(OutcomeKind::Unknown, FailureClass::Timeout, 1)]
        );
        assert_eq!(metrics.destinations().len(), 1);
    }
}
