//! What progress keeps of compacted segments, so that the accounts stay exact. A compacted segment holds the
//! events of its sources that are still needed. What it left out was resolved, and moves from the counts of the
//! sources into the base; and since the bits of what was left out stay set between those of what it holds, how
//! many those are is kept with it.
//!
//! Both numbers are taken from the bits and never from index files: where progress was lost, what was left out
//! counts neither as accepted nor as delivered, and the accounts still hold.

use std::collections::BTreeMap;

use wayhold_model::{LaneId, Sequence};

use super::Memory;

/// A segment that took the place of others.
#[derive(Clone, Debug)]
pub(crate) struct Compaction {
    /// Number of the compacted segment.
    pub(crate) segment: u64,
    /// The first sequence that it covers.
    pub(crate) first: Sequence,
    /// The last one.
    pub(crate) last: Sequence,
    /// What it was made of; empty where nothing is left that tells it.
    pub(crate) sources: Vec<Source>,
    /// Of each lane that its sources owed, the sequences that it holds.
    pub(crate) held: BTreeMap<LaneId, Vec<u64>>,
}

/// A segment that was compacted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Its number.
    pub(crate) segment: u64,
    /// The first sequence that it spans.
    pub(crate) first: Sequence,
    /// The last one.
    pub(crate) last: Sequence,
}

/// Resolved deliveries that a compacted segment left out, per lane.
pub(crate) type LeftOut = BTreeMap<LaneId, u64>;

impl Memory {
    /// Records that a compacted segment takes the place of its sources; how much it left out. Again is no
    /// difference.
    pub(in crate::progress) fn compact(&mut self, compaction: &Compaction) -> LeftOut {
        if let Some(known) = self.compacted.get(&compaction.segment) {
            return known.clone();
        }
        let mut left_out = LeftOut::new();
        for (id, held) in &compaction.held {
            let lane = self.lanes.entry(*id).or_default();
            let is_resolved = |sequence: &&u64| lane.is_resolved(**sequence);
            let held_resolved = held.iter().filter(is_resolved).count() as u64;
            let between = lane.count_resolved(compaction.first, compaction.last);
            let between = between.saturating_sub(held_resolved);
            let counted = |source: &Source| {
                let left_out = self.compacted.get(&source.segment);
                let left_out = left_out.and_then(|lanes| lanes.get(id)).copied();
                let resolved = lane.count_resolved(source.first, source.last);
                resolved.saturating_sub(left_out.unwrap_or(0))
            };
            let resolved: u64 = compaction.sources.iter().map(counted).sum();
            // What lies between two sources and is no part of them is in the base already.
            lane.totals.accepted_base += match compaction.sources.is_empty() {
                true => between,
                false => resolved.saturating_sub(held_resolved),
            };
            self.changes.lanes.insert(*id);
            left_out.insert(*id, between);
        }
        for source in &compaction.sources {
            self.forget_compacted(source.segment);
        }
        self.changes.compacted.insert(compaction.segment);
        self.compacted.insert(compaction.segment, left_out.clone());
        left_out
    }

    /// What a compacted segment left out; `None` where its compaction is not recorded.
    pub(in crate::progress) fn left_out(&self, segment: u64) -> Option<LeftOut> {
        self.compacted.get(&segment).cloned()
    }

    /// The highest number of a compacted segment that is recorded; 0 where none is.
    pub(in crate::progress) fn newest_compacted(&self) -> u64 {
        self.compacted
            .last_key_value()
            .map_or(0, |(number, _)| *number)
    }

    /// Nobody asks any more what a segment left out.
    pub(in crate::progress) fn forget_compacted(&mut self, segment: u64) {
        if self.compacted.remove(&segment).is_some() {
            self.changes.compacted.insert(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::Stretch;
    use super::*;

    fn sequences(range: std::ops::RangeInclusive<u64>) -> impl Iterator<Item = Sequence> {
        range.map(Sequence)
    }

    fn source(segment: u64, first: u64, last: u64) -> Source {
        Source {
            segment,
            first: Sequence(first),
            last: Sequence(last),
        }
    }

    /// Accepted and pending of a lane whose one segment spans that.
    fn counts(memory: &Memory, segment: u64, (first, last): (u64, u64), count: u64) -> (u64, u64) {
        let view = memory.view(LaneId(1));
        let left_out = memory.left_out(segment).unwrap_or_default();
        let stretch = Stretch {
            first: Sequence(first),
            last: Sequence(last),
            count,
            left_out: left_out.get(&LaneId(1)).copied().unwrap_or(0),
        };
        let accepted = view.totals().accepted_base + count;
        (accepted, view.unresolved_of(&stretch))
    }

    #[test]
    fn the_account_is_the_same_before_and_after_and_again_after_another_compaction() {
        let mut memory = Memory::default();
        // Two segments of 100 events, and between them one that was found resolved.
        memory.deliver(LaneId(1), sequences(1..=90));
        memory.deliver(LaneId(1), sequences(101..=200));
        memory.resolve_segment(
            super::super::ResolvedSegment {
                segment: 2,
                first: Sequence(101),
                last: Sequence(200),
            },
            &[(LaneId(1), 100)],
        );
        memory.deliver(LaneId(1), sequences(211..=300));
        let held: Vec<u64> = (89..=100).chain(201..=210).collect();
        let mut compaction = Compaction {
            segment: 4,
            first: Sequence(1),
            last: Sequence(300),
            sources: vec![source(1, 1, 100), source(3, 201, 300)],
            held: BTreeMap::from([(LaneId(1), held)]),
        };
        memory.compact(&compaction);
        assert_eq!(counts(&memory, 4, (1, 300), 22), (300, 20));
        memory.compact(&compaction);
        assert_eq!(counts(&memory, 4, (1, 300), 22), (300, 20));
        memory.deliver(LaneId(1), sequences(91..=95));
        compaction = Compaction {
            segment: 5,
            sources: vec![source(4, 1, 300)],
            held: BTreeMap::from([(LaneId(1), (96..=100).chain(201..=210).collect())]),
            ..compaction
        };
        memory.compact(&compaction);
        assert_eq!(counts(&memory, 5, (1, 300), 15), (300, 15));
        assert!(memory.left_out(4).is_none() && memory.newest_compacted() == 5);
        memory.deliver(LaneId(1), sequences(96..=210));
        assert_eq!(counts(&memory, 5, (1, 300), 15), (300, 0));
    }

    #[test]
    fn what_was_left_out_counts_for_nothing_where_progress_was_lost() {
        let mut memory = Memory::default();
        let compaction = Compaction {
            segment: 4,
            first: Sequence(1),
            last: Sequence(300),
            sources: Vec::new(),
            held: BTreeMap::from([(LaneId(1), vec![7, 8])]),
        };
        memory.compact(&compaction);
        assert_eq!(counts(&memory, 4, (1, 300), 2), (2, 2));
        memory.deliver(LaneId(1), sequences(7..=7));
        assert_eq!(counts(&memory, 4, (1, 300), 2), (2, 1));
    }
}
