//! Reads one lane's deliveries of one shard in order: from memory at the tail, else by the lists of index
//! files. Several readers may share a shard: then each reads the deliveries of its own keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wayhold_model::{DestinationId, LaneId, Sequence, StoredEvent};

use crate::delivery::Delivery;
use crate::error::ReadError;
use crate::lane::places::Wanted;
use crate::shard::core::Shard;
use crate::shard::index_file::{IndexError, SharedIndex};
use crate::shard::segment::Segment;

/// One lane's place in one shard.
pub(super) struct ShardReader {
    shard: Arc<Shard>,
    id: LaneId,
    destination: DestinationId,
    cursor: u64,
    /// At or below it deliveries may have been tried or resolved before this lane was opened; above it
    /// everything read is new, and progress need not be asked unless something was set aside meanwhile.
    known_until: u64,
    /// The index file that is being walked, kept loaded between reads.
    walked: Option<SharedIndex>,
}

impl ShardReader {
    /// The shard that it reads.
    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Everything up to here was read.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    pub(super) fn new(shard: Arc<Shard>, id: LaneId, destination: DestinationId) -> Self {
        let floor = shard.progress.view(id, |view| view.floor().0);
        // Everything stored before the lane was opened may have a past.
        let known_until = shard.newest.load(Ordering::Acquire);
        Self {
            shard,
            id,
            destination,
            cursor: floor.saturating_sub(1),
            known_until,
            walked: None,
        }
    }

    /// The next unresolved deliveries, if they are in memory. `Some(empty)`: nothing newer is stored.
    /// `None`: the next ones lie on disk, use `read`. Never blocks.
    pub(super) fn read_cached(&mut self, max: usize, wanted: &Wanted<'_>) -> Option<Vec<Delivery>> {
        loop {
            let mut events = Vec::new();
            // Where a full batch ended.
            let mut full_at = None;
            let tail = &self.shard.tail;
            let newest = tail.each_after(self.destination, self.cursor, |event| {
                let sequence = event.position.sequence.0;
                if sequence > wanted.through {
                    return false;
                }
                if wanted.takes(event.key_hash) {
                    events.push(Arc::clone(event));
                }
                let is_full = events.len() >= max;
                full_at = is_full.then_some(sequence);
                !is_full
            })?;
            let found = !events.is_empty();
            let read_to = full_at.unwrap_or(newest.min(wanted.through));
            self.cursor = self.cursor.max(read_to);
            let deliveries = self.unresolved(events);
            // A stretch that was resolved before says nothing of what follows it.
            if !deliveries.is_empty() || !found {
                return Some(deliveries);
            }
        }
    }

    /// The next unresolved deliveries, at most `max`; may read the disk. Empty: nothing newer is stored.
    ///
    /// # Errors
    /// A file cannot be read; reading again may help. Damaged rows are skipped and named in health.
    pub(super) fn read(
        &mut self,
        max: usize,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Delivery>, ReadError> {
        loop {
            if self.cursor >= wanted.through {
                return Ok(Vec::new());
            }
            if let Some(deliveries) = self.read_cached(max, wanted) {
                self.walked = None;
                return Ok(deliveries);
            }
            let newest = self
                .shard
                .newest
                .load(Ordering::Acquire)
                .min(wanted.through);
            let next = self.shard.segments().into_iter().find_map(|segment| {
                let (_, last) = segment.span()?;
                // What is newer is not shown yet: some of it may still be set aside.
                let last = last.min(newest);
                (last > self.cursor).then_some((segment, last))
            });
            let Some((segment, last)) = next else {
                // The rest of the way to the tail was burned or is gone.
                self.cursor = self.cursor.max(newest);
                continue;
            };
            let deliveries = match self.read_segment(&segment, last, max, wanted) {
                // It was compacted while this read it: the list names its successor.
                Err(_) if segment.is_replaced() => continue,
                read => read?,
            };
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    fn read_segment(
        &mut self,
        segment: &Segment,
        last: u64,
        max: usize,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Delivery>, ReadError> {
        let shard = Arc::clone(&self.shard);
        if segment.is_indexed() {
            let mut loaded = segment.load(shard.disk.as_ref());
            if let Err(error) = &loaded
                && shard.mend_index(segment, error)
            {
                loaded = segment.load(shard.disk.as_ref());
            }
            self.walked = loaded.ok();
        }
        let mut sequences = segment
            .lane_after(shard.disk.as_ref(), self.destination, self.cursor, max)
            .map_err(|error| unreadable(&shard, segment, &error))?;
        sequences.retain(|sequence| *sequence <= last);
        let Some(&reached) = sequences.last() else {
            self.cursor = self.cursor.max(last);
            return Ok(Vec::new());
        };
        shard.progress.view(self.id, |view| {
            sequences.retain(|sequence| !view.is_resolved(Sequence(*sequence)));
        });
        if sequences.is_empty() {
            self.cursor = reached;
            return Ok(Vec::new());
        }
        let rows = shard.rows(segment, &sequences)?;
        // A read that was cut for its size goes on after its last row; a whole one after all it saw.
        self.cursor = match sequences.get(rows.len().wrapping_sub(1)) {
            Some(cut) if rows.len() < sequences.len() => *cut,
            _ => reached,
        };
        let rows = rows.into_iter().flatten();
        Ok(self.unresolved(rows.filter(|row| wanted.takes(row.key_hash)).collect()))
    }

    /// Joins events with their past; resolved ones are left out.
    fn unresolved(&self, events: Vec<Arc<StoredEvent>>) -> Vec<Delivery> {
        let fresh = |event| Delivery {
            event,
            attempts: 0,
            retry_at: None,
        };
        let known_until = u64::max(
            self.known_until,
            self.shard.set_aside_until.load(Ordering::Acquire),
        );
        if events
            .first()
            .is_none_or(|event| event.position.sequence.0 > known_until)
        {
            return events.into_iter().map(fresh).collect();
        }
        self.shard.progress.view(self.id, |view| {
            events
                .into_iter()
                .filter(|event| !view.is_resolved(event.position.sequence))
                .map(|event| match view.retry_of(event.position.sequence) {
                    Some(retry) => Delivery {
                        event,
                        attempts: retry.attempts,
                        retry_at: retry.retry_at,
                    },
                    None => fresh(event),
                })
                .collect()
        })
    }
}

/// A segment's index cannot be read; named in health.
pub(crate) fn unreadable(shard: &Shard, segment: &Segment, error: &IndexError) -> ReadError {
    let failed = ReadError::Failed {
        file: segment.index_path.display().to_string(),
        reason: error.to_string(),
    };
    // One that was compacted goes: whoever asks again asks its successor.
    if !segment.is_replaced() {
        shard.condition.degraded(failed.to_string());
    }
    failed
}
