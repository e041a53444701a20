//! What a shard's threads and readers share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use wayhold_model::{
    Clock, DestinationId, Generation, LaneId, Position, Sequence, ShardId, StoredEvent, Timestamp,
};

use super::readers::{Readers, RowsError};
use super::segment::Segment;
use super::tail::Tail;
use crate::catalog::Catalog;
use crate::disk::Disk;
use crate::error::ReadError;
use crate::figures::{COMMIT_BUCKETS, GROUP_BUCKETS};
use crate::options::Options;
use crate::progress::{LeftOut, Progress};
use crate::space::Space;
use crate::window::Window;

/// One shard, as everybody but its writer sees it.
pub(crate) struct Shard {
    pub(crate) generation: Generation,
    pub(crate) id: ShardId,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hash_seed: u64,
    /// Segments with something unresolved, and those that take rows, ascending by sequence (not by number:
    /// a compacted one has a higher number than its place tells); the last is active.
    pub(crate) segments: RwLock<Vec<Arc<Segment>>>,
    /// Segments of which everything is resolved and whose database is kept for the retention, and those that
    /// were compacted and go; ascending by sequence.
    pub(crate) retained: RwLock<Vec<Arc<Segment>>>,
    /// Segments of which only the index file is left, ascending by sequence.
    pub(crate) remembered: RwLock<Vec<Arc<Segment>>>,
    /// Compacted segments that the keeper has not looked at yet.
    pub(crate) compacted: Mutex<Vec<Arc<Segment>>>,
    /// Held while a compacted segment takes the place of its sources, from the moment at which nobody needs
    /// those to stay until progress says it durably. Says whether a backup is under way, during which none does.
    pub(crate) exchange: Mutex<bool>,
    /// Number of the next segment to make, whoever makes it.
    pub(crate) next_number: Arc<AtomicU64>,
    pub(crate) readers: Readers,
    pub(crate) tail: Tail,
    pub(crate) window: Arc<Window>,
    pub(crate) space: Arc<Space>,
    pub(crate) progress: Progress,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) condition: Condition,
    pub(crate) commits: Commits,
    /// Compactions since the start, and the bytes that they gave back.
    pub(crate) compactions: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
    /// The newest committed sequence that lanes may read.
    pub(crate) newest: AtomicU64,
    /// The newest sequence of which a delivery was set aside when it was stored.
    pub(crate) set_aside_until: AtomicU64,
    /// Whether nothing is added any more: then `newest` is the end.
    pub(crate) closed: AtomicBool,
    /// Bytes of resolved segments that it may keep: its share of the store's.
    pub(crate) retention_bytes: AtomicU64,
    /// Bytes of resolved segments that replays need, as `space` knows.
    pub(crate) needed_bytes: AtomicU64,
    /// Whether the last run ended without a clean stop.
    pub(crate) unclean: bool,
    /// Wakes the keeper before its next round, and whoever waits for the keeper after it.
    pub(crate) keeper: Gate,
    /// Whether the mark was written since its last sync.
    pub(crate) mark_dirty: AtomicBool,
}

/// No segment of the shard is exchanged for a compacted one as long as this lives; one at a time.
pub(crate) struct HeldSegments(Arc<Shard>);

