//! How many attempts a lane may start now: breaker, the receiver's own wish to be left alone, recovery after an
//! outage, the rate, and the bound on what an unclean stop may repeat. Pure decisions.
//!
//! After an outage one probe goes through; then the limit starts at one and grows by one with every
//! success, so it doubles with every round trip, and a failure halves it. Recovery is no stampede.

use std::time::Duration;

use wayhold_model::breaker::{Admission, Breaker, BreakerPolicy};
use wayhold_model::quota::{Allowances, Quota};
use wayhold_model::rate::{Bucket, Rate};
use wayhold_model::verdict::RETRY_AFTER_MAX;
use wayhold_model::{Outcome, Timestamp};

/// Most deliveries that are sent or settled without the settlement being synced, whatever the
/// concurrency. Together with `UNSYNCED_PER_FLIGHT` it is what an unclean stop may repeat per lane.
const UNSYNCED_MAX: usize = 16_384;

/// Unsynced deliveries allowed per attempt in flight: a lane settles its whole concurrency several times
/// within one flush of 25 ms.
const UNSYNCED_PER_FLIGHT: usize = 64;

/// Most deliveries of a lane that an unclean stop may repeat.
pub(super) fn repeats_max(concurrency: usize) -> usize {
    concurrency
        .saturating_mul(UNSYNCED_PER_FLIGHT)
        .min(UNSYNCED_MAX)
        .max(concurrency)
}

/// What may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Openings {
    /// So many attempts, perhaps none until one ends.
    Free(usize),
    /// One, as the breaker's probe.
    Probe,
    /// None before this time.
    WaitUntil(Timestamp),
}

/// What an outcome changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The breaker opened: the destination is left alone for a while.
    Opened,
    /// The breaker closed: the destination answers again.
    Closed,
}

/// Pace of one lane.
#[derive(Debug)]
pub(super) struct Pace {
    concurrency: usize,
    // Below `concurrency` while the lane recovers from an outage.
    limit: usize,
    breaker: Breaker,
    // A probe was chosen and is not sent yet.
    probe_chosen: bool,
    // The receiver asked not to be tried before.
    quiet_until: Timestamp,
    // What it said is left of its quotas.
    allowances: Allowances,
    bucket: Option<Bucket>,
}

impl Pace {
    pub(super) fn new(concurrency: usize, breaker: BreakerPolicy, rate: Option<Rate>) -> Self {
        Self {
            concurrency,
            limit: concurrency,
            breaker: Breaker::new(breaker),
            probe_chosen: false,
            quiet_until: Timestamp::EPOCH,
            allowances: Allowances::default(),
            bucket: rate.map(Bucket::new),
        }
    }

    /// Goes on under another policy in the state that it is in: what the receiver asked for, an open breaker
    /// and a recovery under way are kept, and so is what the rate has let through.
    pub(super) fn follow(
        &mut self,
        concurrency: usize,
        breaker: BreakerPolicy,
        rate: Option<Rate>,
        now: Timestamp,
    ) {
        let recovers = self.limit < self.concurrency;
        self.limit = if recovers {
            self.limit.min(concurrency)
        } else {
            concurrency
        };
        self.concurrency = concurrency;
        self.breaker.follow(breaker);
        self.bucket = rate.map(|rate| match &self.bucket {
            Some(bucket) => bucket.at(rate, now),
            None => Bucket::new(rate),
        });
    }

    /// What may start at `now` with so many in flight.
    pub(super) fn openings(&self, now: Timestamp, in_flight: usize) -> Openings {
        if let Some(until) = self.quiet_until(now) {
            return Openings::WaitUntil(until);
        }
        let left = self.allowances.left(now).map_or(usize::MAX, |left| {
            usize::try_from(left).unwrap_or(usize::MAX)
        });
        match self.breaker.admission(now) {
            Admission::Free => Openings::Free(self.limit.saturating_sub(in_flight).min(left)),
            Admission::Trial(probes) => {
                let probes = usize::try_from(probes)
                    .unwrap_or(usize::MAX)
                    .min(self.limit);
                Openings::Free(probes.saturating_sub(in_flight).min(left))
            }
            Admission::Probe if self.probe_chosen => Openings::Free(0),
            Admission::Probe => Openings::Probe,
            Admission::WaitUntil(until) => Openings::WaitUntil(until),
            Admission::AwaitProbe => Openings::Free(0),
        }
    }

