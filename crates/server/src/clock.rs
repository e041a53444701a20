//! The system's wall clock and randomness, behind the ports through which everything else takes them.

use std::time::{Duration, UNIX_EPOCH};

use wayhold_model::{Clock, Timestamp};

/// The system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the wall clock"
        )]
        let since_epoch = std::time::SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 reads as the epoch; store time never moves backwards from there.
        let since_epoch = since_epoch.unwrap_or(Duration::ZERO);
        Timestamp::from_micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Where random numbers come from; tests hand in their own.
pub trait Entropy: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next(&self) -> u64;
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn next(&self) -> u64 {
        // Without entropy only jitter suffers here: fall back to none rather than end the process.
        getrandom::u64().unwrap_or_default()
    }
}
