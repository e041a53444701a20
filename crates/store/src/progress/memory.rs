//! The whole progress of a shard in memory, and which of it the file does not know yet. No IO: the
//! rules of settling are here, so that they can be tested against a simple model.
//!
//! Costs one bit per event between a lane's floor and its newest settlement, and some 50 bytes per
//! delivery that waits for another attempt; attempts and dead letters themselves lie in the file only. Where
//! dead letters refer to their events it is two bits.

mod compaction;
mod letters;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use wayhold_model::{LaneId, Sequence, Timestamp};

pub(crate) use self::compaction::{Compaction, LeftOut, Source};
pub(crate) use self::view::{LaneView, Stretch};
use crate::delivery::AttemptRecord;
use crate::progress::chunk::{self, Chunk, Touched};
use crate::progress::letter::{LetterChange, LetterNumbers, LetterPlace};

/// Chunks below a floor that one flush removes from the file: few enough to be no burden to it.
const CHUNKS_REMOVED_PER_FLUSH: usize = 64;

/// A delivery that was tried and is not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// Attempts that began.
    pub(crate) attempts: u32,
    /// Not before this time, where a failure set one.
    pub(crate) retry_at: Option<Timestamp>,
}

/// Counts of one lane, each the whole story of the shard. `pending` is the lane's to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Obligations of segments of which everything is resolved.
    pub(crate) accepted_base: u64,
    /// Confirmed by the destination.
    pub(crate) delivered: u64,
    /// Dead letters, without those under redrive.
    pub(crate) dead: u64,
    /// Ended by a stated rule.
    pub(crate) expired: u64,
    /// Ended by an operator.
    pub(crate) discarded: u64,
    /// Redrives ever started.
    pub(crate) redriven: u64,
    /// Redrives under way: they count as pending.
    pub(crate) redriving: u64,
}

/// A segment of which everything is resolved and counted in the base. Its database is kept for the
/// retention, on its way out, or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedSegment {
    /// Number of the segment.
    pub(crate) segment: u64,
    /// Its first sequence.
    pub(crate) first: Sequence,
    /// Its last sequence.
    pub(crate) last: Sequence,
}

/// Progress of one lane.
#[derive(Debug, Default)]
struct Lane {
    /// Every sequence of the lane below is resolved.
    floor: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// Events that dead letters refer to; no chunk is empty.
    referred: BTreeMap<u64, Chunk>,
    retries: BTreeMap<u64, Retry>,
    totals: Totals,
}

/// What the file does not know yet.
#[derive(Debug, Default)]
struct Changes {
    lanes: BTreeSet<LaneId>,
    chunks: BTreeSet<(LaneId, u64)>,
    referred: BTreeSet<(LaneId, u64)>,
    /// With the attempts to append. A retry that memory does not hold any more is to be removed.
    retries: BTreeMap<(LaneId, u64), Vec<AttemptRecord>>,
    letters: BTreeMap<u64, LetterChange>,
    segments: BTreeSet<u64>,
    compacted: BTreeSet<u64>,
    settlements: usize,
}

/// Progress of a shard.
#[derive(Debug, Default)]
pub(super) struct Memory {
    lanes: BTreeMap<LaneId, Lane>,
    /// Letters under redrive.
    redriving: BTreeMap<u64, LetterPlace>,
    segments: BTreeMap<u64, ResolvedSegment>,
    /// What compacted segments left out, of those that are not resolved.
    compacted: BTreeMap<u64, LeftOut>,
    next_letter: u64,
    letters: Arc<LetterNumbers>,
    changes: Changes,
    /// What is being written; comes back if that fails.
    writing: Option<Changes>,
    /// Chunks below a floor that the file still holds.
    stale: VecDeque<(LaneId, u64)>,
    stale_writing: Vec<(LaneId, u64)>,
    touched: Touched,
}

/// One consistent moment of what changed, ready to be written.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) next_letter: u64,
    pub(super) lanes: Vec<(LaneId, u64, Totals)>,
    pub(super) chunks: Vec<(LaneId, u64, Chunk)>,
    /// `None` where nothing of a chunk is referred to any more.
    pub(super) referred: Vec<(LaneId, u64, Option<Chunk>)>,
    pub(super) retries: BTreeMap<(LaneId, u64), (Option<Retry>, Vec<AttemptRecord>)>,
    pub(super) letters: Vec<(u64, LetterChange)>,
    pub(super) segments: Vec<(u64, Option<ResolvedSegment>)>,
    pub(super) compacted: Vec<(u64, Option<LeftOut>)>,
    /// Chunks to remove.
    pub(super) stale: Vec<(LaneId, u64)>,
}

