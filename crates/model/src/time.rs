//! Time as a value: microseconds since the Unix epoch, and the port through which it is handed in.

use std::fmt;
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

    /// This much earlier, at most back to the epoch.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// How long ago `earlier` was; zero when it lies in the future (the wall clock may jump).
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with microseconds: `2026-01-31T08:05:00.000001Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
        )
    }
}

/// Year, month and day of a number of days since the epoch, by Howard Hinnant's `civil_from_days`:
/// years begin in March, so that the leap day is the last one, and eras of 400 years repeat.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next_year, month, day)
}

/// Where time comes from. Production reads the system's clock; tests hand in their own.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock now. It may jump either way; waits never rest on differences of two readings.
    fn now(&self) -> Timestamp;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_rfc_3339() {
        // Seconds as `date -u -d TEXT +%s` gives them.
        for (seconds, micros, text) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, 1, "2000-02-28T23:59:59.000001Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, 999_999, "2024-02-29T23:59:59.999999Z"),
            (1_735_689_600, 0, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(
                Timestamp::from_micros(seconds * 1_000_000 + micros).to_string(),
                text
            );
        }
    }
}
