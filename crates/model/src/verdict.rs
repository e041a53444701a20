//! What policy decides after an attempt: settle, try again, give up, or stop at the whole destination. A
//! pure function of what was tried, its outcome, the time and a random number.
//!
//! The outcome comes before the cause: what did not arrive for certain, or perhaps did, is tried again;
//! what was refused is given up. Then the class has its say, and then whoever configured something else.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backoff::Waits;
use crate::class::FailureClass;
use crate::endurance::{Endurance, Forbidden, Streak};
use crate::outcome::{Failure, Outcome};
use crate::time::Timestamp;

/// Longest `Retry-After` that is obeyed; a receiver cannot silence a destination for longer.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Attempts at what conflicts with the receiver's state before it is given up: somebody else's work ends
/// within that, and what the receiver has already it will have the tenth time too.
pub const CONFLICTS_MAX: u32 = 10;

/// Attempts at an event that crashes whoever handles it before it is given up.
pub const CRASHES_MAX: u32 = 3;

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Try again later.
    Retry,
    /// Give this delivery up.
    DeadLetter,
    /// Start nothing more at the destination until somebody resumes it. The delivery stays pending, and the
    /// attempt does not count.
    Pause,
    /// Give this delivery up and start nothing more at the destination until somebody resumes it.
    Disable,
}

impl Reaction {
    /// Name in the configuration and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::DeadLetter => "dead_letter",
            Self::Pause => "pause",
            Self::Disable => "disable",
        }
    }

    /// What follows where nobody configured anything.
    pub fn usual(outcome: &Outcome) -> Self {
        use FailureClass as Class;
        match (outcome, outcome.failure().map(|failure| failure.class)) {
            (_, Some(Class::Auth | Class::Certificate | Class::BlockedAddress)) => Self::Pause,
            (_, Some(Class::Gone)) => Self::Disable,
            (_, Some(Class::Conflict)) => Self::Retry,
            (Outcome::Refused(_), _) => Self::DeadLetter,
            _ => Self::Retry,
        }
    }
}

/// How long and how often a delivery is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Waits between attempts.
    pub waits: Waits,
    /// Most attempts before the delivery becomes a dead letter; `None` tries for ever.
    pub attempts_max: Option<u32>,
    /// No attempt starts later than this after the event was accepted; `None` sets no end.
    pub age_max: Option<Duration>,
}

/// What somebody configured for a class or a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What follows; what is usual for the class where `None`.
    pub then: Option<Reaction>,
    /// Its waits and limits.
    pub patience: Patience,
}

/// How a destination's failed attempts are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Waits and limits of everything without a rule.
    pub patience: Patience,
    /// Rules by class.
    pub of_class: BTreeMap<FailureClass, Rule>,
    /// Rules by the receiver's own number, which stand before those by class.
    pub of_status: BTreeMap<i32, Rule>,
}

/// What is known of the attempt that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Attempts that count, this one included.
    pub attempts: u32,
    /// Attempts in a row before that did not count: they lengthen the wait all the same.
    pub put_off: u32,
    /// Age of the event.
    pub age: Duration,
    /// How long its class of failure has been all that came of the destination.
    pub streak: Streak,
}

/// What happens next to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Record it as delivered.
    Settle,
    /// Try again.
    Retry {
        /// Not before this time.
        at: Timestamp,
        /// Whether the attempt counts against the maximum.
        counts: bool,
    },
    /// Give it up and keep it as a dead letter.
    DeadLetter,
    /// Stop at the destination; the delivery stays pending, and its attempt does not count.
    Pause,
    /// Stop at the destination, and keep the delivery as a dead letter.
    Disable,
}

/// Which words of the policy decide about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A rule for this status.
    Status(i32),
    /// A rule for this class.
    Class(FailureClass),
    /// What is usual.
    Usual,
}

/// What applies to a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<'a> {
    /// Whose words these are.
    pub source: Source,
    /// What follows.
    pub then: Reaction,
    /// How long that may go on before the destination pauses instead.
    pub endurance: Option<Endurance>,
    /// Whether it may concern the one event, and its pause then waits for what the others meet.
    pub may_be_the_events: bool,
    /// Waits between attempts.
    pub waits: &'a Waits,
    /// Most attempts.
    pub attempts_max: Option<u32>,
    /// Oldest age.
    pub age_max: Option<Duration>,
}