    /// The attempt that `Openings::Probe` allowed was chosen.
    pub(super) fn probe_chosen(&mut self) {
        self.probe_chosen = true;
    }

    /// The chosen probe is being sent.
    pub(super) fn probe_sent(&mut self) {
        self.probe_chosen = false;
        self.breaker.probe_started();
    }

    /// The chosen probe could not be sent; another may be chosen.
    pub(super) fn probe_given_up(&mut self) {
        self.probe_chosen = false;
    }

    /// Whether the breaker keeps the destination waiting.
    pub(super) fn is_waiting(&self) -> bool {
        self.breaker.is_open()
    }

    /// Until when the receiver asked to be left alone, or nothing is left of one of its quotas.
    pub(super) fn quiet_until(&self, now: Timestamp) -> Option<Timestamp> {
        let asked = Some(self.quiet_until).filter(|until| now < *until);
        asked.max(self.allowances.used_up_until(now))
    }

    /// Whether the receiver ever asked to be left alone: if not, nobody need look at a clock.
    pub(super) fn was_asked_to_wait(&self) -> bool {
        self.quiet_until > Timestamp::EPOCH || !self.allowances.is_empty()
    }

    /// An answer told of the receiver's quotas, while so many attempts are in flight.
    pub(super) fn note_quotas(&mut self, quotas: &[Quota], in_flight: usize, now: Timestamp) {
        self.allowances.note(quotas, in_flight, now);
    }

    /// An attempt is being sent.
    pub(super) fn sent_one(&mut self) {
        self.allowances.take_one();
    }

    /// Whether a rate is to be kept.
    pub(super) fn has_rate(&self) -> bool {
        self.bucket.is_some()
    }

    /// Most attempts that are made ready ahead of their time: what takes a moment to be fetched or recorded
    /// must not keep the destination below its rate.
    pub(super) fn ahead_max(&self) -> usize {
        let Some(bucket) = &self.bucket else {
            return usize::MAX;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of at most a million"
        )]
        let ahead = (bucket.rate().per_second() * AHEAD.as_secs_f64()) as usize;
        ahead.max(1)
    }

    /// Lets one attempt go at `now`, if the rate allows it.
    pub(super) fn let_one_go(&mut self, now: Timestamp) -> bool {
        self.bucket.as_mut().is_none_or(|bucket| bucket.take(now))
    }

    /// When the rate lets the next attempt go.
    pub(super) fn next_goes_at(&self) -> Timestamp {
        let bucket = self.bucket.as_ref();
        bucket.map_or(Timestamp::EPOCH, Bucket::ready_at)
    }

    /// An attempt ended.
    pub(super) fn observe(
        &mut self,
        outcome: &Outcome,
        now: Timestamp,
        entropy: u64,
    ) -> Option<Change> {
        if let Some(wait) = outcome.failure().and_then(|failure| failure.retry_after)
            && !wayhold_store::planted!("sent-again-too-early")
        {
            let until = now.after(wait.min(RETRY_AFTER_MAX));
            self.quiet_until = self.quiet_until.max(until);
        }
        let trouble = outcome.is_trouble();
        let changed = self.breaker.observe(trouble, now, entropy);
        match (changed, self.breaker.is_open()) {
            (true, true) => {
                self.limit = 1;
                return Some(Change::Opened);
            }
            (true, false) => {
                self.limit = 1.min(self.concurrency);
                return Some(Change::Closed);
            }
            (false, _) if !trouble => {
                self.limit = self.limit.saturating_add(1).min(self.concurrency);
            }
            (false, _) if self.limit < self.concurrency => self.limit = (self.limit / 2).max(1),
            (false, _) => {}
        }
        None
    }

    /// The most that retries may take of the limit while first attempts wait too, so that deliveries
    /// which fail slowly leave room for those that do not.
    pub(super) fn retries_max(&self) -> usize {
        (self.limit / 2).max(1)
    }
}

/// How far ahead of its time an attempt is made ready where there is a rate: longer than a disk takes to sync.
const AHEAD: Duration = Duration::from_millis(250);

