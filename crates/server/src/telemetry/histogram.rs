//! A histogram that the hot path can afford: fixed bounds, one relaxed addition per observation and
//! no lock. Readers see each count as of some moment during the reading, which is all a scrape needs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds, in seconds, for what should take microseconds to seconds: acceptance, syncs, attempts.
pub const SHORT_BOUNDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];

/// Upper bounds, in seconds, for what an outage stretches to days: accept to settle.
pub const LONG_BOUNDS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0,
    7_200.0, 43_200.0, 86_400.0,
];

/// Counts of durations by upper bound.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    // One more than there are bounds: the last holds what exceeds them all.
    counts: Box<[AtomicU64]>,
    sum_nanos: AtomicU64,
}

/// What a histogram held when it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Upper bound (inclusive; infinite for the last) and number of observations above the one before.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all observations, in the unit of the bounds.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram over ascending `bounds`, in seconds.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_nanos: AtomicU64::new(0),
        }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts `count` observations of the same duration: one group that was answered together.
    pub fn observe_many(&self, duration: Duration, count: u64) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.counts.get(bucket) {
            bucket.fetch_add(count, Relaxed);
        }
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos
            .fetch_add(nanos.saturating_mul(count), Relaxed);
    }

    /// What it holds now.
    pub fn read(&self) -> Reading {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        let sum = Duration::from_nanos(self.sum_nanos.load(Relaxed));
        Reading {
            buckets: bounds.zip(counts).collect(),
            sum: sum.as_secs_f64(),
        }
    }
}

impl Reading {
    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The bound that a share `q` (0 to 1) of the observations does not exceed; `None` without any.
    /// As coarse as the bounds are, and infinite when the answer exceeds them all.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank within the count; counts stay far below 2^53"
        )]
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets.iter().find_map(|(bound, count)| {
            seen += count;
            (seen >= rank).then_some(*bound)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_lands_under_the_first_bound_that_holds_it() {
        let histogram = Histogram::new(&[0.001, 0.01]);
        for micros in [0, 1_000, 1_001, 10_000, 10_001, 90_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let reading = histogram.read();
        assert_eq!(reading.buckets, [(0.001, 2), (0.01, 2), (f64::INFINITY, 2)]);
        assert_eq!(reading.count(), 6);
        assert!((reading.sum - 90.022_002).abs() < 1e-9, "{}", reading.sum);
    }

    #[test]
    fn quantiles_are_bounds_and_an_empty_histogram_has_none() {
        let histogram = Histogram::new(&[0.001, 0.01]);
        assert_eq!(histogram.read().quantile(0.5), None);
        histogram.observe_many(Duration::from_micros(500), 98);
        histogram.observe_many(Duration::from_millis(5), 1);
        histogram.observe_many(Duration::from_secs(1), 1);
        let reading = histogram.read();
        let quantiles = [0.0, 0.5, 0.98, 0.99, 1.0].map(|q| reading.quantile(q).unwrap());
        assert_eq!(quantiles, [0.001, 0.001, 0.001, 0.01, f64::INFINITY]);
    }
}
