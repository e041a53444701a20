//! What may go on at a destination for a while, and pauses it when it goes on for longer: then it is no passing
//! trouble, and no fault of the single event either.

use std::time::Duration;

use crate::class::FailureClass;
use crate::outcome::Outcome;

/// Not founds in a row, without an answer that took an event, after which it is the address that is wrong and not
/// the events: the destination pauses, and they stay pending.
pub const NOT_FOUND_MAX: u32 = 10;

/// How long a topic may be missing, or a name not exist, before the destination pauses: what is being set up or
/// moved is there by then, and what is misspelt never will be.
pub const MISSING_TOPIC_GRACE: Duration = Duration::from_secs(60);

/// The same of a name.
pub const NO_SUCH_NAME_GRACE: Duration = Duration::from_secs(300);

/// How long a delivery is a sign that the destination takes our credentials, and a 403 perhaps one of a single event.
pub const DELIVERED_LATELY: Duration = Duration::from_secs(300);

/// So many 403 in a row, without a delivery in between, are no matter of single events.
pub const FORBIDDEN_MAX: u32 = 3;

/// How long a failure may go on at a destination before it pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endurance {
    /// So often in a row.
    Times(u32),
    /// So long.
    Lasting(Duration),
}

impl Endurance {
    /// Where nobody configured what follows; `None` for what may go on for ever, or pauses at once.
    pub fn usual(outcome: &Outcome) -> Option<Self> {
        match (outcome, outcome.failure()?) {
            (_, failure) if failure.of_part => None,
            (Outcome::Refused(_), failure) if failure.class == FailureClass::NotFound => {
                Some(Self::Times(NOT_FOUND_MAX))
            }
            (_, failure) if failure.class == FailureClass::MissingTopic => {
                Some(Self::Lasting(MISSING_TOPIC_GRACE))
            }
            (_, failure) if failure.class == FailureClass::Dns && failure.no_such_name => {
                Some(Self::Lasting(NO_SUCH_NAME_GRACE))
            }
            _ => None,
        }
    }

    /// Whether this much of it is too much.
    pub(crate) fn is_over(self, streak: Streak) -> bool {
        match self {
            Self::Times(times) => streak.times >= times,
            Self::Lasting(time) => streak.lasting >= time,
        }
    }
}

/// How long a class of failure has been all that came of a destination, the attempt that ended included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streak {
    /// So often.
    pub times: u32,
    /// Since so long.
    pub lasting: Duration,
    /// How long ago the destination took an event; `None` where it took none since it was started, resumed or
    /// configured anew.
    pub delivered: Option<Duration>,
}

/// Whom a 403 concerns, which a receiver answers for what we may not do at all, and for what we may not do with this
/// one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidden {
    /// Everything that we send.
    Destination,
    /// Nobody knows yet: the event is tried again, and whatever the others meet tells.
    Unclear,
    /// This event alone: the destination took another one since this was forbidden before.
    Event,
}

