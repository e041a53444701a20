//! Which ratios matter, and whether a run can be believed at all.

use super::series::{Figures, Ratio};
use crate::BenchError;

/// Ratios that are published.
pub const RATIOS: &[Ratio] = &[
    Ratio {
        of: "accept.single.256.wayhold",
        over: "accept.single.256.bare",
    },
    Ratio {
        of: "accept.single.256.wayhold",
        over: "accept.single.256.classic",
    },
    Ratio {
        of: "accept.single.64.wayhold",
        over: "accept.single.64.bare",
    },
    Ratio {
        of: "accept.single.64.wayhold",
        over: "accept.single.64.classic",
    },
    Ratio {
        of: "accept.batch100.wayhold",
        over: "accept.batch100.noop",
    },
    Ratio {
        of: "accept.p99.256.wayhold",
        over: "accept.p99.256.classic",
    },
    Ratio {
        of: "accept.p99.256.wayhold",
        over: "accept.p50.256.wayhold",
    },
    Ratio {
        of: "drain.null",
        over: "accept.single.256.wayhold",
    },
    Ratio {
        of: "drain.null",
        over: "drain.classic",
    },
    CLASSIC_OVER_BARE,
    NOOP_OVER_BARE,
];

const CLASSIC_OVER_BARE: Ratio = Ratio {
    of: "accept.single.64.classic",
    over: "accept.single.64.bare",
};
const NOOP_OVER_BARE: Ratio = Ratio {
    of: "accept.single.64.noop",
    over: "accept.single.64.bare",
};

/// Refuses a run whose yardsticks are off: a classic outbox that is too slow or too fast for what it
/// does, or a front so slow that it hides what stands behind it.
///
/// # Errors
/// When the run is void.
pub fn check(figures: &Figures) -> Result<(), BenchError> {
    for (ratio, within) in [
        (CLASSIC_OVER_BARE, 0.09..=0.2),
        (NOOP_OVER_BARE, 0.6..=f64::INFINITY),
    ] {
        match figures.median(&ratio.name()) {
            Some(value) if !within.contains(&value) => {
                let name = ratio.name();
                return Err(format!("void: {name} is {value:.3}, expected {within:?}").into());
            }
            _ => {}
        }
    }
    Ok(())
}