/// How long a read or a fetch that failed is left alone before it is tried again.
pub(super) const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use wayhold_model::quota::Stands;
    use wayhold_model::{Failure, FailureClass};

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn pace() -> Pace {
        let breaker = BreakerPolicy {
            failures: 2,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(4),
            probes: 1,
        };
        Pace::new(8, breaker, None)
    }

    fn unknown() -> Outcome {
        Outcome::Unknown(Failure::new(FailureClass::Timeout, "no answer"))
    }

    fn later(secs: u64) -> Timestamp {
        NOW.after(Duration::from_secs(secs))
    }

    #[test]
    fn an_open_breaker_lets_one_probe_through_and_recovery_doubles_per_round() {
        let mut pace = pace();
        assert_eq!(pace.openings(NOW, 3), Openings::Free(5));
        assert_eq!(pace.observe(&unknown(), NOW, 0), None);
        assert_eq!(pace.observe(&unknown(), NOW, 0), Some(Change::Opened));
        assert_eq!(pace.openings(NOW, 0), Openings::WaitUntil(later(1)));
        assert_eq!(pace.openings(later(1), 0), Openings::Probe);
        pace.probe_chosen();
        assert_eq!(pace.openings(later(1), 1), Openings::Free(0));
        pace.probe_sent();
        assert_eq!(pace.openings(later(1), 1), Openings::Free(0));
        assert_eq!(
            pace.observe(&Outcome::Delivered, later(1), 0),
            Some(Change::Closed)
        );
        for limit in [1, 2, 4, 8, 8] {
            assert_eq!(pace.openings(later(1), 0), Openings::Free(limit));
            for _ in 0..limit {
                pace.observe(&Outcome::Delivered, later(1), 0);
            }
        }
    }

    #[test]
    fn further_probes_go_no_faster_than_they_succeed() {
        let mut pace = pace();
        let breaker = BreakerPolicy {
            failures: 2,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(4),
            probes: 6,
        };
        pace.follow(8, breaker, None, NOW);
        pace.observe(&unknown(), NOW, 0);
        pace.observe(&unknown(), NOW, 0);
        pace.probe_sent();
        assert_eq!(
            pace.observe(&Outcome::Delivered, later(1), 0),
            Some(Change::Closed)
        );
        // The limit grows from one; what must still succeed falls from five.
        for free in [1, 2, 3, 2, 1] {
            assert_eq!(pace.openings(later(1), 0), Openings::Free(free));
            pace.observe(&Outcome::Delivered, later(1), 0);
        }
        assert_eq!(pace.openings(later(1), 0), Openings::Free(6));
        assert_eq!(pace.observe(&unknown(), later(1), 0), None);
    }

    #[test]
    fn what_is_left_of_a_quota_bounds_what_starts_and_ends_before_the_receiver_refuses() {
        let mut pace = pace();
        let left = |requests| {
            let filled_in = Duration::from_secs(30);
            vec![Quota {
                name: "burst".to_owned(),
                stands: Stands::Left {
                    requests,
                    filled_in,
                },
            }]
        };
        assert!(!pace.was_asked_to_wait());
        pace.note_quotas(&left(5), 2, NOW);
        assert_eq!(pace.openings(NOW, 2), Openings::Free(3));
        for _ in 0..3 {
            assert_eq!(pace.quiet_until(NOW), None);
            pace.sent_one();
        }
        assert_eq!(pace.openings(NOW, 5), Openings::WaitUntil(later(30)));
        assert_eq!(pace.openings(later(30), 0), Openings::Free(8));
        // A quota that is used up waits no less than a refusal would make it, and a newer answer ends that.
        pace.note_quotas(&left(0), 0, NOW);
        assert_eq!(pace.openings(NOW, 0), Openings::WaitUntil(later(30)));
        pace.note_quotas(&left(100), 0, NOW);
        assert_eq!(pace.openings(NOW, 0), Openings::Free(8));
    }

    #[test]
    fn a_probe_that_could_not_be_sent_leaves_room_for_another() {
        let mut pace = pace();
        pace.observe(&unknown(), NOW, 0);
        pace.observe(&unknown(), NOW, 0);
        pace.probe_chosen();
        pace.probe_given_up();
        assert_eq!(pace.openings(later(1), 0), Openings::Probe);
    }

    #[test]
    fn a_failure_during_recovery_halves_the_limit() {
        let mut pace = pace();
        pace.observe(&unknown(), NOW, 0);
        pace.observe(&unknown(), NOW, 0);
        pace.observe(&Outcome::Delivered, NOW, 0);
        for _ in 0..4 {
            pace.observe(&Outcome::Delivered, NOW, 0);
        }
        assert_eq!(pace.openings(NOW, 0), Openings::Free(5));
        pace.observe(&unknown(), NOW, 0);
        assert_eq!(pace.openings(NOW, 0), Openings::Free(2));
    }

    #[test]
    fn a_part_that_fails_slows_nothing_down() {
        let mut pace = pace();
        let of_part = Outcome::NotExecuted(
            Failure::new(FailureClass::MissingTopic, "no such topic").of_part(),
        );
        for _ in 0..10 {
            assert_eq!(pace.observe(&of_part, NOW, 0), None);
        }
        assert_eq!(pace.openings(NOW, 0), Openings::Free(8));
    }

    #[test]
    fn a_receivers_wish_holds_for_the_whole_destination_and_is_bounded() {
        let mut pace = pace();
        let wait = |secs| Some(Duration::from_secs(secs));
        let busy = Outcome::NotExecuted(
            Failure::new(FailureClass::Throttled, "busy").with_retry_after(wait(30)),
        );
        pace.observe(&busy, NOW, 0);
        let shorter = Outcome::NotExecuted(
            Failure::new(FailureClass::Throttled, "busy").with_retry_after(wait(5)),
        );
        pace.observe(&Outcome::Delivered, NOW, 0);
        pace.observe(&shorter, NOW, 0);
        assert_eq!(pace.openings(NOW, 0), Openings::WaitUntil(later(30)));
        let absurd = Outcome::NotExecuted(
            Failure::new(FailureClass::Throttled, "busy").with_retry_after(wait(u64::MAX)),
        );
        pace.observe(&absurd, NOW, 0);
        assert_eq!(pace.quiet_until(NOW), Some(NOW.after(RETRY_AFTER_MAX)));
    }

    #[test]
    fn another_policy_goes_on_where_the_old_one_was() {
        let mut pace = pace();
        let breaker = |failures| BreakerPolicy {
            failures,
            open: Duration::from_secs(60),
            open_max: Duration::from_secs(60),
            probes: 1,
        };
        pace.follow(4, breaker(2), None, NOW);
        assert_eq!(pace.openings(NOW, 3), Openings::Free(1));
        assert_eq!(pace.openings(NOW, 8), Openings::Free(0));
        pace.follow(16, breaker(2), None, NOW);
        assert_eq!(pace.openings(NOW, 8), Openings::Free(8));
        // Open for as long as the policy said when it opened.
        pace.observe(&unknown(), NOW, 0);
        pace.follow(16, breaker(100), None, NOW);
        pace.follow(16, breaker(2), None, NOW);
        assert_eq!(pace.observe(&unknown(), NOW, 0), Some(Change::Opened));
        pace.follow(16, breaker(100), None, NOW);
        assert_eq!(pace.openings(later(59), 0), Openings::WaitUntil(later(60)));
        // What the receiver asked for stands, and a recovery goes on.
        let wait = Some(Duration::from_secs(90));
        let busy = Failure::new(FailureClass::Throttled, "busy").with_retry_after(wait);
        pace.observe(&Outcome::NotExecuted(busy), NOW, 0);
        pace.follow(32, breaker(2), None, NOW);
        assert_eq!(pace.openings(later(89), 0), Openings::WaitUntil(later(90)));
        assert_eq!(pace.openings(later(90), 0), Openings::Probe);
        pace.observe(&Outcome::Delivered, later(90), 0);
        pace.follow(64, breaker(2), None, NOW);
        assert_eq!(pace.openings(later(90), 0), Openings::Free(1));
    }

    #[test]
    fn what_may_repeat_follows_the_concurrency_up_to_a_bound() {
        for (concurrency, expected) in [(1, 64), (8, 512), (1_024, 16_384), (50_000, 50_000)] {
            assert_eq!(repeats_max(concurrency), expected);
        }
    }
}
