//! A lane's own time: it starts at the wall clock's reading and then follows the monotonic clock. Every
//! due time inside a lane is in it, so a wall clock that jumps neither stalls a retry nor hurries one;
//! only what is stored is turned into wall-clock time, and back after a restart.

use std::time::Duration;

use tokio::time::Instant;
use wayhold_model::Timestamp;
use wayhold_model::verdict::RETRY_AFTER_MAX;

/// The time of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    origin: Timestamp,
    started: Instant,
}

impl Steady {
    /// Lane time that begins at `wall`.
    pub(super) fn new(wall: Timestamp) -> Self {
        Self {
            origin: wall,
            started: Instant::now(),
        }
    }

    /// Lane time at a monotonic instant.
    pub(super) fn at(&self, instant: Instant) -> Timestamp {
        self.origin
            .after(instant.saturating_duration_since(self.started))
    }

    /// The monotonic instant of a lane time.
    pub(super) fn instant(&self, at: Timestamp) -> Instant {
        self.started + at.since(self.origin).min(HORIZON)
    }

    /// Lane time of a stored wall-clock time. However the wall clock stands, it is not further away than
    /// any wait that policy gives.
    pub(super) fn from_wall(at: Timestamp, wall: Timestamp, now: Timestamp) -> Timestamp {
        now.after(at.since(wall).min(RETRY_AFTER_MAX.saturating_mul(2)))
    }

    /// Wall-clock time of a lane time, to be stored or shown.
    pub(super) fn to_wall(at: Timestamp, wall: Timestamp, now: Timestamp) -> Timestamp {
        wall.after(at.since(now))
    }
}

/// Longest sleep asked of the runtime at once; sleeping again costs nothing.
const HORIZON: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Timestamp {
        Timestamp::from_micros(secs * 1_000_000)
    }

    #[test]
    fn a_stored_time_is_as_far_away_as_it_was_and_never_absurdly_far() {
        for (at, wall, now, expected) in [
            (secs(130), secs(100), secs(7), secs(37)),
            // Due in the past, or the wall clock went forward: now.
            (secs(90), secs(100), secs(7), secs(7)),
            // The wall clock went back by years: bounded by the longest wait of policy.
            (
                secs(900_000_000),
                secs(100),
                secs(7),
                secs(7 + 2 * 24 * 3600),
            ),
        ] {
            assert_eq!(Steady::from_wall(at, wall, now), expected);
        }
        assert_eq!(Steady::to_wall(secs(37), secs(100), secs(7)), secs(130));
    }
}
