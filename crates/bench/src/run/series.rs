//! Figures over the rounds: medians and spreads, also of what follows from figures of the same round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::verdict::Derived;

/// Every figure by name, at most one value per round.
#[derive(Default)]
pub struct Figures {
    by_name: BTreeMap<String, Series>,
    notes: BTreeSet<String>,
    round: usize,
}

struct Series {
    unit: &'static str,
    by_round: BTreeMap<usize, f64>,
}

/// Median and extremes over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A figure as it is published.
#[derive(Serialize)]
pub struct Median<'a> {
    name: &'a str,
    value: f64,
    unit: &'static str,
}

impl Figures {
    /// What is added from now on belongs to this round.
    pub fn begin_round(&mut self, round: usize) {
        self.round = round;
    }

    /// This round's value.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        let series = self.by_name.entry(name.into()).or_insert(Series {
            unit,
            by_round: BTreeMap::new(),
        });
        series.by_round.insert(self.round, value);
    }

    /// Something that whoever reads the figures should know; said once however often it was noted.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.insert(note.into());
    }

    /// What follows from figures, in the rounds that have them all. What follows from one round does not
    /// feel what disturbed another.
    pub fn derived(&self, derived: &Derived) -> Option<Spread> {
        let names = derived.names();
        let all: Option<Vec<&Series>> = names.iter().map(|name| self.by_name.get(*name)).collect();
        let all = all?;
        let rounds = all.first()?.by_round.keys();
        let values = rounds.filter_map(|round| {
            let figures: Option<Vec<f64>> = all
                .iter()
                .map(|series| series.by_round.get(round).copied())
                .collect();
            derived.value(&figures?)
        });
        Spread::of(values.collect())
    }

    /// All medians, by name.
    pub fn medians(&self) -> Vec<Median<'_>> {
        self.spreads()
            .map(|(name, unit, spread)| Median {
                name,
                value: spread.median,
                unit,
            })
            .collect()
    }

    fn spreads(&self) -> impl Iterator<Item = (&str, &'static str, Spread)> {
        self.by_name.iter().filter_map(|(name, series)| {
            let spread = Spread::of(series.by_round.values().copied().collect())?;
            Some((name.as_str(), series.unit, spread))
        })
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let half = values.len() / 2;
        let middle = *values.get(half)?;
        let median = if values.len() % 2 == 1 {
            middle
        } else {
            f64::midpoint(*values.get(half - 1)?, middle)
        };
        Some(Self {
            median,
            min: *values.first()?,
            max: *values.last()?,
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .by_name
            .keys()
            .map(String::len)
            .max()
            .unwrap_or_default();
        writeln!(
            f,
            "{:width$}  {:>12}  {:>12}  {:>12}  unit",
            "figure", "median", "min", "max"
        )?;
        for (name, unit, spread) in self.spreads() {
            writeln!(
                f,
                "{name:width$}  {:>12}  {:>12}  {:>12}  {unit}",
                shown(spread.median),
                shown(spread.min),
                shown(spread.max),
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Three significant digits below a thousand, whole numbers above.
pub fn shown(value: f64) -> String {
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

    const A_OVER_B: Derived = Derived::Ratio { of: "a", over: "b" };

    #[test]
    fn a_ratio_is_taken_within_a_round_and_then_its_median() {
        let mut figures = Figures::default();
        for (round, (a, b)) in [(10.0, 1.0), (20.0, 4.0), (90.0, 10.0)]
            .into_iter()
            .enumerate()
        {
            figures.begin_round(round);
            figures.add("a", "events/s", a);
            figures.add("b", "events/s", b);
        }
        let spread = Spread {
            median: 9.0,
            min: 5.0,
            max: 10.0,
        };
        assert_eq!(figures.derived(&A_OVER_B), Some(spread));
        assert_eq!(
            figures.derived(&Derived::Ratio {
                of: "a",
                over: "absent"
            }),
            None
        );
    }

    #[test]
    fn a_round_that_lacks_a_figure_gives_no_ratio() {
        let mut figures = Figures::default();
        for (round, b) in [None, Some(3.0), None, Some(5.0)].into_iter().enumerate() {
            figures.begin_round(round);
            figures.add("a", "s", 6.0);
            if let Some(b) = b {
                figures.add("b", "s", b);
            }
        }
        let spread = figures.derived(&A_OVER_B).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.2, 1.6, 2.0));
    }
}
