//! The breaker of one destination: it ends the noise of an outage and lets one probe through when the
//! time is right, so that recovery is no thundering herd.
//!
//! ```text
//! closed --(failures in a row)--> open --(time)--> probing --(success)--> trial --(successes)--> closed
//!                                   ^                 |                     |
//!                                   +---(failure: twice the time)-----------+
//! ```
//!
//! A trial lets only so many go as must still succeed; with one probe there is none.

use std::time::Duration;

use crate::time::Timestamp;

/// When a breaker opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row, without any sign of life between, that open it.
    pub failures: u32,
    /// How long it stays open the first time.
    pub open: Duration,
    /// How long it may stay open after doubling with every failed probe.
    pub open_max: Duration,
    /// Probes in a row that must succeed before it closes: the first goes alone, the others together.
    pub probes: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 10,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(60),
            probes: 1,
        }
    }
}

/// Whether attempts may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Any number.
    Free,
    /// Exactly one; `probe_started` must be called when it is.
    Probe,
    /// None before this time.
    WaitUntil(Timestamp),
    /// None until the probe under way has ended.
    AwaitProbe,
    /// At most so many at a time, as further probes.
    Trial(u32),
}

/// State of one destination's breaker. It is not stored: after a restart the first attempts tell.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Timestamp, length: Duration },
    Probing { length: Duration },
    Trial { length: Duration, left: u32 },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed { failures: 0 },
        }
    }

    /// Goes on under another policy, in the state that it is in: a time that has begun is kept.
    pub fn follow(&mut self, policy: BreakerPolicy) {
        self.policy = policy;
    }

    /// Whether attempts may start at `now`.
    pub fn admission(&self, now: Timestamp) -> Admission {
        match self.state {
            State::Closed { .. } => Admission::Free,
            State::Open { until, .. } if now >= until => Admission::Probe,
            State::Open { until, .. } => Admission::WaitUntil(until),
            State::Probing { .. } => Admission::AwaitProbe,
            State::Trial { left, .. } => Admission::Trial(left),
        }
    }

    /// Whether it is open or at its first probe: the destination shows as `waiting`. One that has answered that
    /// probe is served again, if with care.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. } | State::Trial { .. })
    }

    /// The one attempt that `Admission::Probe` allowed has started.
    pub fn probe_started(&mut self) {
        if let State::Open { length, .. } = self.state {
            self.state = State::Probing { length };
        }
    }

    /// An attempt ended, as trouble or with a sign of life (`Outcome::is_trouble`). `entropy` spreads reopening over an extra tenth of the open time, so that many
    /// instances do not probe together. Returns whether the breaker opened or closed.
    pub fn observe(&mut self, trouble: bool, now: Timestamp, entropy: u64) -> bool {
        let was_open = self.is_open();
        self.state = match (&self.state, trouble) {
            (State::Closed { .. }, false) => State::Closed { failures: 0 },
            (State::Open { length, .. } | State::Probing { length }, false) => {
                Self::tried(*length, self.policy.probes.saturating_sub(1))
            }
            (State::Trial { length, left }, false) => Self::tried(*length, left.saturating_sub(1)),
            (State::Closed { failures }, true) => {
                let failures = failures.saturating_add(1);
                if failures >= self.policy.failures {
                    self.opened(self.policy.open, now, entropy)
                } else {
                    State::Closed { failures }
                }
            }
            (State::Probing { length } | State::Trial { length, .. }, true) => self.opened(
                length.saturating_mul(2).min(self.policy.open_max),
                now,
                entropy,
            ),
            // A straggler from before it opened says nothing new.
            (State::Open { until, length }, true) => State::Open {
                until: *until,
                length: *length,
            },
        };
        was_open != self.is_open()
    }

    /// A probe succeeded, and so many more are wanted.
    fn tried(length: Duration, left: u32) -> State {
        match left {
            0 => State::Closed { failures: 0 },
            left => State::Trial { length, left },
        }
    }

    fn opened(&self, length: Duration, now: Timestamp, entropy: u64) -> State {
        let spread = u64::try_from(length.as_micros() / 10)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let extra = Duration::from_micros(entropy.checked_rem(spread).unwrap_or(0));
        State::Open {
            until: now.after(length).after(extra),
            length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn breaker() -> Breaker {
        let policy = BreakerPolicy {
            failures: 3,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(4),
            probes: 1,
        };
        Breaker::new(policy)
    }

    fn later(secs: u64) -> Timestamp {
        NOW.after(Duration::from_secs(secs))
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_not_before() {
        let mut breaker = breaker();
        for trouble in [true, true, false, true, true] {
            breaker.observe(trouble, NOW, 0);
            assert_eq!(breaker.admission(NOW), Admission::Free);
        }
        assert!(breaker.observe(true, NOW, 0));
        assert_eq!(breaker.admission(NOW), Admission::WaitUntil(later(1)));
    }

    #[test]
    fn one_probe_goes_through_and_failed_probes_double_the_wait_up_to_the_maximum() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.observe(true, NOW, 0);
        }
        let mut now = NOW;
        for open_secs in [1, 2, 4, 4] {
            now = now.after(Duration::from_secs(open_secs));
            assert_eq!(breaker.admission(now), Admission::Probe);
            breaker.probe_started();
            assert_eq!(breaker.admission(now), Admission::AwaitProbe);
            breaker.observe(true, now, 0);
        }
        breaker.probe_started();
        assert!(breaker.observe(false, now, 0));
        assert_eq!(breaker.admission(now), Admission::Free);
    }

    #[test]
    fn several_probes_must_succeed_in_a_row_and_one_that_fails_doubles_the_wait() {
        let mut breaker = breaker();
        let probes = 4;
        breaker.follow(BreakerPolicy {
            probes,
            ..breaker.policy
        });
        for _ in 0..3 {
            breaker.observe(true, NOW, 0);
        }
        let mut now = later(1);
        assert_eq!(breaker.admission(now), Admission::Probe);
        breaker.probe_started();
        assert!(breaker.observe(false, now, 0), "it answers again");
        assert_eq!(breaker.admission(now), Admission::Trial(3));
        assert!(!breaker.is_open());
        assert!(!breaker.observe(false, now, 0));
        assert_eq!(breaker.admission(now), Admission::Trial(2));
        // One is enough now.
        assert!(breaker.observe(true, now, 0));
        assert_eq!(
            breaker.admission(now),
            Admission::WaitUntil(now.after(Duration::from_secs(2)))
        );
        now = now.after(Duration::from_secs(2));
        assert_eq!(breaker.admission(now), Admission::Probe);
        breaker.probe_started();
        for left in (0..probes).rev() {
            breaker.observe(false, now, 0);
            let expected = if left == 0 {
                Admission::Free
            } else {
                Admission::Trial(left)
            };
            assert_eq!(breaker.admission(now), expected);
        }
        // Trusted as before: three in a row open it, for the first time again.
        for _ in 0..2 {
            assert!(!breaker.observe(true, now, 0));
        }
        assert!(breaker.observe(true, now, 0));
        assert_eq!(
            breaker.admission(now),
            Admission::WaitUntil(now.after(Duration::from_secs(1)))
        );
    }

    #[test]
    fn stragglers_do_not_extend_an_open_breaker() {
        let mut breaker = breaker();
        for _ in 0..20 {
            breaker.observe(true, NOW, 0);
        }
        assert_eq!(breaker.admission(NOW), Admission::WaitUntil(later(1)));
    }
}