impl Drop for HeldSegments {
    fn drop(&mut self) {
        let exchange = self.0.exchange.lock();
        *exchange.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Shard {
    /// The public place of a sequence.
    pub(crate) fn position(&self, sequence: u64) -> Position {
        Position {
            generation: self.generation,
            shard: self.id,
            sequence: Sequence(sequence),
        }
    }

    /// Whether a position is one of this shard's.
    pub(crate) fn holds(&self, position: Position) -> bool {
        (position.generation, position.shard) == (self.generation, self.id)
    }

    /// Whether nothing is added any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether nothing is added any more, and nothing of what it holds is unresolved.
    pub(crate) fn is_drained(&self) -> bool {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        self.is_closed() && segments.is_empty()
    }

    /// When its newest event was accepted; store time goes on from there.
    pub(crate) fn newest_at(&self) -> Timestamp {
        let newest = self.known().iter().map(|segment| segment.newest()).max();
        Timestamp::from_micros(newest.unwrap_or(0))
    }

    /// The lane of a destination; `None` for one that the catalogue does not know.
    pub(crate) fn lane_of(&self, destination: DestinationId) -> Option<LaneId> {
        self.catalog
            .destination(destination)
            .map(|record| record.lane)
    }

    /// Segments with something unresolved and those that take rows, ascending.
    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        copied(&self.segments)
    }

    /// Resolved segments whose database is kept, ascending.
    pub(crate) fn retained(&self) -> Vec<Arc<Segment>> {
        copied(&self.retained)
    }

    /// Segments of which only the index file is left, ascending.
    pub(crate) fn remembered(&self) -> Vec<Arc<Segment>> {
        copied(&self.remembered)
    }

    /// Every segment that is known by its index or more, ascending.
    pub(crate) fn known(&self) -> Vec<Arc<Segment>> {
        // In the order in which a segment moves, so that none is missed on its way.
        let mut known = self.segments();
        known.extend(self.retained());
        known.extend(copied(&self.remembered));
        known.sort_by_cached_key(|segment| segment.place());
        known.dedup_by_key(|segment| segment.number());
        known
    }

    /// Closed segments of the writer's with something unresolved, from this number on.
    pub(crate) fn closed_from(&self, number: u64) -> Vec<Arc<Segment>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let is_new = |segment: &&Arc<Segment>| segment.is_compacted() || segment.number() >= number;
        let new = segments.iter().rev().take_while(is_new);
        let closed = |segment: &&Arc<Segment>| !segment.is_compacted() && segment.is_closed();
        let mut new: Vec<Arc<Segment>> = new.filter(closed).cloned().collect();
        new.reverse();
        new
    }