impl Forbidden {
    /// What one says after so many attempts at its event that did not count.
    pub(crate) fn told_by(streak: Streak, put_off: u32) -> Self {
        let lately = |ago: Duration| ago <= DELIVERED_LATELY;
        match (streak.times, put_off) {
            (FORBIDDEN_MAX.., _) => Self::Destination,
            _ if !streak.delivered.is_some_and(lately) => Self::Destination,
            (0..=1, 1..) => Self::Event,
            _ => Self::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, Waits};
    use crate::outcome::{Failure, OutcomeKind};
    use crate::time::Timestamp;
    use crate::verdict::{Patience, Reaction, RetryPolicy, Rule, Tried, Verdict};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const SECOND: u64 = 1_000_000;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn policy() -> RetryPolicy {
        RetryPolicy::new(Patience {
            waits: Waits::Backoff(Backoff::try_new(secs(1), secs(60)).unwrap()),
            attempts_max: None,
            age_max: None,
        })
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

    fn usual(class: FailureClass) -> Outcome {
        match class.usual_outcome() {
            OutcomeKind::Refused => Outcome::Refused(failure(class)),
            _ => Outcome::NotExecuted(failure(class)),
        }
    }

    fn at(wait: u64, counts: bool) -> Verdict {
        Verdict::Retry {
            at: NOW.after(secs(wait)),
            counts,
        }
    }

    #[test]
    fn what_goes_on_and_on_at_the_whole_destination_pauses_it_unless_somebody_said_otherwise() {
        let not_found = usual(FailureClass::NotFound);
        let missing = usual(FailureClass::MissingTopic);
        let no_name = Outcome::NotExecuted(failure(FailureClass::Dns).of_no_such_name());
        let minute = MISSING_TOPIC_GRACE.as_secs();
        let five = NO_SUCH_NAME_GRACE.as_secs();
        for (outcome, times, lasting, expected) in [
            (&not_found, 1, 0, Verdict::DeadLetter),
            (
                &not_found,
                NOT_FOUND_MAX - 1,
                1_000_000,
                Verdict::DeadLetter,
            ),
            (&not_found, NOT_FOUND_MAX, 0, Verdict::Pause),
            (&missing, 1_000, minute - 1, at(1, true)),
            (&missing, 2, minute, Verdict::Pause),
            (&no_name, 1_000, five - 1, at(1, true)),
            (&no_name, 2, five, Verdict::Pause),
            // A resolver that cannot be asked is an outage like another.
            (&usual(FailureClass::Dns), 1_000, 1_000_000, at(1, true)),
            (&usual(FailureClass::Connect), 1_000, 1_000_000, at(1, true)),
            // A missing part is no reason to stop the rest.
            (
                &Outcome::NotExecuted(failure(FailureClass::MissingTopic).of_part()),
                1_000,
                1_000_000,
                at(1, true),
            ),
        ] {
            let lasting = secs(lasting);
            let tried = Tried {
                streak: Streak {
                    times,
                    lasting,
                    delivered: None,
                },
                ..nth(1)
            };
            let verdict = policy().verdict(tried, outcome, NOW, SECOND);
            assert_eq!(verdict, expected, "{outcome:?} {times} {lasting:?}");
        }
        let long = Tried {
            streak: Streak {
                times: 1_000,
                lasting: secs(1_000_000),
                delivered: None,
            },
            ..nth(1)
        };
        let mut policy = policy();
        let patience = policy.patience.clone();
        let then = |then| Rule {
            then: Some(then),
            patience: patience.clone(),
        };
        policy
            .of_class
            .insert(FailureClass::MissingTopic, then(Reaction::Retry));
        policy
            .of_class
            .insert(FailureClass::NotFound, then(Reaction::DeadLetter));
        assert_eq!(policy.verdict(long, &missing, NOW, SECOND), at(1, true));
        assert_eq!(
            policy.verdict(long, &not_found, NOW, SECOND),
            Verdict::DeadLetter
        );
    }

    #[test]
    fn a_403_is_the_events_own_only_once_others_were_delivered_after_it() {
        let forbidden = |status: u32| {
            let failure = failure(FailureClass::Auth).with_status(i32::try_from(status).unwrap());
            Outcome::Refused(failure)
        };
        let late = DELIVERED_LATELY.as_secs() + 1;
        let again = |wait| at(wait, false);
        for (status, times, delivered, put_off, expected) in [
            // Nothing was ever taken: it is our credentials.
            (403, 1, None, 0, Verdict::Pause),
            (403, 1, Some(late), 0, Verdict::Pause),
            (403, 1, Some(late), 1, Verdict::Pause),
            // Something was: the event is tried again first.
            (403, 1, Some(2), 0, again(1)),
            (403, 2, Some(2), 0, again(1)),
            // Nobody else was delivered since then.
            (403, 2, Some(20), 1, again(1)),
            (403, 3, Some(20), 2, Verdict::Pause),
            (403, 3, Some(2), 0, Verdict::Pause),
            // Somebody was.
            (403, 1, Some(2), 1, Verdict::DeadLetter),
            // Others that mean us say so at once.
            (401, 1, Some(2), 0, Verdict::Pause),
            (402, 1, Some(2), 1, Verdict::Pause),
        ] {
            let tried = Tried {
                put_off,
                streak: Streak {
                    times,
                    delivered: delivered.map(secs),
                    ..Streak::default()
                },
                ..nth(1)
            };
            let verdict = policy().verdict(tried, &forbidden(status), NOW, SECOND);
            assert_eq!(
                verdict, expected,
                "{status} {times} {delivered:?} {put_off}"
            );
            let mut configured = policy();
            let then = Some(Reaction::Pause);
            let patience = configured.patience.clone();
            configured.of_status.insert(403, Rule { then, patience });
            if status == 403 {
                let verdict = configured.verdict(tried, &forbidden(403), NOW, SECOND);
                assert_eq!(verdict, Verdict::Pause, "somebody said so");
            }
        }
    }
}
