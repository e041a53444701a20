//! What is expected of the figures, and whether a run can be believed at all.

use std::fmt;
use std::ops::RangeInclusive;

use super::series::{Figures, Spread, shown};

/// A value derived from figures of one round.
#[derive(Clone, Copy, Debug)]
pub enum Derived {
    /// The figure itself.
    Figure(&'static str),
    /// One over another.
    Ratio {
        of: &'static str,
        over: &'static str,
    },
    /// One over another, after what both have in common is taken off.
    NetRatio {
        of: &'static str,
        over: &'static str,
        net_of: &'static str,
    },
    /// How much one lies above another.
    Above {
        of: &'static str,
        base: &'static str,
    },
}

/// What a value should be.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The value.
    pub of: Derived,
    /// In which direction it is better.
    pub limit: Limit,
    /// What must hold.
    pub pass: f64,
    /// What is hoped for.
    pub stretch: f64,
}

/// In which direction a value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    AtLeast,
    AtMost,
}

/// How a value stands to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Stretch,
    Pass,
    Missed,
}

/// Yardsticks that must lie in a range, or the run is void: a classic outbox that is too slow or too fast
/// for what it does, or a front so slow that it hides what stands behind it.
pub const VOID: &[(Derived, RangeInclusive<f64>)] = &[
    (
        Derived::Ratio {
            of: "accept.single.64.classic",
            over: "accept.single.64.bare",
        },
        0.09..=0.2,
    ),
    (
        Derived::Ratio {
            of: "accept.single.64.noop",
            over: "accept.single.64.bare",
        },
        0.6..=f64::INFINITY,
    ),
];

impl Target {
    /// At least these.
    pub const fn at_least(of: Derived, pass: f64, stretch: f64) -> Self {
        Self {
            of,
            limit: Limit::AtLeast,
            pass,
            stretch,
        }
    }

    /// At most these.
    pub const fn at_most(of: Derived, pass: f64, stretch: f64) -> Self {
        Self {
            of,
            limit: Limit::AtMost,
            pass,
            stretch,
        }
    }

    /// How `value` stands to it.
    pub fn verdict(&self, value: f64) -> Verdict {
        let holds = |bound: f64| match self.limit {
            Limit::AtLeast => value >= bound,
            Limit::AtMost => value <= bound,
        };
        match (holds(self.pass), holds(self.stretch)) {
            (_, true) => Verdict::Stretch,
            (true, false) => Verdict::Pass,
            (false, false) => Verdict::Missed,
        }
    }
}

impl Derived {
    /// The figure that it is about.
    pub fn subject(&self) -> &'static str {
        match *self {
            Self::Figure(of)
            | Self::Ratio { of, .. }
            | Self::NetRatio { of, .. }
            | Self::Above { of, .. } => of,
        }
    }

    /// Every figure that it takes.
    pub fn names(&self) -> Vec<&'static str> {
        match *self {
            Self::Figure(of) => vec![of],
            Self::Ratio { of, over } => vec![of, over],
            Self::NetRatio { of, over, net_of } => vec![of, over, net_of],
            Self::Above { of, base } => vec![of, base],
        }
    }

    /// What follows from the figures, in the order of `names`.
    pub fn value(&self, figures: &[f64]) -> Option<f64> {
        match (self, figures) {
            (Self::Figure(_), [of]) => Some(*of),
            (Self::Ratio { .. }, [of, over]) => Some(of / over),
            (Self::NetRatio { .. }, [of, over, net_of]) => Some((of - net_of) / (over - net_of)),
            (Self::Above { .. }, [of, base]) => Some(of - base),
            _ => None,
        }
    }
}

impl fmt::Display for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Figure(of) => write!(f, "{of}"),
            Self::Ratio { of, over } => write!(f, "{of} / {over}"),
            Self::NetRatio { of, over, net_of } => write!(f, "{of} / {over}, net of {net_of}"),
            Self::Above { of, base } => write!(f, "{of} above {base}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stretch => "stretch",
            Self::Pass => "pass",
            Self::Missed => "MISSED",
        })
    }
}

