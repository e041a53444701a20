//! What a receiver says of its quotas, and what is left of them: so that a destination stops by itself where the
//! receiver would begin to refuse.
//!
//! A quota is known by its name. What is said to be left counts from the answer that said it; where only a
//! policy is known (so many in such a time), attempts are counted here, in windows that begin with the first of
//! them. Only differences between us and the receiver's count are wrong, and its next answer mends them.

use std::time::Duration;

use crate::time::Timestamp;
use crate::verdict::RETRY_AFTER_MAX;

/// Most quotas that one destination is held to: receivers have one or two.
const QUOTAS_MAX: usize = 8;

/// What an answer said of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// By which it is known.
    pub name: String,
    /// How it stands.
    pub stands: Stands,
}

/// How a quota stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// So many requests are left until it is filled again.
    Left {
        /// How many.
        requests: u64,
        /// In which time it is.
        filled_in: Duration,
    },
    /// So many requests are allowed in each window; how many are left is not known.
    Allows {
        /// How many.
        requests: u64,
        /// How long a window is.
        window: Duration,
    },
}

/// What is left of every quota of one destination.
#[derive(Clone, Debug, Default)]
pub struct Allowances(Vec<Allowance>);

#[derive(Clone, Debug)]
struct Allowance {
    name: String,
    left: u64,
    until: Timestamp,
}

impl Allowances {
    /// Takes what an answer said at `now`, with so many attempts in flight, which may not be counted in it.
    pub fn note(&mut self, quotas: &[Quota], in_flight: usize, now: Timestamp) {
        self.0.retain(|allowance| now < allowance.until);
        for Quota { name, stands } in quotas {
            let known = self.0.iter().position(|allowance| allowance.name == *name);
            let (requests, time) = match *stands {
                Stands::Left {
                    requests,
                    filled_in,
                } => (requests, filled_in),
                // Counted since the window began.
                Stands::Allows { .. } if known.is_some() => continue,
                // The answer itself came of one.
                Stands::Allows { requests, window } => (requests.saturating_sub(1), window),
            };
            let next = Allowance {
                name: name.clone(),
                left: requests.saturating_sub(in_flight as u64),
                until: now.after(time.min(RETRY_AFTER_MAX)),
            };
            let is_full = self.0.len() >= QUOTAS_MAX;
            match known.and_then(|place| self.0.get_mut(place)) {
                Some(allowance) => *allowance = next,
                None if is_full => {}
                None => self.0.push(next),
            }
        }
    }

    /// Whether no quota is known: then nobody need look at a clock.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Until when nothing is left of some quota.
    pub fn used_up_until(&self, now: Timestamp) -> Option<Timestamp> {
        let used_up = self.0.iter().filter(|one| one.left == 0 && now < one.until);
        used_up.map(|one| one.until).max()
    }

    /// How many may be sent at `now`; `None` where no quota says so.
    pub fn left(&self, now: Timestamp) -> Option<u64> {
        let in_force = self.0.iter().filter(|one| now < one.until);
        in_force.map(|one| one.left).min()
    }

    /// One was sent.
    pub fn take_one(&mut self) {
        for allowance in &mut self.0 {
            allowance.left = allowance.left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn later(secs: u64) -> Timestamp {
        NOW.after(Duration::from_secs(secs))
    }

    fn left(name: &str, requests: u64, secs: u64) -> Quota {
        Quota {
            name: name.to_owned(),
            stands: Stands::Left {
                requests,
                filled_in: Duration::from_secs(secs),
            },
        }
    }

    fn allows(requests: u64, secs: u64) -> Quota {
        Quota {
            name: "policy".to_owned(),
            stands: Stands::Allows {
                requests,
                window: Duration::from_secs(secs),
            },
        }
    }

    #[test]
    fn what_is_left_is_counted_down_and_the_next_answer_mends_the_count() {
        let mut allowances = Allowances::default();
        assert_eq!(allowances.left(NOW), None);
        allowances.note(&[left("burst", 5, 30)], 2, NOW);
        assert_eq!(allowances.left(NOW), Some(3));
        for expected in [2, 1, 0] {
            allowances.take_one();
            assert_eq!(allowances.left(NOW), Some(expected));
        }
        assert_eq!(allowances.used_up_until(NOW), Some(later(30)));
        assert_eq!(allowances.used_up_until(later(30)), None);
        assert_eq!(allowances.left(later(30)), None);
        allowances.note(&[left("burst", 4, 29)], 1, later(1));
        assert_eq!(allowances.left(later(1)), Some(3));
    }

    #[test]
    fn every_quota_is_kept_and_the_longest_that_is_used_up_counts() {
        let mut allowances = Allowances::default();
        allowances.note(
            &[
                left("burst", 0, 5),
                left("daily", 0, 60),
                left("hourly", 9, 90),
            ],
            0,
            NOW,
        );
        assert_eq!(allowances.used_up_until(NOW), Some(later(60)));
        // What one answer does not mention goes on.
        allowances.note(&[left("burst", 7, 5)], 0, later(1));
        assert_eq!(allowances.left(later(1)), Some(0));
        assert_eq!(allowances.left(later(60)), Some(9));
        // And no receiver silences for more than a day, or with names without end.
        allowances.note(&[left("burst", 0, u64::MAX)], 0, NOW);
        assert_eq!(
            allowances.used_up_until(NOW),
            Some(NOW.after(RETRY_AFTER_MAX))
        );
        let many: Vec<_> = (0..100).map(|n| left(&n.to_string(), 1, 5)).collect();
        allowances.note(&many, 0, NOW);
        assert_eq!(allowances.0.len(), QUOTAS_MAX);
    }

    #[test]
    fn of_a_policy_alone_windows_are_counted_here() {
        let mut allowances = Allowances::default();
        // The first answer comes of the first request of the window.
        allowances.note(&[allows(3, 10)], 0, NOW);
        for (expected, second) in [(2, 0), (1, 1), (0, 2)] {
            assert_eq!(allowances.left(later(second)), Some(expected));
            allowances.take_one();
            allowances.note(&[allows(3, 10)], 0, later(second));
        }
        assert_eq!(allowances.used_up_until(later(3)), Some(later(10)));
        allowances.note(&[allows(3, 10)], 0, later(10));
        assert_eq!(allowances.left(later(10)), Some(2));
    }
}