/// What a file told at open.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) next_letter: u64,
    pub(super) lanes: Vec<(LaneId, u64, Totals)>,
    pub(super) chunks: Vec<(LaneId, u64, Chunk)>,
    pub(super) referred: Vec<(LaneId, u64, Chunk)>,
    pub(super) retries: Vec<(LaneId, u64, Retry)>,
    pub(super) redriving: Vec<(u64, LetterPlace)>,
    pub(super) segments: Vec<ResolvedSegment>,
    pub(super) compacted: Vec<(u64, LaneId, u64)>,
}

impl Memory {
    /// The memory of what a file told.
    pub(super) fn load(loaded: Loaded) -> Self {
        let mut memory = Self {
            next_letter: loaded.next_letter.max(1),
            ..Self::default()
        };
        memory.letters.raise(memory.next_letter);
        for (lane, floor, totals) in loaded.lanes {
            let lane = memory.lanes.entry(lane).or_default();
            lane.floor = floor;
            lane.totals = Totals {
                redriving: 0,
                ..totals
            };
        }
        for (id, number, chunk) in loaded.chunks {
            let lane = memory.lanes.entry(id).or_default();
            if number < chunk::number_of(lane.floor) {
                memory.stale.push_back((id, number));
            } else {
                lane.chunks.insert(number, chunk);
            }
        }
        for (id, number, chunk) in loaded.referred {
            let lane = memory.lanes.entry(id).or_default();
            lane.referred.insert(number, chunk);
        }
        for (id, sequence, retry) in loaded.retries {
            let lane = memory.lanes.entry(id).or_default();
            if lane.is_resolved(sequence) {
                memory.changes.retries.insert((id, sequence), Vec::new());
            } else {
                lane.retries.insert(sequence, retry);
            }
        }
        for (letter, place) in loaded.redriving {
            let lane = memory.lanes.entry(place.lane).or_default();
            lane.totals.redriving += 1;
            memory.redriving.insert(letter, place);
        }
        for resolved in loaded.segments {
            memory.segments.insert(resolved.segment, resolved);
        }
        for (segment, lane, left_out) in loaded.compacted {
            let lanes = memory.compacted.entry(segment).or_default();
            lanes.insert(lane, left_out);
        }
        memory
    }

    /// Numbers letters together with other shards, which may have given higher numbers.
    pub(super) fn number_with(&mut self, letters: Arc<LetterNumbers>) {
        letters.raise(self.next_letter);
        self.letters = letters;
    }

