//! How long each part takes and how many events that means. Pure.

use std::time::Duration;

use super::super::exit::Failure;
use crate::config::quantity::show_duration;

/// Fastest: a day in less than half a minute.
pub const SPEED_MAX: i64 = 3_600;

/// Most events a second: what one process can send and judge beside the server that it drills.
pub const RATE_MAX: i64 = 20_000;

/// Most events of a drill, since the judge keeps all of them in mind: some 100 bytes each.
pub const EVENTS_MAX: u64 = 4_000_000;

/// How long all is well before the outage, and again after it.
const WELL: Duration = Duration::from_secs(60);

/// Shortest part of a drill, in real time: its percentiles are to mean something.
const PART_MIN: Duration = Duration::from_secs(1);

/// A drill's parts, in real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How long all is well before the outage, and the load goes on after it.
    pub well: Duration,
    /// How long the destination is away.
    pub away: Duration,
    /// Events a second.
    pub rate: u32,
    speed: u32,
}

impl Plan {
    /// A drill in which the destination is away for `away` at this speed.
    ///
    /// # Errors
    /// When that is too short to measure anything, or more than can be judged.
    pub fn new(away: Duration, speed: u32, rate: u32) -> Result<Self, Failure> {
        let plan = Self {
            well: (WELL / speed.max(1)).max(PART_MIN),
            away: away / speed.max(1),
            rate,
            speed: speed.max(1),
        };
        if plan.away < PART_MIN {
            return Err(Failure::usage(format!(
                "--for: expected at least {} at this --speed, so that the outage lasts a second",
                show_duration(PART_MIN * plan.speed)
            )));
        }
        if plan.events() > EVENTS_MAX {
            return Err(Failure::usage(format!(
                "--for: {} events would be sent, and a drill judges at most {EVENTS_MAX}; \
                 give a higher --speed or a lower --rate",
                plan.events()
            )));
        }
        Ok(plan)
    }

    /// Events that are sent, as long as each part lasts as planned.
    pub fn events(&self) -> u64 {
        let seconds = (self.well * 2 + self.away).as_secs();
        seconds.saturating_mul(u64::from(self.rate))
    }

    /// A duration of the server's as the drill sets it: divided, and not below the shortest that it takes.
    pub fn divided(&self, usual: Duration) -> Duration {
        (usual / self.speed).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::exit::Exit;
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn speed_divides_durations_and_not_the_rate() {
        let plan = Plan::new(30 * MINUTE, 60, 1_000).unwrap();
        assert_eq!(plan.away, Duration::from_secs(30));
        assert_eq!(plan.well, Duration::from_secs(1));
        assert_eq!(plan.events(), 32_000);
        assert_eq!(plan.divided(5 * MINUTE), Duration::from_secs(5));
        assert_eq!(plan.divided(Duration::from_millis(3)).as_millis(), 1);
        let plan = Plan::new(30 * MINUTE, 1, 1_000).unwrap();
        assert_eq!((plan.well, plan.away), (MINUTE, 30 * MINUTE));
    }

    #[test]
    fn what_cannot_be_measured_or_judged_is_refused_with_words() {
        for (away, speed, rate, words) in [
            (MINUTE, 61, 1_000, "--for: expected at least 61s"),
            (Duration::ZERO, 1, 1, "--for: expected at least 1s"),
            (24 * 60 * MINUTE, 1, 1_000, "a drill judges at most"),
        ] {
            let failure = Plan::new(away, speed, rate).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(words), "{failure:?}");
        }
    }
}
