//! What a start makes of compacted segments: whatever the last run did not come to is finished. That the index
//! file of a compacted segment is in place is what counts; its database was synced before.
//!
//! A segment that lies in the range of a compacted one, and was there when that was made, is not needed any more:
//! what was pending of it lies in the compacted one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use wayhold_model::{LaneId, Sequence};

use super::index_file::{IndexError, SharedIndex};
use super::recovery::{Opening, unusable};
use super::resolved::own_lane;
use super::segment::Segment;
use crate::disk::{quarantine, quarantine_database};
use crate::error::OpenError;
use crate::progress::{Compaction, Source};

type Segments = Vec<Arc<Segment>>;

impl Opening<'_> {
    /// Parts segments that were compacted from those that are needed, and records compactions that progress does
    /// not know: retained, needed and remembered segments, in this order.
    pub(super) fn part_replaced(
        &self,
        (mut retained, mut segments): (Segments, Segments),
        mut remembered: Segments,
    ) -> Result<(Segments, Segments, Segments), OpenError> {
        let settled = self.settled(&retained, &segments, &remembered);
        // In the order in which they were made: one may be a source of the next. One whose successor is
        // recorded was recorded before, and is no more.
        let is_open =
            |one: &&Arc<Segment>| one.is_compacted() && !settled.iter().any(|by| replaces(by, one));
        let mut compacted: Segments = segments.iter().filter(is_open).cloned().collect();
        compacted.sort_unstable_by_key(|one| one.number());
        for one in compacted {
            if let Err(reason) = self.record(&one, &segments) {
                self.set_aside_compacted(&one, &reason)?;
                segments.retain(|other| other.number() != one.number());
            }
        }
        // Whichever was open is recorded now.
        let witnesses = self.settled(&retained, &segments, &remembered);
        let is_replaced = |one: &Arc<Segment>| witnesses.iter().any(|by| replaces(by, one));
        let leaving: Segments = segments.extract_if(.., |one| is_replaced(one)).collect();
        for one in &leaving {
            one.replace_by_compacted();
        }
        retained.extend(leaving);
        for one in &remembered {
            if !is_replaced(one) {
                self.report_missing(one);
            }
        }
        remembered.sort_by_cached_key(|one| one.place());
        Ok((retained, segments, remembered))
    }

    /// Compacted segments that are known to have taken the place of their sources: progress has them recorded, or
    /// they are resolved. One without a database tells it only where that is gone because nobody needs it.
    fn settled(
        &self,
        retained: &[Arc<Segment>],
        segments: &[Arc<Segment>],
        remembered: &[Arc<Segment>],
    ) -> Segments {
        let is_recorded = |one: &&Arc<Segment>| self.progress.left_out(one.number()).is_some();
        let recorded = segments.iter().filter(is_recorded);
        let gone = remembered.iter().filter(|one| one.resolved_at().is_some());
        let settled = recorded.chain(retained).chain(gone);
        settled.filter(|one| one.is_compacted()).cloned().collect()
    }

    /// Takes over what a compacted segment left out, and records it where progress does not know it.
    fn record(&self, compacted: &Segment, segments: &[Arc<Segment>]) -> Result<(), String> {
        let number = compacted.number();
        if let Some(left_out) = self.progress.left_out(number) {
            compacted.take_left_out(left_out);
            return Ok(());
        }
        let within: Segments = segments
            .iter()
            .filter(|one| replaces(compacted, one))
            .cloned()
            .collect();
        // A source of a source is counted in that one.
        let sources: Segments = within
            .iter()
            .filter(|one| !within.iter().any(|by| replaces(by, one)))
            .cloned()
            .collect();
        let index = self.load(compacted)?;
        let held = held(compacted, &sources, &index);
        let compaction = compaction(compacted, &sources, held).ok_or("it is empty")?;
        compacted.take_left_out(self.progress.compact(&compaction));
        Ok(())
    }

    /// Its index, which is made again from its rows where it is damaged.
    fn load(&self, compacted: &Segment) -> Result<SharedIndex, String> {
        let _changing = compacted
            .files
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let loaded = compacted.load(self.disk());
        if let Err(IndexError::Damaged(_)) = loaded {
            compacted
                .remake_index(
                    self.disk(),
                    self.recipe.hash_seed,
                    self.recipe.vfs.as_deref(),
                )
                .map_err(|error| error.to_string())?;
            return compacted
                .load(self.disk())
                .map_err(|error| error.to_string());
        }
        loaded.map_err(|error| error.to_string())
    }

    /// One that cannot be read, and that progress does not know: its sources serve on, where they are there.
    fn set_aside_compacted(&self, compacted: &Segment, reason: &str) -> Result<(), OpenError> {
        let disk = self.disk();
        let index = quarantine(disk, &compacted.index_path);
        index.map_err(|error| unusable(&compacted.index_path, &error))?;
        let aside = quarantine_database(disk, &compacted.path);
        let aside = aside.map_err(|error| unusable(&compacted.path, &error))?;
        self.condition.degraded(format!(
            "{} cannot be read: {reason}; it was put aside as {}",
            compacted.path.display(),
            aside.display()
        ));
        Ok(())
    }
}

/// Whether one segment was made of another, directly or not.
pub(crate) fn replaces(compacted: &Segment, other: &Segment) -> bool {
    let (Some(covers), Some(span)) = (compacted.identity.covers, other.span()) else {
        return false;
    };
    is_within((compacted.number(), covers), (other.number(), span))
}

/// The same, told by number and range of a compacted segment and number and span of another.
pub(crate) fn is_within(
    (number, (first, last)): (u64, (u64, u64)),
    (other, (from, to)): (u64, (u64, u64)),
) -> bool {
    // What has a higher number came after it.
    other < number && first <= from && to <= last
}

/// Of each lane that the sources of a compacted segment owed, what that holds.
pub(super) fn held(
    compacted: &Segment,
    sources: &[Arc<Segment>],
    index: &SharedIndex,
) -> BTreeMap<LaneId, Vec<u64>> {
    let counted = sources.iter().map(|source| source.counts());
    let destinations: BTreeSet<_> = counted
        .chain([compacted.counts()])
        .flat_map(BTreeMap::into_keys)
        .collect();
    destinations
        .into_iter()
        .map(|destination| {
            let sequences = index.lane_after(destination, 0).collect();
            (own_lane(destination), sequences)
        })
        .collect()
}

/// What progress records of a compaction; `None` for a segment that is none.
pub(super) fn compaction(
    compacted: &Segment,
    sources: &[Arc<Segment>],
    held: BTreeMap<LaneId, Vec<u64>>,
) -> Option<Compaction> {
    let (first, last) = compacted.identity.covers?;
    let sources = sources.iter().filter_map(|source| {
        let (first, last) = source.span()?;
        Some(Source {
            segment: source.number(),
            first: Sequence(first),
            last: Sequence(last),
        })
    });
    Some(Compaction {
        segment: compacted.number(),
        first: Sequence(first),
        last: Sequence(last),
        sources: sources.collect(),
        held,
    })
}
