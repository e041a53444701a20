//! Quantiles of a histogram in `/metrics`, between two looks at it.

use std::collections::BTreeMap;

/// Observations by upper bound, cumulative, as Prometheus writes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// The histogram of this name, all its series together.
    pub fn read(metrics: &str, name: &str) -> Self {
        let prefix = format!("{name}_bucket{{");
        let mut buckets: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.starts_with(&prefix)) {
            let Some((labels, count)) = line.rsplit_once(' ') else {
                continue;
            };
            let bound = labels.split("le=\"").nth(1).and_then(|rest| {
                let (bound, _) = rest.split_once('"')?;
                bound.parse::<f64>().ok()
            });
            let (Some(bound), Ok(count)) = (bound, count.parse::<f64>()) else {
                continue;
            };
            // Positive floats sort as their bits do.
            buckets.entry(bound.to_bits()).or_insert((bound, 0.0)).1 += count;
        }
        Self(buckets.into_values().collect())
    }

    /// What was observed since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |bound: f64| {
            let known = before.0.iter().find(|(other, _)| *other >= bound);
            known.map_or(0.0, |(_, count)| *count)
        };
        Self(
            self.0
                .iter()
                .map(|&(bound, count)| (bound, count - earlier(bound)))
                .collect(),
        )
    }

    /// How many observations there are.
    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// The value below which this share lies, interpolated within its bucket; `None` without any, or
    /// where it lies above the last bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let (_, all) = self.0.last().copied().filter(|(_, all)| *all > 0.0)?;
        let wanted = all * share;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= wanted && count > below {
                let value = low + (bound - low) * (wanted - below) / (count - below);
                return Some(value).filter(|value| value.is_finite());
            }
            (low, below) = (bound, count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "\
wayhold_delivery_latency_seconds_bucket{destination=\"a\",le=\"0.001\"} 10
wayhold_delivery_latency_seconds_bucket{destination=\"a\",le=\"0.01\"} 100
wayhold_delivery_latency_seconds_bucket{destination=\"a\",le=\"+Inf\"} 100
wayhold_delivery_latency_seconds_sum{destination=\"a\"} 3
wayhold_attempt_duration_seconds_bucket{destination=\"a\",le=\"0.001\"} 7
";

    #[test]
    fn a_quantile_lies_within_its_bucket_and_counts_only_what_is_new() {
        let now = Buckets::read(METRICS, "wayhold_delivery_latency_seconds");
        assert_eq!(now.quantile(0.05), Some(0.0005));
        let median = now.quantile(0.55).unwrap();
        assert!((median - 0.0055).abs() < 1e-9, "{median}");

        let before = Buckets(vec![(0.001, 10.0), (0.01, 10.0), (f64::INFINITY, 10.0)]);
        let new = now.since(&before);
        let median = new.quantile(0.5).unwrap();
        assert!((median - 0.0055).abs() < 1e-9, "{median}");
        assert_eq!(now.since(&now).quantile(0.5), None);
    }

    #[test]
    fn a_quantile_above_the_last_bound_is_not_known() {
        let buckets = Buckets(vec![(1.0, 1.0), (f64::INFINITY, 10.0)]);
        assert_eq!(buckets.quantile(0.99), None);
    }
}
