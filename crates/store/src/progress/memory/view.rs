//! Reading one lane's progress at one moment.

use std::collections::BTreeMap;

use wayhold_model::Sequence;

use super::{Lane, Retry, Totals};
use crate::progress::chunk::{self, Chunk};

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

    /// How many deliveries in `first..=last` are resolved, counted from the bits.
    pub(crate) fn count_resolved(&self, first: Sequence, last: Sequence) -> u64 {
        self.0.map_or(0, |lane| count(&lane.chunks, first, last))
    }

    /// Whether an event is held for this lane: its delivery is not resolved, or a dead letter refers to it.
    pub(crate) fn is_held(&self, sequence: Sequence) -> bool {
        !self.is_resolved(sequence)
            || self.0.is_some_and(|lane| {
                let chunk = lane.referred.get(&chunk::number_of(sequence.0));
                chunk.is_some_and(|chunk| chunk.contains(sequence.0))
            })
    }

    /// For how many of `of_lane` deliveries, all that the lane has in `first..=last`, the event is held.
    pub(crate) fn held_of(&self, of_lane: u64, first: Sequence, last: Sequence) -> u64 {
        let referred = self.0.map_or(0, |lane| count(&lane.referred, first, last));
        self.unresolved_of(of_lane, first, last) + referred
    }

    /// How many of `count` deliveries, all that the lane has in `first..=last`, are not resolved.
    pub(crate) fn unresolved_of(&self, count: u64, first: Sequence, last: Sequence) -> u64 {
        // Everything below the floor is resolved; its bits are gone.
        if last < self.floor() {
            return 0;
        }
        count.saturating_sub(self.count_resolved(first, last))
    }

    /// Counts of the lane.
    pub(crate) fn totals(&self) -> Totals {
        self.0.map_or_else(Totals::default, |lane| lane.totals)
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
