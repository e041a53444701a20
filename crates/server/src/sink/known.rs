//! What a lane knows of its failures. A lane that has several deliveries of a key in flight hands over a later
//! one in the belief that the earlier ones are on their way. Where one of those has failed meanwhile and the
//! lane has not heard of it yet, the later one must not be sent: it would overtake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_model::Outcome;

/// How many failures a lane has taken, beside how many were reported to it.
#[derive(Clone, Debug, Default)]
pub struct Known {
    reported: Arc<AtomicU64>,
    taken: u64,
}

impl Known {
    /// The lane has taken this outcome.
    pub fn take(&mut self, outcome: &Outcome) {
        self.taken += u64::from(outcome.failure().is_some());
    }

    /// Nothing of the lane is in flight: it has taken whatever was reported.
    pub fn take_all(&mut self) {
        self.taken = self.reported.load(Ordering::Acquire);
    }

    /// This outcome is about to be reported to the lane.
    pub(super) fn reports(&self, outcome: &Outcome) {
        if outcome.failure().is_some() {
            self.reported.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether every failure that was reported had been taken.
    pub(super) fn is_whole(&self) -> bool {
        self.taken == self.reported.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use wayhold_model::{Failure, FailureClass};

    use super::*;

    #[test]
    fn what_was_known_before_a_failure_is_no_longer_whole_until_it_is_taken() {
        let failed = Outcome::Unknown(Failure::new(FailureClass::Timeout, "no answer"));
        let mut lane = Known::default();
        let before = lane.clone();
        before.reports(&Outcome::Delivered);
        assert!(before.is_whole());
        before.reports(&failed);
        assert!(!before.is_whole() && !lane.is_whole());
        lane.take(&Outcome::Delivered);
        assert!(!lane.is_whole());
        lane.take(&failed);
        assert!(lane.is_whole() && !before.is_whole());
        lane.reports(&failed);
        lane.take_all();
        assert!(lane.is_whole());
    }
}
