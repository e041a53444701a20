//! How long to wait before the next attempt: exponential backoff with full jitter, or a list of times.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Exponential backoff with full jitter: `random(0, min(cap, base * 2^n))`, after the AWS Builders'
/// Library's "Timeouts, retries, and backoff with jitter"; saturating, so it never overflows however
/// long an outage lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Default for Backoff {
    /// From a second, since most failures pass at once, to five minutes: a key that failed in an outage is not
    /// left waiting long after it, and a receiver that always fails sees few attempts.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(300),
        }
    }
}

/// A backoff that would spin or never grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidBackoff {
    /// A base of zero retries in a hot loop.
    #[error("expected a first delay above zero")]
    ZeroBase,
    /// A cap below the base contradicts it.
    #[error("expected a maximum delay that is not below the first delay")]
    CapBelowBase,
}

impl Backoff {
    /// Waits that start around `base` and never exceed `cap`.
    ///
    /// # Errors
    /// When `base` is zero or `cap` is below it.
    pub fn try_new(base: Duration, cap: Duration) -> Result<Self, InvalidBackoff> {
        if base.is_zero() {
            return Err(InvalidBackoff::ZeroBase);
        }
        if cap < base {
            return Err(InvalidBackoff::CapBelowBase);
        }
        Ok(Self { base, cap })
    }

    /// The longest first wait.
    pub fn base(&self) -> Duration {
        self.base
    }

    /// The longest wait of all.
    pub fn cap(&self) -> Duration {
        self.cap
    }

    /// The longest wait that may follow attempt number `attempt` (from 1).
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(63);
        let base = u64::try_from(self.base.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(base.saturating_mul(1 << doublings)).min(self.cap)
    }
}

/// Waits between attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Doubling, with full jitter.
    Backoff(Backoff),
    /// One after the other; the last one repeats.
    List(WaitList),
}

/// Times to wait, at least one and none of them zero. Up to a tenth is added to each, so that what failed
/// together does not come back together. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitList(Arc<[Duration]>);

/// A list of waits that would spin or says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidWaits {
    /// There is nothing to wait for.
    #[error("expected at least one time to wait")]
    Empty,
    /// A wait of zero retries in a hot loop.
    #[error("expected times above zero")]
    Zero,
}

impl WaitList {
    /// Waits of these lengths, in this order.
    ///
    /// # Errors
    /// When there is none, or one is zero.
    pub fn try_new(waits: &[Duration]) -> Result<Self, InvalidWaits> {
        if waits.is_empty() {
            return Err(InvalidWaits::Empty);
        }
        if waits.iter().any(Duration::is_zero) {
            return Err(InvalidWaits::Zero);
        }
        Ok(Self(waits.into()))
    }

    /// The wait after attempt number `attempt` (from 1), without what is added to it.
    fn after(&self, attempt: u32) -> Duration {
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        let wait = self.0.get(index).or(self.0.last());
        wait.copied().unwrap_or_default()
    }
}

impl Waits {
    /// The shortest and the longest wait that may follow attempt number `attempt` (from 1).
    pub fn range(&self, attempt: u32) -> (Duration, Duration) {
        match self {
            Self::Backoff(backoff) => (Duration::ZERO, backoff.ceiling(attempt)),
            Self::List(list) => {
                let wait = list.after(attempt);
                (wait, wait.saturating_add(wait / 10))
            }
        }
    }

    /// The wait after attempt number `attempt` (from 1), spread evenly over its range by `entropy`.
    pub fn delay(&self, attempt: u32, entropy: u64) -> Duration {
        let (least, most) = self.range(attempt);
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
        let extra = entropy
            .checked_rem(span.saturating_add(1))
            .unwrap_or(entropy);
        least.saturating_add(Duration::from_micros(extra))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_stay_there_for_ever() {
        let backoff = Backoff::try_new(Duration::from_secs(1), Duration::from_secs(3600)).unwrap();
        let ceilings: Vec<_> = [1, 2, 3, 12, 13, 14, 64, 65, 10_000, u32::MAX]
            .map(|attempt| backoff.ceiling(attempt).as_secs())
            .into();
        assert_eq!(
            ceilings,
            [1, 2, 4, 2048, 3600, 3600, 3600, 3600, 3600, 3600]
        );
    }

    #[test]
    fn jitter_stays_within_the_ceiling_and_reaches_both_ends() {
        let backoff = Backoff::try_new(Duration::from_millis(1), Duration::from_millis(8)).unwrap();
        let backoff = Waits::Backoff(backoff);
        assert_eq!(backoff.delay(4, 0), Duration::ZERO);
        assert_eq!(backoff.delay(4, 8_000), Duration::from_millis(8));
        for entropy in [u64::MAX, u64::MAX / 2, 8_001, 12_345] {
            assert!(backoff.delay(4, entropy) <= Duration::from_millis(8));
        }
    }

    #[test]
    fn a_list_is_gone_through_once_and_its_last_wait_repeats() {
        let secs = Duration::from_secs;
        let list = WaitList::try_new(&[secs(10), secs(300), secs(7_200)]).unwrap();
        let waits = Waits::List(list);
        for (attempt, least) in [(1, 10), (2, 300), (3, 7_200), (4, 7_200), (u32::MAX, 7_200)] {
            let most = secs(least) + secs(least) / 10;
            assert_eq!(waits.range(attempt), (secs(least), most));
            assert_eq!(waits.delay(attempt, 0), secs(least));
            for entropy in [1, 12_345, u64::MAX] {
                let wait = waits.delay(attempt, entropy);
                assert!(wait >= secs(least) && wait <= most, "{wait:?}");
            }
        }
        assert_eq!(WaitList::try_new(&[]), Err(InvalidWaits::Empty));
        let spins = WaitList::try_new(&[secs(1), Duration::ZERO]);
        assert_eq!(spins, Err(InvalidWaits::Zero));
    }

    #[test]
    fn a_backoff_that_would_spin_cannot_be_made() {
        assert_eq!(
            Backoff::try_new(Duration::ZERO, Duration::from_secs(1)),
            Err(InvalidBackoff::ZeroBase)
        );
        assert_eq!(
            Backoff::try_new(Duration::from_secs(2), Duration::from_secs(1)),
            Err(InvalidBackoff::CapBelowBase)
        );
    }
}
