//! Reading one lane's progress at one moment.

use std::collections::BTreeMap;

use wayhold_model::Sequence;

use super::{Lane, Retry, Totals};
use crate::progress::chunk::{self, Chunk};

/// What a lane has in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first sequence that the segment spans.
    pub(crate) first: Sequence,
    /// The last one.
    pub(crate) last: Sequence,
    /// How many deliveries of the lane it holds.
    pub(crate) count: u64,
    /// How many more of the lane lie between, all of them resolved: a compaction left them out.
    pub(crate) left_out: u64,
}

/// Reads one lane at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneView<'a>(pub(super) Option<&'a Lane>);

impl LaneView<'_> {
    /// Every sequence of the lane below is resolved.
    pub(crate) fn floor(&self) -> Sequence {
        Sequence(self.0.map_or(0, |lane| lane.floor))
    }

    /// Whether the delivery is resolved.
    pub(crate) fn is_resolved(&self, sequence: Sequence) -> bool {
        self.0.is_some_and(|lane| lane.is_resolved(sequence.0))
    }

    /// Attempts so far and when the next may start, of a delivery that was tried and is not resolved.
    pub(crate) fn retry_of(&self, sequence: Sequence) -> Option<Retry> {
        self.0?.retries.get(&sequence.0).copied()
    }

    /// How many of these are not resolved.
    #[cfg(test)]
    pub(crate) fn count_unresolved(&self, sequences: &[Sequence]) -> u64 {
        let unresolved = sequences.iter().filter(|s| !self.is_resolved(**s));
        unresolved.count() as u64
    }

    /// How many of the deliveries that a segment holds are resolved, counted from the bits.
    pub(crate) fn count_resolved(&self, of: &Stretch) -> u64 {
        let resolved = self
            .0
            .map_or(0, |lane| lane.count_resolved(of.first, of.last));
        resolved.saturating_sub(of.left_out)
    }

    /// Whether an event is held for this lane: its delivery is not resolved, or a dead letter refers to it.
    pub(crate) fn is_held(&self, sequence: Sequence) -> bool {
        !self.is_resolved(sequence)
            || self.0.is_some_and(|lane| {
                let chunk = lane.referred.get(&chunk::number_of(sequence.0));
                chunk.is_some_and(|chunk| chunk.contains(sequence.0))
            })
    }

    /// For how many of the deliveries that a segment holds the event is held.
    pub(crate) fn held_of(&self, of: &Stretch) -> u64 {
        let referred = self
            .0
            .map_or(0, |lane| count(&lane.referred, of.first, of.last));
        self.unresolved_of(of) + referred
    }

    /// How many of the deliveries that a segment holds are not resolved.
    pub(crate) fn unresolved_of(&self, of: &Stretch) -> u64 {
        // Everything below the floor is resolved; its bits are gone.
        if of.last < self.floor() {
            return 0;
        }
        of.count.saturating_sub(self.count_resolved(of))
    }

    /// Counts of the lane.
    pub(crate) fn totals(&self) -> Totals {
        self.0.map_or_else(Totals::default, |lane| lane.totals)
    }
}

impl Lane {
    /// How many deliveries in `first..=last` are resolved, counted from the bits.
    pub(super) fn count_resolved(&self, first: Sequence, last: Sequence) -> u64 {
        count(&self.chunks, first, last)
    }
}

/// How many sequences in `first..=last` are marked in these chunks.
fn count(chunks: &BTreeMap<u64, Chunk>, first: Sequence, last: Sequence) -> u64 {
    let chunks = chunks.range(chunk::number_of(first.0)..=chunk::number_of(last.0));
    chunks
        .map(|(number, chunk)| {
            let start = number.saturating_mul(chunk::end_of(0) + 1);
            chunk.count(first.0.max(start), last.0.min(chunk::end_of(start)))
        })
        .sum()
}
