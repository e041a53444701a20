//! Time as a value: microseconds since the Unix epoch, and the port through which it is handed in.

use std::time::Duration;

/// A wall-clock instant in microseconds since the Unix epoch (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch; earlier than everything Wayhold records.
    pub const EPOCH: Self = Self(0);

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This instant and a while later; saturates instead of wrapping.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// How long ago `earlier` was; zero when it lies in the future (the wall clock may jump).
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Where time comes from. Production reads the system's clock; tests hand in their own.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock now. It may jump either way; waits never rest on differences of two readings.
    fn now(&self) -> Timestamp;
}
