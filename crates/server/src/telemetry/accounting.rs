//! The accounting identity of one destination: `accepted = delivered + pending + dead + expired +
//! discarded`. The counts come from three places that know nothing of each other: `accepted` from where
//! events are stored, `pending` from the bitmaps of resolved sequences, the rest from settlements.

use wayhold_store::LaneTotals;

/// How often counts are read anew before "in motion" is the answer: traffic moves between two of the
/// readings, and a few tries find a quiet moment wherever there are any.
const READINGS_MAX: usize = 4;

/// Counts of one destination and what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// The counts.
    pub totals: LaneTotals,
    /// Whether they add up.
    pub verdict: Identity,
}

/// What the counts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// They add up.
    Holds,
    /// They do not, and they did not change while they were read twice: something is lost or counted
    /// twice.
    Broken {
        /// Accepted less everything else.
        difference: i64,
    },
    /// They changed while they were read, so they need not add up: read again at a quieter moment.
    InMotion {
        /// Accepted less everything else.
        difference: i64,
    },
}

impl Accounting {
    /// Takes the counts with `read`, again where that may find a quiet moment.
    pub fn take(mut read: impl FnMut() -> LaneTotals) -> Self {
        let mut totals = read();
        let mut still = false;
        for _ in 1..READINGS_MAX {
            if difference(&totals) == 0 {
                return Self {
                    totals,
                    verdict: Identity::Holds,
                };
            }
            let again = read();
            still = again == totals;
            totals = again;
        }
        let verdict = match difference(&totals) {
            0 => Identity::Holds,
            difference if still => Identity::Broken { difference },
            difference => Identity::InMotion { difference },
        };
        Self { totals, verdict }
    }

    /// Whether the identity holds; `None` where the counts were in motion.
    pub fn holds(&self) -> Option<bool> {
        match self.verdict {
            Identity::Holds => Some(true),
            Identity::Broken { .. } => Some(false),
            Identity::InMotion { .. } => None,
        }
    }

    /// Accepted less everything else; zero where the identity holds.
    pub fn difference(&self) -> i64 {
        match self.verdict {
            Identity::Holds => 0,
            Identity::Broken { difference } | Identity::InMotion { difference } => difference,
        }
    }
}

fn difference(totals: &LaneTotals) -> i64 {
    let ended = [
        totals.delivered,
        totals.pending,
        totals.dead,
        totals.expired,
        totals.discarded,
    ]
    .into_iter()
    .fold(0_u64, u64::saturating_add);
    totals.accepted.wrapping_sub(ended).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(accepted: u64, delivered: u64, pending: u64) -> LaneTotals {
        LaneTotals {
            accepted,
            delivered,
            pending,
            dead: 2,
            expired: 1,
            discarded: 1,
            redriven: 9,
        }
    }

    fn take(readings: &[LaneTotals]) -> Accounting {
        let mut readings = readings.iter().copied().cycle();
        Accounting::take(|| readings.next().unwrap())
    }

    #[test]
    fn counts_that_add_up_hold_and_redrives_do_not_enter() {
        let accounting = take(&[totals(10, 3, 3)]);
        assert_eq!(
            (accounting.holds(), accounting.difference()),
            (Some(true), 0)
        );
    }

    #[test]
    fn a_quiet_difference_is_a_broken_promise() {
        let lost = take(&[totals(11, 3, 3)]);
        assert_eq!((lost.holds(), lost.difference()), (Some(false), 1));
        let twice = take(&[totals(9, 3, 3)]);
        assert_eq!((twice.holds(), twice.difference()), (Some(false), -1));
    }

    #[test]
    fn a_difference_under_traffic_says_nothing() {
        let moving = take(&[
            totals(11, 3, 3),
            totals(12, 4, 3),
            totals(13, 5, 3),
            totals(14, 6, 3),
        ]);
        assert_eq!((moving.holds(), moving.difference()), (None, 1));
    }

    #[test]
    fn a_quiet_moment_between_is_found() {
        let accounting = take(&[totals(11, 3, 3), totals(11, 4, 3)]);
        assert_eq!(accounting.holds(), Some(true));
    }
}