impl RetryPolicy {
    /// A policy without rules.
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            of_class: BTreeMap::new(),
            of_status: BTreeMap::new(),
        }
    }

    /// What of the policy applies to a failure; `None` for a success.
    pub fn applied(&self, outcome: &Outcome) -> Option<Applied<'_>> {
        let failure = outcome.failure()?;
        let (source, rule) = self.rule_for(failure);
        let patience = rule.map_or(&self.patience, |rule| &rule.patience);
        let mut then = rule
            .and_then(|rule| rule.then)
            .unwrap_or_else(|| Reaction::usual(outcome));
        if failure.of_part && matches!(then, Reaction::Pause | Reaction::Disable) {
            // The rest of the destination works: it is not stopped for one topic.
            then = Reaction::Retry;
        }
        let is_said = rule.is_some_and(|rule| rule.then.is_some());
        let endurance = match is_said {
            true => None,
            false => Endurance::usual(outcome),
        };
        let is_forbidden = failure.class == FailureClass::Auth && failure.status == Some(403);
        let usual_max = match failure.class {
            FailureClass::Conflict => Some(CONFLICTS_MAX),
            FailureClass::Crashed => Some(CRASHES_MAX),
            _ => None,
        };
        let limits = [patience.attempts_max, usual_max.filter(|_| rule.is_none())];
        Some(Applied {
            source,
            then,
            endurance,
            may_be_the_events: is_forbidden && !is_said,
            waits: &patience.waits,
            attempts_max: limits.into_iter().flatten().min(),
            age_max: patience.age_max,
        })
    }

    /// Decides after an attempt ended with `outcome` at `now`.
    ///
    /// What is tried again is so never earlier than the receiver's `Retry-After`: jitter is only added above
    /// that floor. An attempt that the receiver put off does not count against the maximum.
    pub fn verdict(
        &self,
        tried: Tried,
        outcome: &Outcome,
        now: Timestamp,
        entropy: u64,
    ) -> Verdict {
        let (Some(applied), Some(failure)) = (self.applied(outcome), outcome.failure()) else {
            return Verdict::Settle;
        };
        if applied
            .endurance
            .is_some_and(|endurance| endurance.is_over(tried.streak))
        {
            return Verdict::Pause;
        }
        let forbidden = Forbidden::told_by(tried.streak, tried.put_off);
        let counts = match (applied.then, forbidden) {
            (Reaction::DeadLetter, _) => return Verdict::DeadLetter,
            (Reaction::Pause, Forbidden::Unclear) if applied.may_be_the_events => false,
            (Reaction::Pause, Forbidden::Event) if applied.may_be_the_events => {
                return Verdict::DeadLetter;
            }
            (Reaction::Pause, _) => return Verdict::Pause,
            (Reaction::Disable, _) => return Verdict::Disable,
            (Reaction::Retry, _) => counts(outcome, failure),
        };
        if counts
            && applied
                .attempts_max
                .is_some_and(|max| tried.attempts >= max)
        {
            return Verdict::DeadLetter;
        }
        let floor = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let nth = tried.attempts.saturating_add(tried.put_off);
        let wait = floor.saturating_add(applied.waits.delay(nth, entropy));
        if applied
            .age_max
            .is_some_and(|max| tried.age.saturating_add(wait) > max)
        {
            return Verdict::DeadLetter;
        }
        Verdict::Retry {
            at: now.after(wait),
            counts,
        }
    }

    /// Most attempts that any failure is given; `None` where one is tried for ever. For a delivery whose last
    /// failure nobody knows.
    pub fn attempts_ever(&self) -> Option<u32> {
        let rules = self.of_class.values().chain(self.of_status.values());
        let all = rules.map(|rule| &rule.patience).chain([&self.patience]);
        let each: Option<Vec<u32>> = all.map(|patience| patience.attempts_max).collect();
        each?.into_iter().max()
    }

    fn rule_for(&self, failure: &Failure) -> (Source, Option<&Rule>) {
        let of_status = failure
            .status
            .and_then(|status| Some((Source::Status(status), self.of_status.get(&status)?)));
        let of_class = || {
            let rule = self.of_class.get(&failure.class)?;
            Some((Source::Class(failure.class), rule))
        };
        match of_status.or_else(of_class) {
            Some((source, rule)) => (source, Some(rule)),
            None => (Source::Usual, None),
        }
    }
}

