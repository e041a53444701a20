//! When requests arrived, and how many of them within the busiest second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a limit per second speaks of.
const WINDOW: Duration = Duration::from_secs(1);

/// Moments of arrivals, since the first was waited for.
#[derive(Debug)]
pub struct Arrivals {
    begun: Instant,
    at: Mutex<Vec<Duration>>,
}

/// What a receiver says of its arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Requests that arrived.
    pub requests: usize,
    /// Those of them in the busiest second, wherever it begins.
    pub busiest_second: usize,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            at: Mutex::default(),
        }
    }
}

impl Arrivals {
    /// Notes one.
    pub fn note(&self) {
        let mut arrivals = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that they ascend.
        arrivals.push(self.begun.elapsed());
    }

    /// What there was so far.
    pub fn report(&self) -> Report {
        let arrivals = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        Report {
            requests: arrivals.len(),
            busiest_second: busiest(&arrivals, WINDOW),
        }
    }
}

/// Most of these ascending moments that lie within one window.
fn busiest(moments: &[Duration], window: Duration) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, moment) in moments.iter().enumerate() {
        while moments
            .get(first)
            .is_some_and(|begin| *moment - *begin >= window)
        {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_is_found_wherever_it_begins() {
        let moments = |millis: &[u64]| -> Vec<Duration> {
            millis.iter().copied().map(Duration::from_millis).collect()
        };
        for (millis, expected) in [
            (&[][..], 0),
            (&[5], 1),
            (&[0, 1000], 1),
            (&[0, 999, 1000], 2),
            (&[0, 600, 900, 1300, 1599, 2600], 4),
            (&[7, 7, 7], 3),
        ] {
            assert_eq!(busiest(&moments(millis), WINDOW), expected, "{millis:?}");
        }
    }
}
