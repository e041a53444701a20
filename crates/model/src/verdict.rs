//! What policy decides after an attempt: settle, try again, or give up. A pure function of the
//! attempt, its outcome, the time and a random number.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::outcome::Outcome;
use crate::time::Timestamp;

/// Longest `Retry-After` that is obeyed; a receiver cannot silence a destination for longer.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// How a destination's failed attempts are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Most attempts before the delivery becomes a dead letter; `None` tries for ever.
    pub attempts_max: Option<u32>,
}

/// What happens next to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Record it as delivered.
    Settle,
    /// Try again, not before this time.
    RetryAt(Timestamp),
    /// Give it up and keep it as a dead letter.
    DeadLetter,
}

impl RetryPolicy {
    /// Decides after attempt number `attempt` (from 1) ended with `outcome` at `now`.
    ///
    /// A refusal is final. Everything else is tried again until `attempts_max`, never earlier than
    /// the receiver's `Retry-After`: jitter is only added above that floor.
    pub fn verdict(
        &self,
        attempt: u32,
        outcome: &Outcome,
        now: Timestamp,
        entropy: u64,
    ) -> Verdict {
        let failure = match outcome {
            Outcome::Delivered => return Verdict::Settle,
            Outcome::Refused(_) => return Verdict::DeadLetter,
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure,
        };
        if self.attempts_max.is_some_and(|max| attempt >= max) {
            return Verdict::DeadLetter;
        }
        let floor = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        Verdict::RetryAt(now.after(floor).after(self.backoff.delay(attempt, entropy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::FailureClass;
    use crate::outcome::Failure;

    fn policy(attempts_max: Option<u32>) -> RetryPolicy {
        let backoff = Backoff::try_new(Duration::from_secs(1), Duration::from_secs(60)).unwrap();
        RetryPolicy {
            backoff,
            attempts_max,
        }
    }

    fn failure(retry_after: Option<u64>) -> Failure {
        Failure::new(FailureClass::Unavailable, "no")
            .with_retry_after(retry_after.map(Duration::from_secs))
    }

    #[test]
    fn each_outcome_has_its_verdict() {
        let now = Timestamp::from_micros(1_000_000);
        let at = |secs: u64| Verdict::RetryAt(now.after(Duration::from_secs(secs)));
        let second = 1_000_000;
        for (outcome, attempt, attempts_max, entropy, expected) in [
            (Outcome::Delivered, 1, None, 0, Verdict::Settle),
            (
                Outcome::Refused(failure(None)),
                1,
                None,
                0,
                Verdict::DeadLetter,
            ),
            (Outcome::NotExecuted(failure(None)), 1, None, second, at(1)),
            (Outcome::Unknown(failure(None)), 3, None, 4 * second, at(4)),
            (
                Outcome::Unknown(failure(None)),
                1_000_000,
                None,
                60 * second,
                at(60),
            ),
            (Outcome::Unknown(failure(None)), 2, Some(3), 0, at(0)),
            (
                Outcome::Unknown(failure(None)),
                3,
                Some(3),
                0,
                Verdict::DeadLetter,
            ),
            (
                Outcome::NotExecuted(failure(Some(300))),
                1,
                None,
                0,
                at(300),
            ),
            (
                Outcome::NotExecuted(failure(Some(300))),
                1,
                None,
                second,
                at(301),
            ),
            (
                Outcome::NotExecuted(failure(Some(1_000_000_000))),
                1,
                None,
                0,
                at(24 * 3600),
            ),
        ] {
            assert_eq!(
                policy(attempts_max).verdict(attempt, &outcome, now, entropy),
                expected,
                "{outcome:?}"
            );
        }
    }
}
