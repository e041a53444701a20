//! Figures over the rounds: medians, spreads, and ratios taken within a round.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Every figure by name, one value per round.
#[derive(Default)]
pub struct Figures(BTreeMap<String, Series>);

struct Series {
    unit: &'static str,
    values: Vec<f64>,
}

/// A figure that is one figure over another of the same round.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub of: &'static str,
    pub over: &'static str,
}

/// A figure as it is published.
#[derive(Serialize)]
pub struct Median<'a> {
    name: &'a str,
    value: f64,
    unit: &'static str,
}

impl Figures {
    /// One more round's value.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        let series = self.0.entry(name.into()).or_insert(Series {
            unit,
            values: Vec::new(),
        });
        series.values.push(value);
    }

    /// Adds the ratios whose two figures were measured. A ratio of one round does not feel what
    /// disturbed another.
    pub fn derive(&mut self, ratios: &[Ratio]) {
        for ratio in ratios {
            let Some((of, over)) = self.0.get(ratio.of).zip(self.0.get(ratio.over)) else {
                continue;
            };
            let values = of
                .values
                .iter()
                .zip(&over.values)
                .map(|(a, b)| a / b)
                .collect();
            self.0.insert(
                ratio.name(),
                Series {
                    unit: "ratio",
                    values,
                },
            );
        }
    }

    /// The median of one figure.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(Series::median)
    }

    /// All medians, by name.
    pub fn medians(&self) -> Vec<Median<'_>> {
        let median = |(name, series): (_, &Series)| Median {
            name,
            value: series.median(),
            unit: series.unit,
        };
        self.0
            .iter()
            .map(|(name, series)| median((name.as_str(), series)))
            .collect()
    }
}

impl Ratio {
    /// How it is called.
    pub fn name(&self) -> String {
        format!("{} / {}", self.of, self.over)
    }
}

impl Series {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }

    fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let half = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            middle(half)
        } else {
            f64::midpoint(middle(half.wrapping_sub(1)), middle(half))
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.keys().map(String::len).max().unwrap_or_default();
        writeln!(
            f,
            "{:width$}  {:>12}  {:>12}  {:>12}  unit",
            "figure", "median", "min", "max"
        )?;
        for (name, series) in &self.0 {
            let sorted = series.sorted();
            let (min, max) = (sorted.first().copied(), sorted.last().copied());
            writeln!(
                f,
                "{name:width$}  {:>12}  {:>12}  {:>12}  {}",
                shown(series.median()),
                shown(min.unwrap_or(f64::NAN)),
                shown(max.unwrap_or(f64::NAN)),
                series.unit
            )?;
        }
        Ok(())
    }
}

/// Three significant digits below a thousand, whole numbers above.
fn shown(value: f64) -> String {
    match value.abs() {
        0.0..1.0 => format!("{value:.3}"),
        1.0..10.0 => format!("{value:.2}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_within_a_round_and_then_its_median() {
        let mut figures = Figures::default();
        for (a, b) in [(10.0, 1.0), (20.0, 4.0), (90.0, 10.0)] {
            figures.add("a", "events/s", a);
            figures.add("b", "events/s", b);
        }
        figures.derive(&[
            Ratio { of: "a", over: "b" },
            Ratio {
                of: "a",
                over: "absent",
            },
        ]);
        assert_eq!(figures.median("a / b"), Some(9.0));
        assert_eq!(figures.median("a"), Some(20.0));
        assert_eq!(figures.median("a / absent"), None);
    }
}