/// Targets whose figures were measured, each with what came out.
pub fn table(figures: &Figures, targets: &[&Target]) -> String {
    let rows: Vec<(String, &Target, Spread)> = targets
        .iter()
        .filter_map(|target| Some((target.of.to_string(), *target, figures.derived(&target.of)?)))
        .collect();
    let width = rows
        .iter()
        .map(|(name, ..)| name.len())
        .max()
        .unwrap_or_default();
    let mut lines = vec![format!(
        "{:width$}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  verdict",
        "expected", "median", "min", "max", "pass", "stretch"
    )];
    for (name, target, spread) in rows {
        let sign = match target.limit {
            Limit::AtLeast => ">=",
            Limit::AtMost => "<=",
        };
        lines.push(format!(
            "{name:width$}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {}",
            shown(spread.median),
            shown(spread.min),
            shown(spread.max),
            format!("{sign} {}", target.pass),
            format!("{sign} {}", target.stretch),
            target.verdict(spread.median)
        ));
    }
    lines.join("\n")
}

/// Why a run is void, a sentence for each yardstick that is off.
pub fn void(figures: &Figures) -> Vec<String> {
    VOID.iter()
        .filter_map(|(yardstick, within)| {
            let value = figures.derived(yardstick)?.median;
            (!within.contains(&value)).then(|| {
                let expected = match within.end().is_finite() {
                    true => format!("{} to {}", within.start(), within.end()),
                    false => format!("at least {}", within.start()),
                };
                format!("VOID: {yardstick} is {value:.3}, expected {expected}")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[(&str, f64)]) -> Figures {
        let mut figures = Figures::default();
        for (name, value) in values {
            figures.add(*name, "events/s", *value);
        }
        figures
    }

    #[test]
    fn a_value_stretches_passes_or_misses_in_the_direction_of_its_limit() {
        let of = Derived::Figure("x");
        for (target, value, expected) in [
            (Target::at_least(of, 0.45, 0.6), 0.6, Verdict::Stretch),
            (Target::at_least(of, 0.45, 0.6), 0.45, Verdict::Pass),
            (Target::at_least(of, 0.45, 0.6), 0.44, Verdict::Missed),
            (Target::at_most(of, 3.0, 2.0), 2.0, Verdict::Stretch),
            (Target::at_most(of, 3.0, 2.0), 3.0, Verdict::Pass),
            (Target::at_most(of, 3.0, 2.0), 3.1, Verdict::Missed),
            (Target::at_most(of, 3.0, 2.0), f64::NAN, Verdict::Missed),
        ] {
            assert_eq!(target.verdict(value), expected, "{value}");
        }
    }

    #[test]
    fn values_follow_from_the_figures_of_their_names() {
        for (derived, figures, expected) in [
            (Derived::Figure("a"), &[2.0][..], 2.0),
            (Derived::Ratio { of: "a", over: "b" }, &[2.0, 4.0], 0.5),
            (
                Derived::NetRatio {
                    of: "a",
                    over: "b",
                    net_of: "c",
                },
                &[4.0, 11.0, 1.0],
                0.3,
            ),
            (Derived::Above { of: "a", base: "b" }, &[2.0, 0.5], 1.5),
        ] {
            assert_eq!(derived.names().len(), figures.len());
            assert_eq!(derived.value(figures), Some(expected), "{derived}");
        }
    }

    #[test]
    fn a_run_is_void_when_a_yardstick_is_off() {
        let bare = ("accept.single.64.bare", 100.0);
        let noop = ("accept.single.64.noop", 80.0);
        let run = |classic: f64| {
            void(&figures(&[
                bare,
                noop,
                ("accept.single.64.classic", classic),
            ]))
        };
        assert_eq!(run(12.0), Vec::<String>::new());
        for classic in [8.9, 20.1] {
            assert_eq!(run(classic).len(), 1, "{classic}");
        }
        let slow = void(&figures(&[bare, ("accept.single.64.noop", 59.0)]));
        assert_eq!(
            slow,
            ["VOID: accept.single.64.noop / accept.single.64.bare is 0.590, expected at least 0.6"]
        );
        assert_eq!(void(&figures(&[bare])), Vec::<String>::new());
    }
}
