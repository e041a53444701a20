//! How many attempts a destination may see in a time: a token bucket whose bucket is nearly flat, so that no
//! second ever sees much more than its share, whatever had gathered before it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::time::Timestamp;

/// Highest rate, in attempts a second: far above what one lane reaches.
pub const RATE_MAX: u32 = 1_000_000;

/// What may go at once beyond an even pace, as a share of one second's attempts. A second's window sees at most
/// so much more than its rate, and clocks and networks between us and the receiver need room as well.
const BURST_SHARE: f64 = 0.03;

/// So many attempts in such a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    attempts: u32,
    per: Per,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Per {
    Second,
    Minute,
    Hour,
}

/// A text that is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected attempts in a time, such as \"100/s\", \"30/m\" or \"500/h\", at most 1000000/s")]
pub struct InvalidRate;

impl Per {
    fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Second => 's',
            Self::Minute => 'm',
            Self::Hour => 'h',
        }
    }
}

impl Rate {
    /// Nanoseconds from one attempt to the next at an even pace.
    fn interval(self) -> u64 {
        self.per.seconds() * NANOS_PER_SECOND / u64::from(self.attempts)
    }

    /// Attempts a second.
    pub fn per_second(self) -> f64 {
        f64::from(self.attempts) / Duration::from_secs(self.per.seconds()).as_secs_f64()
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let (attempts, per) = text.split_once('/').ok_or(InvalidRate)?;
        let per = match per.trim() {
            "s" => Per::Second,
            "m" => Per::Minute,
            "h" => Per::Hour,
            _ => return Err(InvalidRate),
        };
        let attempts = attempts.trim();
        if !attempts.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidRate);
        }
        let attempts: u32 = attempts.parse().map_err(|_| InvalidRate)?;
        let rate = Self { attempts, per };
        let most = u64::from(RATE_MAX) * per.seconds();
        match attempts {
            0 => Err(InvalidRate),
            _ if u64::from(attempts) > most => Err(InvalidRate),
            _ => Ok(rate),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.attempts, self.per.letter())
    }
}

/// Lets attempts through at a rate. Kept as the time at which an even pace would have the next attempt
/// (the generic cell rate algorithm), so it holds no tokens that could be counted wrongly.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    // All in nanoseconds.
    interval: u64,
    tolerance: u64,
    next: u64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate) -> Self {
        let interval = rate.interval();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of at most a million"
        )]
        let beyond_the_first = (rate.per_second() * BURST_SHARE) as u64;
        Self {
            rate,
            interval,
            tolerance: interval * beyond_the_first,
            next: 0,
        }
    }

    /// The same bucket at another rate: what it let through before still counts, so that whoever changes the
    /// rate again and again gets nothing beyond it. What waits for its time waits no longer than one attempt
    /// of the new rate.
    #[must_use]
    pub fn at(&self, rate: Rate, now: Timestamp) -> Self {
        let bucket = Self::new(rate);
        let now = now.as_micros().saturating_mul(NANOS_PER_MICRO);
        Self {
            next: self.next.min(now.saturating_add(bucket.interval)),
            ..bucket
        }
    }

    /// Its rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// When the next attempt may start; a time that has passed means now.
    pub fn ready_at(&self) -> Timestamp {
        let earliest = self.next.saturating_sub(self.tolerance);
        Timestamp::from_micros(earliest.div_ceil(NANOS_PER_MICRO))
    }

    /// Lets one attempt through at `now`, if it may go.
    pub fn take(&mut self, now: Timestamp) -> bool {
        if now < self.ready_at() {
            return false;
        }
        let now = now.as_micros().saturating_mul(NANOS_PER_MICRO);
        self.next = self.next.max(now).saturating_add(self.interval);
        true
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MICRO: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_shown() {
        for text in ["1/s", "100/s", "30/m", "500/h", "1000000/s", "60000000/m"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!(" 5 / m ".parse::<Rate>().unwrap().to_string(), "5/m");
        for text in [
            "",
            "100",
            "/s",
            "0/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "1/d",
            "1/",
            "1000001/s",
            "99999999999/h",
        ] {
            assert_eq!(text.parse::<Rate>(), Err(InvalidRate), "{text:?}");
        }
    }

    /// Whoever asks as often as the clock ticks gets the rate, and no window of a second more than 5 % above
    /// it, wherever the window begins: after a pause too, when everything that waited is there at once.
    #[test]
    fn no_second_sees_much_more_than_its_share() {
        for (text, tick) in [
            ("1/s", 1_000),
            ("10/s", 1_000),
            ("100/s", 250),
            ("5000/s", 100),
        ] {
            let rate: Rate = text.parse().unwrap();
            let mut bucket = Bucket::new(rate);
            let mut taken = Vec::new();
            let start = 1_700_000_000_000_000;
            for step in 0..4_000_000 / tick {
                let now = start + step * tick;
                // A second in which nobody asks.
                if (1_000_000..2_000_000).contains(&(now - start)) {
                    continue;
                }
                while bucket.take(Timestamp::from_micros(now)) {
                    taken.push(now);
                }
            }
            let mut last = 0;
            for (first, begin) in taken.iter().enumerate() {
                while taken.get(last).is_some_and(|at| *at < begin + 1_000_000) {
                    last += 1;
                }
                let most = rate.per_second() * 1.05;
                let in_window = f64::from(u32::try_from(last - first).unwrap());
                assert!(
                    in_window <= most.max(1.0),
                    "{text}: {in_window} in one second"
                );
            }
            let expected = rate.per_second() * 3.0;
            let got = f64::from(u32::try_from(taken.len()).unwrap());
            assert!(got >= expected * 0.98, "{text}: {got} of {expected}");
        }
    }

    #[test]
    fn a_bucket_at_another_rate_gives_nothing_beyond_either() {
        let (slow, fast) = ("1/m".parse().unwrap(), "10/s".parse().unwrap());
        let mut bucket = Bucket::new(slow);
        let now = Timestamp::from_micros(60_000_000);
        assert!(bucket.take(now));
        // However often it is changed, one attempt was let through.
        for rate in [slow, fast, slow, fast] {
            bucket = bucket.at(rate, now);
            assert!(!bucket.take(now), "{rate}");
        }
        // And nobody waits for a minute that is no more.
        assert_eq!(bucket.ready_at(), Timestamp::from_micros(60_100_000));
    }

    #[test]
    fn it_says_when_the_next_may_start() {
        let mut bucket = Bucket::new("2/s".parse().unwrap());
        let now = Timestamp::from_micros(1_000_000);
        assert!(bucket.ready_at() <= now);
        assert!(bucket.take(now));
        assert!(!bucket.take(now));
        assert_eq!(bucket.ready_at(), Timestamp::from_micros(1_500_000));
        assert!(!bucket.take(Timestamp::from_micros(1_499_999)));
        assert!(bucket.take(Timestamp::from_micros(1_500_000)));
    }
}
