//! What a load measured: every latency, exactly, and what was answered.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Latencies and answers while measuring.
#[derive(Default)]
pub struct Latencies {
    micros: Vec<u32>,
    warmup: u64,
    refused: BTreeMap<u16, u64>,
}

/// What one load printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Requests answered with 202 while measuring.
    pub requests: u64,
    /// Events in them.
    pub events: u64,
    /// The same with those of the warm-up.
    pub events_in_all: u64,
    /// How long it measured.
    pub seconds: f64,
    /// Acknowledged events per second.
    pub rate: f64,
    /// Half of the answers came within this many milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred did.
    pub p99_ms: f64,
    /// The longest answer.
    pub longest_ms: f64,
    /// Answers with another status than 202.
    pub refused: BTreeMap<u16, u64>,
}

impl Latencies {
    /// One request was acknowledged.
    pub fn acknowledged(&mut self, latency: Duration) {
        self.micros
            .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    /// One request was acknowledged before measuring began.
    pub fn warmed_up(&mut self) {
        self.warmup += 1;
    }

    /// One request was not acknowledged.
    pub fn refused(&mut self, status: u16) {
        *self.refused.entry(status).or_default() += 1;
    }

    /// Adds what another caller measured.
    pub fn merge(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.warmup += other.warmup;
        for (status, count) in other.refused {
            *self.refused.entry(status).or_default() += count;
        }
    }

    /// Events acknowledged so far.
    pub fn events(&self, batch: usize) -> u64 {
        (self.micros.len() * batch) as u64
    }

    /// Sums up `measured`.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn report(mut self, batch: usize, measured: Duration) -> Report {
        self.micros.sort_unstable();
        let seconds = measured.as_secs_f64();
        let events = self.events(batch);
        Report {
            requests: self.micros.len() as u64,
            events,
            events_in_all: events + self.warmup * batch as u64,
            seconds,
            rate: events as f64 / seconds,
            p50_ms: self.quantile(50),
            p99_ms: self.quantile(99),
            longest_ms: self.quantile(100),
            refused: self.refused,
        }
    }

    /// The smallest latency that `percent` of all do not exceed, in milliseconds; of sorted latencies.
    fn quantile(&self, percent: usize) -> f64 {
        let rank = (self.micros.len() * percent).div_ceil(100).max(1);
        self.micros
            .get(rank - 1)
            .map_or(0.0, |&micros| f64::from(micros) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ranks_of_what_was_measured() {
        let mut latencies = Latencies::default();
        for millis in (1..=100).rev() {
            latencies.acknowledged(Duration::from_millis(millis));
        }
        let report = latencies.report(2, Duration::from_secs(2));
        assert_eq!(
            (report.p50_ms, report.p99_ms, report.longest_ms),
            (50.0, 99.0, 100.0)
        );
        assert_eq!((report.events, report.rate), (200, 100.0));
    }
}