    /// A new segment takes over as the active one.
    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(segment);
    }

    /// A resolved segment is kept for the retention; lanes and accounts look at it no more.
    pub(crate) fn retain_segment(&self, segment: &Arc<Segment>) {
        self.space.keep(segment.bytes.load(Ordering::Relaxed));
        insert(&self.retained, segment);
        remove(&self.segments, segment.number());
    }

    /// A segment whose database is gone is remembered by its index file.
    pub(crate) fn remember_segment(&self, segment: &Arc<Segment>) {
        insert(&self.remembered, segment);
        remove(&self.retained, segment.number());
        self.space.give_back(segment.bytes.load(Ordering::Relaxed));
    }

    /// A compacted segment takes the place of its sources; `record` makes progress count it so at the same
    /// moment. The sources go as soon as progress says it durably.
    pub(crate) fn exchange_segments(
        &self,
        sources: &[Arc<Segment>],
        compacted: &Arc<Segment>,
        record: impl FnOnce() -> LeftOut,
    ) {
        // In the order in which a segment moves, so that none is missed on its way.
        for source in sources {
            self.space.keep(source.bytes.load(Ordering::Relaxed));
            insert(&self.retained, source);
        }
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        compacted.take_left_out(record());
        for source in sources {
            source.replace_by_compacted();
        }
        segments.retain(|segment| !segment.is_replaced());
        let at = segments.partition_point(|other| other.place() < compacted.place());
        segments.insert(at, Arc::clone(compacted));
        drop(segments);
        let mut new = self
            .compacted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        new.push(Arc::clone(compacted));
    }

    /// Lets no compacted segment take the place of its sources until what is returned is dropped. A backup has
    /// its progress of one moment and its segments of later ones; what was counted in a source that only one of
    /// the two knows could not be told from what was not.
    pub(crate) fn hold_segments(self: &Arc<Self>) -> HeldSegments {
        *self.exchange.lock().unwrap_or_else(PoisonError::into_inner) = true;
        HeldSegments(Arc::clone(self))
    }

    /// Whether a replay needs events of a segment, which stays whole until it does not any more.
    pub(crate) fn is_needed_again(&self, segment: &Segment) -> bool {
        let needed = self.catalog.needed_again();
        if needed.is_empty() {
            return false;
        }
        // One that cannot tell its age may be as old as any.
        let oldest = segment
            .oldest(self.disk.as_ref())
            .ok()
            .flatten()
            .unwrap_or(0);
        needed
            .iter()
            .any(|range| range.meets(oldest, segment.newest()))
    }

    /// Whether somebody needs segments to stay as they are.
    pub(crate) fn holds_segments(&self) -> bool {
        *self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment that never held anything leaves no trace.
    pub(crate) fn forget_empty(&self, segment: &Segment) {
        remove(&self.segments, segment.number());
    }

    /// The segment, with a database or without, that holds a sequence. Reads the disk where that lies in a
    /// compacted one.
    pub(crate) fn segment_of(&self, sequence: u64) -> Option<(Arc<Segment>, Held)> {
        // In the order in which a segment moves, so that none is missed on its way.
        [
            // Of these no two span the same sequence.
            (&self.segments, 1, Held::Whole),
            (&self.retained, usize::MAX, Held::Whole),
            (&self.remembered, usize::MAX, Held::IndexOnly),
        ]
        .into_iter()
        .find_map(|(list, most, held)| {
            let spanning = spanning(list, sequence, most).into_iter();
            let disk = self.disk.as_ref();
            // One whose index cannot be read says so to whoever asks it next.
            let mut holding =
                spanning.filter(|segment| segment.holds(disk, sequence).unwrap_or(true));
            Some((holding.next()?, held))
        })
    }

    /// One event, from memory or disk.
    pub(crate) fn event(&self, sequence: u64) -> Result<Option<Arc<StoredEvent>>, ReadError> {
        if let Some(event) = self.tail.get(sequence) {
            return Ok(Some(event));
        }
        let mut gone = None;
        loop {
            let Some((segment, Held::Whole)) = self.segment_of(sequence) else {
                return Ok(None);
            };
            let rows = self.rows(&segment, &[sequence]);
            match rows.map(|mut rows| rows.pop()) {
                Ok(Some(Ok(row))) => return Ok(Some(row)),
                // It was resolved and removed while this looked, or lies in a compacted segment now.
                _ if segment.is_dropped() => {
                    if gone.replace(segment.number()) == Some(segment.number()) {
                        return Ok(None);
                    }
                }
                Ok(_) => {
                    return Err(ReadError::Damaged {
                        position: self.position(sequence),
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Events of a segment by sequence, ascending; `Err` holds the sequence of a damaged row, which is
    /// reported in health.
    pub(crate) fn rows(
        &self,
        segment: &Segment,
        sequences: &[u64],
    ) -> Result<Vec<Result<Arc<StoredEvent>, u64>>, ReadError> {
        let context = (self.hash_seed, self.options.vfs.as_deref());
        let bytes_max = crate::options::READ_BYTES_MAX;
        let rows = match self.readers.rows(segment, sequences, bytes_max, context) {
            Ok(rows) => rows,
            Err(error) => {
                let failed = self.unreadable(segment, &error);
                if segment.is_dropped() || !error.is_lasting(&segment.path) {
                    return Err(failed);
                }
                // A lane that waited for this file would wait for ever, with everything behind it.
                sequences.iter().copied().map(Err).collect()
            }
        };
        Ok(rows
            .into_iter()
            .map(|row| {
                if let Err(sequence) = &row
                    && !segment.is_dropped()
                {
                    self.condition.degraded(format!(
                        "event {} in {} is damaged on disk",
                        self.position(*sequence),
                        segment.path.display()
                    ));
                }
                row.map(|row| row.stored)
            })
            .collect())
    }

    fn unreadable(&self, segment: &Segment, error: &RowsError) -> ReadError {
        let failed = ReadError::Failed {
            file: segment.path.display().to_string(),
            reason: error.to_string(),
        };
        if !segment.is_dropped() {
            self.condition.degraded(failed.to_string());
        }
        failed
    }
}

fn copied(list: &RwLock<Vec<Arc<Segment>>>) -> Vec<Arc<Segment>> {
    list.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// At most so many segments of a list that span a sequence, the last first.
fn spanning(list: &RwLock<Vec<Arc<Segment>>>, sequence: u64, most: usize) -> Vec<Arc<Segment>> {
    let list = list.read().unwrap_or_else(PoisonError::into_inner);
    let until = list.partition_point(|segment| segment.place().0 <= sequence);
    let begun = list.get(..until).unwrap_or_default().iter().rev();
    let spans = |segment: &&Arc<Segment>| segment.span().is_some_and(|(_, last)| sequence <= last);
    begun.filter(spans).take(most).cloned().collect()
}

/// Segments move in any order; look-ups expect them ascending.
fn insert(list: &RwLock<Vec<Arc<Segment>>>, segment: &Arc<Segment>) {
    let mut list = list.write().unwrap_or_else(PoisonError::into_inner);
    let at = list.partition_point(|other| other.place() < segment.place());
    list.insert(at, Arc::clone(segment));
}

fn remove(list: &RwLock<Vec<Arc<Segment>>>, number: u64) {
    list.write()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|segment| segment.number() != number);
}

/// How much of an event is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Its row.
    Whole,
    /// Only its trace in the index file.
    IndexOnly,
}

/// One bell per lane, rung when something for it was committed.
#[derive(Default)]
pub(crate) struct Bells {
    bells: RwLock<HashMap<DestinationId, Arc<Notify>>>,
}

impl Bells {
    /// The bell of one lane.
    pub(crate) fn of(&self, destination: DestinationId) -> Arc<Notify> {
        let mut bells = self.bells.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(bells.entry(destination).or_default())
    }

    /// Rings for all lanes: there may be something for them where there was nothing.
    pub(crate) fn ring_all(&self) {
        let bells = self.bells.read().unwrap_or_else(PoisonError::into_inner);
        for bell in bells.values() {
            bell.notify_one();
        }
    }

    /// Rings for these lanes.
    pub(crate) fn ring(&self, destinations: &[DestinationId]) {
        let bells = self.bells.read().unwrap_or_else(PoisonError::into_inner);
        for destination in destinations {
            if let Some(bell) = bells.get(destination) {
                bell.notify_one();
            }
        }
    }
}

/// Whether a shard can write, and what a person should know of it.
#[derive(Default)]
pub(crate) struct Condition {
    unavailable: RwLock<Option<String>>,
    is_unavailable: AtomicBool,
    degraded: Mutex<Vec<String>>,
}

/// Most findings kept: after so many of one kind the next one says nothing new.
const FINDINGS_MAX: usize = 100;

impl Condition {
    /// Why nothing can be written now.
    pub(crate) fn unavailable(&self) -> Option<String> {
        if !self.is_unavailable.load(Ordering::Acquire) {
            return None;
        }
        self.unavailable
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Nothing can be written from now on, or (`None`) it can again.
    pub(crate) fn set_unavailable(&self, reason: Option<String>) {
        let mut unavailable = self
            .unavailable
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.is_unavailable
            .store(reason.is_some(), Ordering::Release);
        *unavailable = reason;
    }

    /// Adds a finding, logged once.
    pub(crate) fn degraded(&self, finding: String) {
        let mut degraded = self.degraded.lock().unwrap_or_else(PoisonError::into_inner);
        if degraded.len() < FINDINGS_MAX && !degraded.contains(&finding) {
            tracing::error!(finding, "the store is degraded");
            degraded.push(finding);
        }
    }

    /// All findings since the start.
    pub(crate) fn findings(&self) -> Vec<String> {
        self.degraded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Counts of commits since the start.
#[derive(Default)]
pub(crate) struct Commits {
    pub(crate) groups: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) by_duration: [AtomicU64; COMMIT_BUCKETS.len() + 1],
    pub(crate) by_size: [AtomicU64; GROUP_BUCKETS.len() + 1],
}

impl Commits {
    /// One commit of `events` events that took `took`.
    pub(crate) fn count(&self, events: usize, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let events = events as u64;
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        for (counts, bounds, value) in [
            (
                self.by_duration.as_slice(),
                COMMIT_BUCKETS.as_slice(),
                micros,
            ),
            (self.by_size.as_slice(), GROUP_BUCKETS.as_slice(), events),
        ] {
            let bucket = bounds.partition_point(|bound| *bound < value);
            if let Some(count) = counts.get(bucket) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Lets one thread wake another before its next round, and wait for a round's end.
#[derive(Default)]
pub(crate) struct Gate {
    rounds: Mutex<Rounds>,
    changed: Condvar,
}

#[derive(Default)]
struct Rounds {
    wanted: bool,
    ended: u64,
}

impl Gate {
    /// Asks for a round soon.
    pub(crate) fn wake(&self) {
        self.rounds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wanted = true;
        self.changed.notify_all();
    }

    /// Waits until somebody asks for a round, at most `timeout`.
    pub(crate) fn await_wake(&self, timeout: Duration) {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rounds, _) = self
            .changed
            .wait_timeout_while(rounds, timeout, |rounds| !rounds.wanted)
            .unwrap_or_else(PoisonError::into_inner);
        rounds.wanted = false;
    }

    /// A round has ended.
    pub(crate) fn round_ended(&self) {
        self.rounds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ended += 1;
        self.changed.notify_all();
    }

    /// Asks for a round and waits until one ends, at most `timeout`.
    pub(crate) fn await_round(&self, timeout: Duration) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.wanted = true;
        self.changed.notify_all();
        let before = rounds.ended;
        drop(
            self.changed
                .wait_timeout_while(rounds, timeout, |rounds| rounds.ended == before)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
