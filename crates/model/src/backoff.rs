//! How long to wait before the next attempt: exponential backoff with full jitter.

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
    /// From one second to a minute: a short stumble costs little, a long outage is asked after often
    /// enough.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(60),
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

    /// The longest wait that may follow attempt number `attempt` (from 1).
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(63);
        let base = u64::try_from(self.base.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(base.saturating_mul(1 << doublings)).min(self.cap)
    }

    /// The wait after attempt number `attempt` (from 1), spread evenly over `[0, ceiling]` by `entropy`.
    pub fn delay(&self, attempt: u32, entropy: u64) -> Duration {
        let ceiling = u64::try_from(self.ceiling(attempt).as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(
            entropy
                .checked_rem(ceiling.saturating_add(1))
                .unwrap_or(entropy),
        )
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
        assert_eq!(backoff.delay(4, 0), Duration::ZERO);
        assert_eq!(backoff.delay(4, 8_000), Duration::from_millis(8));
        for entropy in [u64::MAX, u64::MAX / 2, 8_001, 12_345] {
            assert!(backoff.delay(4, entropy) <= Duration::from_millis(8));
        }
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
