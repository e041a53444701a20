//! How fast a backlog is worked off once its destination is back, told from counts alone.

use std::time::Duration;

/// What has been seen of the drain so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// The look before the first arrival after the return.
    began: Option<Look>,
    last: Option<Look>,
    rate: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    arrived: u64,
    accepted: u64,
}

impl Drain {
    /// One look: at a time since the return so much has arrived in all, and so much was accepted. The first
    /// look is at the return itself.
    pub fn look(&mut self, at: Duration, arrived: u64, accepted: u64) {
        let now = Look {
            at,
            arrived,
            accepted,
        };
        let Some(last) = self.last.replace(now) else {
            return;
        };
        if self.began.is_none() && arrived > last.arrived {
            self.began = Some(last);
        }
        // Worked off: all that had been accepted a look ago is there. New events keep coming, so the
        // backlog need never be seen at nothing.
        if let Some(began) = self.began
            && self.rate.is_none()
            && arrived >= last.accepted
        {
            let seconds = (at - began.at).as_secs_f64();
            let delivered = u32::try_from(arrived - began.arrived).unwrap_or(u32::MAX);
            self.rate = (seconds > 0.0).then(|| f64::from(delivered) / seconds);
        }
    }

    /// Deliveries a second from the first after the return until the backlog was gone; `None` before that.
    pub fn per_second(&self) -> Option<f64> {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_time_in_which_something_arrived() {
        let mut drain = Drain::default();
        // Returned with 1,000 of 2,000 there; nothing comes for a second, since the breaker waits.
        for (millis, arrived, accepted) in [
            (0, 1_000, 2_000),
            (1_000, 1_000, 2_100),
            (1_500, 1_600, 2_150),
            (2_000, 2_149, 2_200),
        ] {
            drain.look(Duration::from_millis(millis), arrived, accepted);
            assert_eq!(drain.per_second(), None);
        }
        drain.look(Duration::from_millis(3_000), 2_200, 2_300);
        assert_eq!(drain.per_second(), Some(600.0));
        drain.look(Duration::from_millis(4_000), 9_000, 9_000);
        assert_eq!(drain.per_second(), Some(600.0), "it is told once");
    }

    #[test]
    fn without_an_arrival_there_is_no_rate() {
        let mut drain = Drain::default();
        for millis in [0, 100] {
            drain.look(Duration::from_millis(millis), 50, 50);
        }
        assert_eq!(drain.per_second(), None);
    }
}