    /// A lane as it stands; one that nothing is known of has everything unresolved.
    pub(super) fn view(&self, lane: LaneId) -> LaneView<'_> {
        LaneView(self.lanes.get(&lane))
    }

    /// Records deliveries as confirmed.
    pub(super) fn deliver(&mut self, id: LaneId, sequences: impl Iterator<Item = Sequence>) {
        for sequence in sequences {
            if let Some(lane) = self.resolve(id, sequence) {
                lane.totals.delivered += 1;
            }
        }
    }

    /// Records a delivery as ended by a stated rule.
    pub(super) fn expire(&mut self, id: LaneId, sequence: Sequence) {
        if let Some(lane) = self.resolve(id, sequence) {
            lane.totals.expired += 1;
        }
    }

    /// Records that an attempt failed and when the next may start.
    pub(super) fn fail(
        &mut self,
        id: LaneId,
        sequence: Sequence,
        attempt: AttemptRecord,
        retry_at: Timestamp,
    ) {
        let number = attempt.number;
        if let Some((retry, attempts)) = self.retry(id, sequence) {
            retry.attempts = retry.attempts.max(number);
            retry.retry_at = Some(retry_at);
            attempts.push(attempt);
        }
    }

    /// Records that an attempt failed that does not count, and when the next one, of the same number, may start.
    pub(super) fn put_off(
        &mut self,
        id: LaneId,
        sequence: Sequence,
        attempt: AttemptRecord,
        retry_at: Timestamp,
    ) {
        let before = attempt.number.saturating_sub(1);
        if let Some((retry, attempts)) = self.retry(id, sequence) {
            retry.attempts = before;
            retry.retry_at = Some(retry_at);
            attempts.push(attempt);
        }
    }

    /// Records that an attempt is about to begin.
    pub(super) fn start(&mut self, id: LaneId, sequence: Sequence, number: u32) {
        if let Some((retry, _)) = self.retry(id, sequence) {
            retry.attempts = retry.attempts.max(number);
        }
    }

    /// Takes over that every sequence of the lane below `floor` is resolved.
    pub(super) fn raise_floor(&mut self, id: LaneId, floor: Sequence) {
        let lane = self.lanes.entry(id).or_default();
        if floor.0 <= lane.floor {
            return;
        }
        lane.floor = floor.0;
        let kept = lane.chunks.split_off(&chunk::number_of(floor.0));
        let stale = std::mem::replace(&mut lane.chunks, kept);
        self.stale
            .extend(stale.into_keys().map(|number| (id, number)));
        self.changes.lanes.insert(id);
    }

    /// Records that a segment is resolved, and what it had accepted per lane. Again is no difference.
    pub(super) fn resolve_segment(
        &mut self,
        resolved: ResolvedSegment,
        accepted: &[(LaneId, u64)],
    ) {
        if self.segments.insert(resolved.segment, resolved).is_some() {
            return;
        }
        self.changes.segments.insert(resolved.segment);
        self.forget_compacted(resolved.segment);
        for (id, count) in accepted {
            self.totals(*id).accepted_base += count;
        }
    }

    /// Forgets a resolved segment whose database is gone.
    pub(super) fn forget_segment(&mut self, segment: u64) {
        if self.segments.remove(&segment).is_some() {
            self.changes.segments.insert(segment);
        }
    }

    /// Adds obligations whose events lie in no segment any more.
    pub(super) fn add_accepted_base(&mut self, id: LaneId, count: u64) {
        self.totals(id).accepted_base += count;
    }

    /// Segments resolved and not forgotten.
    pub(super) fn resolved_segments(&self) -> Vec<ResolvedSegment> {
        self.segments.values().copied().collect()
    }

    /// Whether a segment is counted in the base.
    pub(super) fn is_counted(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Where something was resolved since this was last asked.
    pub(super) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// The highest sequence that anything here names.
    pub(super) fn highest(&self) -> u64 {
        let lanes = self.lanes.values().flat_map(|lane| {
            let resolved = lane
                .chunks
                .iter()
                .rev()
                .find_map(|(number, chunk)| chunk.highest(*number));
            let tried = lane.retries.last_key_value().map(|(sequence, _)| *sequence);
            [resolved, tried, lane.floor.checked_sub(1)]
                .into_iter()
                .flatten()
        });
        lanes
            .chain(self.segments.values().map(|segment| segment.last.0))
            .max()
            .unwrap_or(0)
    }

    /// Settlements since the last batch.
    pub(super) fn settlements(&self) -> usize {
        self.changes.settlements
    }

    /// Whether the file holds chunks that nobody needs.
    pub(super) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Takes what changed, to be written. Ends with `written` or `not_written`.
    pub(super) fn take(&mut self) -> Batch {
        let changes = std::mem::take(&mut self.changes);
        let touched = changes.chunks.iter().chain(&changes.referred);
        self.touched.extend(touched.map(|(_, number)| *number));
        let chunk_of = |(id, number): &(LaneId, u64)| {
            let chunk = self.lanes.get(id)?.chunks.get(number)?;
            Some((*id, *number, chunk.clone()))
        };
        let referred_of = |(id, number): &(LaneId, u64)| {
            let lane = self.lanes.get(id);
            let chunk = lane.and_then(|lane| lane.referred.get(number));
            (*id, *number, chunk.cloned())
        };
        let retry_of =
            |(id, sequence): &(LaneId, u64)| self.lanes.get(id)?.retries.get(sequence).copied();
        let batch = Batch {
            next_letter: self.next_letter,
            lanes: changes
                .lanes
                .iter()
                .filter_map(|id| self.lanes.get(id).map(|l| (*id, l.floor, l.totals)))
                .collect(),
            chunks: changes.chunks.iter().filter_map(chunk_of).collect(),
            referred: changes.referred.iter().map(referred_of).collect(),
            retries: changes
                .retries
                .iter()
                .map(|(key, attempts)| (*key, (retry_of(key), attempts.clone())))
                .collect(),
            letters: changes
                .letters
                .iter()
                .map(|(letter, change)| (*letter, change.clone()))
                .collect(),
            segments: changes
                .segments
                .iter()
                .map(|segment| (*segment, self.segments.get(segment).copied()))
                .collect(),
            compacted: changes
                .compacted
                .iter()
                .map(|segment| (*segment, self.left_out(*segment)))
                .collect(),
            stale: self
                .stale
                .drain(..self.stale.len().min(CHUNKS_REMOVED_PER_FLUSH))
                .collect(),
        };
        self.stale_writing.clone_from(&batch.stale);
        self.writing = Some(changes);
        batch
    }

    /// The batch is durable.
    pub(super) fn written(&mut self) {
        self.writing = None;
        self.stale_writing.clear();
    }

    /// The batch is not in the file: what it held is to be written with what changed since.
    pub(super) fn not_written(&mut self) {
        self.stale.extend(self.stale_writing.drain(..));
        let Some(mut earlier) = self.writing.take() else {
            return;
        };
        let later = std::mem::take(&mut self.changes);
        earlier.lanes.extend(later.lanes);
        earlier.chunks.extend(later.chunks);
        earlier.referred.extend(later.referred);
        earlier.segments.extend(later.segments);
        earlier.compacted.extend(later.compacted);
        earlier.settlements += later.settlements;
        for (key, attempts) in later.retries {
            earlier.retries.entry(key).or_default().extend(attempts);
        }
        for (letter, change) in later.letters {
            let change = match earlier.letters.remove(&letter) {
                Some(before) => before.then(change),
                None => change,
            };
            earlier.letters.insert(letter, change);
        }
        self.changes = earlier;
    }

    /// Marks everything as unknown to the file, for a new one.
    pub(super) fn mark_all(&mut self) {
        self.stale.clear();
        for (id, lane) in &self.lanes {
            self.changes.lanes.insert(*id);
            self.changes
                .chunks
                .extend(lane.chunks.keys().map(|number| (*id, *number)));
            self.changes
                .referred
                .extend(lane.referred.keys().map(|number| (*id, *number)));
            for sequence in lane.retries.keys() {
                self.changes.retries.entry((*id, *sequence)).or_default();
            }
        }
        self.changes.segments.extend(self.segments.keys());
        self.changes.compacted.extend(self.compacted.keys());
    }

    fn totals(&mut self, id: LaneId) -> &mut Totals {
        self.changes.lanes.insert(id);
        &mut self.lanes.entry(id).or_default().totals
    }

    /// Sets the bit and forgets the retry; `None` where the bit was set, so that nothing counts twice.
    fn resolve(&mut self, id: LaneId, sequence: Sequence) -> Option<&mut Lane> {
        let sequence = sequence.0;
        let lane = self.lanes.entry(id).or_default();
        let number = chunk::number_of(sequence);
        if sequence < lane.floor
            || !lane
                .chunks
                .entry(number)
                .or_insert_with(Chunk::new)
                .set(sequence)
        {
            return None;
        }
        if lane.retries.remove(&sequence).is_some() {
            self.changes.retries.entry((id, sequence)).or_default();
        }
        self.changes.chunks.insert((id, number));
        self.changes.lanes.insert(id);
        self.changes.settlements += 1;
        Some(lane)
    }

    /// The retry of an unresolved delivery, made where there is none, and the attempts to append.
    fn retry(
        &mut self,
        id: LaneId,
        sequence: Sequence,
    ) -> Option<(&mut Retry, &mut Vec<AttemptRecord>)> {
        let lane = self.lanes.entry(id).or_default();
        if lane.is_resolved(sequence.0) {
            return None;
        }
        let retry = lane.retries.entry(sequence.0).or_insert(Retry {
            attempts: 0,
            retry_at: None,
        });
        let attempts = self.changes.retries.entry((id, sequence.0)).or_default();
        Some((retry, attempts))
    }
}

impl Lane {
    fn is_resolved(&self, sequence: u64) -> bool {
        sequence < self.floor
            || self
                .chunks
                .get(&chunk::number_of(sequence))
                .is_some_and(|chunk| chunk.contains(sequence))
    }
}
