//! Many durations in three numbers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What of many measured durations a person wants to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many there were.
    pub count: u64,
    /// They took so many milliseconds on average: what rates follow from, however uneven they are.
    pub mean_ms: f64,
    /// Half took at most so many milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred took at most so many.
    pub p99_ms: f64,
    /// The longest took so many.
    pub max_ms: f64,
}

impl Distribution {
    /// Sums up durations in any order; all zero where there are none.
    pub fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let all: Duration = durations.iter().sum();
        let mean = u32::try_from(durations.len())
            .ok()
            .and_then(|count| all.checked_div(count));
        Self {
            count: durations.len() as u64,
            mean_ms: mean.unwrap_or_default().as_secs_f64() * 1e3,
            p50_ms: percentile(&durations, 50),
            p99_ms: percentile(&durations, 99),
            max_ms: percentile(&durations, 100),
        }
    }
}

/// The smallest duration that so many percent of all do not exceed, in milliseconds; they are sorted.
fn percentile(durations: &[Duration], percent: usize) -> f64 {
    let rank = (durations.len() * percent).div_ceil(100).max(1);
    durations
        .get(rank - 1)
        .map_or(0.0, |duration| duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks_of_what_was_measured() {
        for (millis, expected) in [
            (vec![], (0, [0.0, 0.0, 0.0, 0.0])),
            (vec![7], (1, [7.0, 7.0, 7.0, 7.0])),
            (vec![9, 1], (2, [5.0, 1.0, 9.0, 9.0])),
            ((1..=100).rev().collect(), (100, [50.5, 50.0, 99.0, 100.0])),
            (
                (1..=1_000).collect(),
                (1_000, [500.5, 500.0, 990.0, 1_000.0]),
            ),
        ] {
            let of = Distribution::of(millis.into_iter().map(Duration::from_millis).collect());
            let millis = [of.mean_ms, of.p50_ms, of.p99_ms, of.max_ms];
            // To the microsecond: fractions of a second are not exact.
            let millis = millis.map(|millis| (millis * 1e3).round() / 1e3);
            assert_eq!((of.count, millis), expected);
        }
    }
}
