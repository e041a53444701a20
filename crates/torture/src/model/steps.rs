//! What a random history does, drawn from a seed: the same seed gives the same steps in every run.

use std::fmt;

use crate::dice::Dice;

/// Keys of the events; key 0 is none.
pub(super) const KEYS: u64 = 7;

/// Destinations that events may be owed to.
pub(super) const DESTINATIONS: usize = 3;

/// One step of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Sends batches at the same time, each a list of keys; a destination that is full has its deliveries set
    /// aside.
    Accept {
        batches: Vec<Vec<u64>>,
        full: Option<usize>,
    },
    /// Sends an earlier event once more: as it was, or with other content.
    Repeat { pick: u64, altered: bool },
    /// Reads at most so many deliveries of a destination.
    Read { to: usize, max: usize },
    /// Ends at most so many of what was read, one way or another.
    Settle {
        to: usize,
        count: usize,
        how: Ending,
    },
    /// Reads so many of every destination and delivers all that is at hand.
    Deliver { max: usize },
    /// Sets one aside for a later attempt.
    Park { to: usize, pick: u64 },
    /// Waits until everything that was recorded for a destination is synced.
    Sync { to: usize },
    /// Sends a dead letter again, and ends that one way or another.
    Redrive { to: usize, pick: u64, how: Ending },
    /// Ends a dead letter by an operator's word.
    Discard { to: usize, pick: u64 },
    /// Makes everything that was set aside for a destination pending again.
    Revive { to: usize },
    /// Lets time pass, so that segments end and are dropped.
    Pass { minutes: u64 },
    /// Another number of shards.
    Reshard(u16),
    /// Stops the store and opens it again.
    Restart,
    /// Ends the process and opens the store again.
    Kill,
    /// Ends the machine and opens the store again.
    PowerCut,
}

/// How a delivery ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Delivered,
    Expired,
    DeadLettered,
}

/// A whole history.
pub(super) struct History {
    pub(super) seed: u64,
    pub(super) shards: u16,
    pub(super) limits: Limits,
    pub(super) steps: Vec<Step>,
}

/// Which limits the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limits {
    /// Limits that a few events reach.
    Tiny,
    /// Those of production.
    Production,
}

impl History {
    /// The history of a seed, of at most `steps` steps.
    pub(super) fn of(seed: u64, steps: u64) -> Self {
        const SHARDS_MAX: u64 = 4;
        /// One history in so many has the limits of production, which only long ones reach.
        const PRODUCTION_ONE_IN: u64 = 8;
        let mut draw = Dice::new(seed);
        let limits = match draw.one_in(PRODUCTION_ONE_IN) {
            true => Limits::Production,
            false => Limits::Tiny,
        };
        let shards = u16::try_from(1 + draw.below(SHARDS_MAX)).unwrap_or(1);
        let count = 10 + draw.below(steps.saturating_sub(9).max(1));
        let steps = (0..count).map(|_| step(&mut draw)).collect();
        Self {
            seed,
            shards,
            limits,
            steps,
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            shards,
            limits,
            steps,
        } = self;
        writeln!(f, "seed {seed}, {shards} shards, limits {limits:?}")?;
        for (number, step) in steps.iter().enumerate() {
            writeln!(f, "{number:4} {step:?}")?;
        }
        Ok(())
    }
}

fn step(draw: &mut Dice) -> Step {
    let to = usize::try_from(draw.below(DESTINATIONS as u64)).unwrap_or(0);
    match draw.below(100) {
        0..25 => Step::Accept {
            batches: batches(draw),
            full: draw.one_in(6).then_some(to),
        },
        25..30 => Step::Repeat {
            pick: draw.below(u64::MAX),
            altered: draw.one_in(3),
        },
        30..42 => Step::Read {
            to,
            max: some(draw, 20),
        },
        42..54 => Step::Settle {
            to,
            count: some(draw, 20),
            how: ending(draw),
        },
        54..68 => Step::Deliver {
            max: some(draw, 60),
        },
        68..72 => Step::Park {
            to,
            pick: draw.below(u64::MAX),
        },
        72..76 => Step::Sync { to },
        76..81 => Step::Redrive {
            to,
            pick: draw.below(u64::MAX),
            how: ending(draw),
        },
        81..83 => Step::Discard {
            to,
            pick: draw.below(u64::MAX),
        },
        83..84 => Step::Revive { to },
        84..91 => Step::Pass {
            minutes: 1 + draw.below(20),
        },
        91..94 => Step::Reshard(u16::try_from(1 + draw.below(5)).unwrap_or(1)),
        94..96 => Step::Restart,
        96..98 => Step::Kill,
        _ => Step::PowerCut,
    }
}

/// From 1 to `most`.
fn some(draw: &mut Dice, most: u64) -> usize {
    usize::try_from(1 + draw.below(most)).unwrap_or(1)
}

fn batches(draw: &mut Dice) -> Vec<Vec<u64>> {
    let mut batches = Vec::new();
    for _ in 0..some(draw, 4) {
        batches.push((0..some(draw, 8)).map(|_| draw.below(KEYS)).collect());
    }
    batches
}

fn ending(draw: &mut Dice) -> Ending {
    match draw.below(10) {
        0..6 => Ending::Delivered,
        6..7 => Ending::Expired,
        _ => Ending::DeadLettered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_history_every_time() {
        for seed in 0..20 {
            assert_eq!(
                History::of(seed, 300).to_string(),
                History::of(seed, 300).to_string()
            );
        }
        assert_ne!(History::of(1, 300).steps, History::of(2, 300).steps);
    }

    #[test]
    fn every_kind_of_step_comes_up() {
        let steps: Vec<Step> = (0..20)
            .flat_map(|seed| History::of(seed, 300).steps)
            .collect();
        let is_there = |kind: fn(&Step) -> bool| steps.iter().any(kind);
        assert!(is_there(|step| matches!(
            step,
            Step::Repeat { altered: true, .. }
        )));
        assert!(is_there(|step| matches!(step, Step::Reshard(_))));
        assert!(is_there(|step| matches!(step, Step::Discard { .. })));
        assert!(is_there(|step| matches!(step, Step::PowerCut)));
    }
}