/// Whether an attempt counts: not where the receiver looked at nothing and named a time or had enough, nor
/// where the event only shared a batch with others, nor where we kept it back ourselves.
fn counts(outcome: &Outcome, failure: &Failure) -> bool {
    match outcome {
        Outcome::NotExecuted(_) => {
            failure.retry_after.is_none()
                && !matches!(
                    failure.class,
                    FailureClass::Throttled
                        | FailureClass::BatchTooLarge
                        | FailureClass::Interrupted
                )
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, WaitList};
    use crate::outcome::OutcomeKind;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const SECOND: u64 = 1_000_000;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn patience(attempts_max: Option<u32>) -> Patience {
        let backoff = Backoff::try_new(secs(1), secs(60)).unwrap();
        Patience {
            waits: Waits::Backoff(backoff),
            attempts_max,
            age_max: None,
        }
    }

    fn policy(attempts_max: Option<u32>) -> RetryPolicy {
        RetryPolicy::new(patience(attempts_max))
    }

    fn nth(attempts: u32) -> Tried {
        Tried {
            attempts,
            put_off: 0,
            age: Duration::ZERO,
            streak: Streak::default(),
        }
    }

    fn failure(class: FailureClass) -> Failure {
        Failure::new(class, "no")
    }

    fn outcome(kind: OutcomeKind, failure: Failure) -> Outcome {
        match kind {
            OutcomeKind::Delivered => Outcome::Delivered,
            OutcomeKind::Refused => Outcome::Refused(failure),
            OutcomeKind::NotExecuted => Outcome::NotExecuted(failure),
            OutcomeKind::Unknown => Outcome::Unknown(failure),
        }
    }

    fn usual(class: FailureClass) -> Outcome {
        outcome(class.usual_outcome(), failure(class))
    }

    fn at(wait: u64, counts: bool) -> Verdict {
        Verdict::Retry {
            at: NOW.after(secs(wait)),
            counts,
        }
    }

    #[test]
    fn each_class_has_its_usual_verdict() {
        use FailureClass as Class;
        for class in Class::ALL {
            let expected = match class {
                Class::Auth | Class::Certificate | Class::BlockedAddress => Verdict::Pause,
                Class::Gone => Verdict::Disable,
                Class::NotFound
                | Class::Redirected
                | Class::TooLarge
                | Class::Invalid
                | Class::Mapping => Verdict::DeadLetter,
                Class::Throttled | Class::BatchTooLarge => at(1, false),
                _ => at(1, true),
            };
            let verdict = policy(None).verdict(nth(1), &usual(class), NOW, SECOND);
            assert_eq!(verdict, expected, "{class:?}");
        }
        let kept_back = Outcome::NotExecuted(failure(Class::Interrupted));
        let verdict = policy(None).verdict(nth(1), &kept_back, NOW, SECOND);
        assert_eq!(verdict, at(1, false), "nothing was sent");
        let delivered = policy(None).verdict(nth(1), &Outcome::Delivered, NOW, 0);
        assert_eq!(delivered, Verdict::Settle);
    }

    #[test]
    fn waits_grow_to_the_cap_and_the_last_attempt_is_the_last() {
        let timeout = usual(FailureClass::Timeout);
        for (attempt, attempts_max, entropy, expected) in [
            (1, None, SECOND, at(1, true)),
            (3, None, 4 * SECOND, at(4, true)),
            (1_000_000, None, 60 * SECOND, at(60, true)),
            (2, Some(3), 0, at(0, true)),
            (3, Some(3), 0, Verdict::DeadLetter),
            (4, Some(3), 0, Verdict::DeadLetter),
        ] {
            let verdict = policy(attempts_max).verdict(nth(attempt), &timeout, NOW, entropy);
            assert_eq!(verdict, expected, "attempt {attempt} of {attempts_max:?}");
        }
    }

    #[test]
    fn nothing_is_tried_again_before_the_receiver_wants_it_and_being_put_off_costs_no_attempt() {
        let busy = |wait| {
            let wait = Some(secs(wait));
            Outcome::NotExecuted(failure(FailureClass::Throttled).with_retry_after(wait))
        };
        for (wait, entropy, expected) in [
            (300, 0, at(300, false)),
            (300, SECOND, at(301, false)),
            (1_000_000_000, 0, at(24 * 3600, false)),
        ] {
            // Although it is the last attempt.
            let verdict = policy(Some(1)).verdict(nth(1), &busy(wait), NOW, entropy);
            assert_eq!(verdict, expected);
        }
        let again = Tried {
            put_off: 2,
            ..nth(1)
        };
        let throttled = usual(FailureClass::Throttled);
        let verdict = policy(Some(1)).verdict(again, &throttled, NOW, 4 * SECOND);
        assert_eq!(verdict, at(4, false), "the wait grows all the same");
    }

    #[test]
    fn no_attempt_starts_beyond_the_age_that_is_allowed() {
        let mut policy = policy(None);
        policy.patience.age_max = Some(secs(100));
        let old = |age| Tried {
            age: secs(age),
            ..nth(1)
        };
        let timeout = usual(FailureClass::Timeout);
        let verdict = |age| policy.verdict(old(age), &timeout, NOW, SECOND);
        assert_eq!(verdict(99), at(1, true));
        assert_eq!(verdict(100), Verdict::DeadLetter);
        let wait = failure(FailureClass::Throttled).with_retry_after(Some(secs(101)));
        let put_off = policy.verdict(old(0), &Outcome::NotExecuted(wait), NOW, 0);
        assert_eq!(put_off, Verdict::DeadLetter);
    }

    #[test]
    fn a_status_stands_before_a_class_and_a_class_before_what_is_usual() {
        let rule = |then, attempts_max| Rule {
            then,
            patience: patience(attempts_max),
        };
        let mut policy = policy(None);
        let retry = Some(Reaction::Retry);
        policy
            .of_class
            .insert(FailureClass::Auth, rule(retry, Some(3)));
        policy
            .of_status
            .insert(403, rule(Some(Reaction::DeadLetter), None));
        policy.of_status.insert(503, rule(None, Some(2)));
        let answer = |class, status| usual_with(class, status);
        for (outcome, attempt, expected, source) in [
            (
                answer(FailureClass::Auth, 403),
                1,
                Verdict::DeadLetter,
                Source::Status(403),
            ),
            (
                answer(FailureClass::Auth, 401),
                2,
                at(0, true),
                Source::Class(FailureClass::Auth),
            ),
            (
                answer(FailureClass::Auth, 401),
                3,
                Verdict::DeadLetter,
                Source::Class(FailureClass::Auth),
            ),
            (
                answer(FailureClass::Unavailable, 503),
                1,
                at(0, true),
                Source::Status(503),
            ),
            (
                answer(FailureClass::Unavailable, 503),
                2,
                Verdict::DeadLetter,
                Source::Status(503),
            ),
            (
                answer(FailureClass::Unavailable, 500),
                9,
                at(0, true),
                Source::Usual,
            ),
        ] {
            assert_eq!(policy.verdict(nth(attempt), &outcome, NOW, 0), expected);
            assert_eq!(policy.applied(&outcome).unwrap().source, source);
        }
    }

    fn usual_with(class: FailureClass, status: i32) -> Outcome {
        outcome(class.usual_outcome(), failure(class).with_status(status))
    }

    #[test]
    fn a_list_of_waits_is_followed() {
        let list = WaitList::try_new(&[secs(5), secs(300)]).unwrap();
        let mut policy = policy(None);
        policy.patience.waits = Waits::List(list);
        let timeout = usual(FailureClass::Timeout);
        for (attempt, wait) in [(1, 5), (2, 300), (3, 300)] {
            let verdict = policy.verdict(nth(attempt), &timeout, NOW, 0);
            assert_eq!(verdict, at(wait, true));
        }
    }

    #[test]
    fn a_part_that_fails_never_stops_the_whole_destination() {
        let forbidden = failure(FailureClass::Auth).of_part();
        let verdict = policy(None).verdict(nth(1), &Outcome::NotExecuted(forbidden), NOW, 0);
        assert_eq!(verdict, at(0, true));
    }

    #[test]
    fn conflicts_and_crashes_end_by_themselves_unless_somebody_says_otherwise() {
        for (class, max) in [
            (FailureClass::Conflict, CONFLICTS_MAX),
            (FailureClass::Crashed, CRASHES_MAX),
        ] {
            let outcome = usual(class);
            let mut policy = policy(None);
            let before = policy.verdict(nth(max - 1), &outcome, NOW, 0);
            assert_eq!(before, at(0, true));
            let last = policy.verdict(nth(max), &outcome, NOW, 0);
            assert_eq!(last, Verdict::DeadLetter);
            let for_ever = Rule {
                then: None,
                patience: patience(None),
            };
            policy.of_class.insert(class, for_ever);
            assert_eq!(policy.verdict(nth(max), &outcome, NOW, 0), at(0, true));
        }
    }

    #[test]
    fn what_nobody_knows_the_last_failure_of_gets_the_most_that_any_failure_gets() {
        let mut policy = policy(Some(3));
        assert_eq!(policy.attempts_ever(), Some(3));
        let rule = |attempts_max| Rule {
            then: None,
            patience: patience(attempts_max),
        };
        policy.of_status.insert(503, rule(Some(10)));
        assert_eq!(policy.attempts_ever(), Some(10));
        policy.of_class.insert(FailureClass::Timeout, rule(None));
        assert_eq!(policy.attempts_ever(), None);
    }
}
