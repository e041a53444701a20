//! A lane's face of the store: one destination's deliveries in order, and what became of them.

use std::sync::Arc;

use tokio::sync::Notify;
use wayhold_model::{DestinationId, LaneId, Position, Sequence, StoredEvent, Timestamp};

use crate::delivery::{AttemptRecord, DeadLetter, Delivery, Resolution};
use crate::error::ReadError;
use crate::progress::{LetterError, NotDurable};
use crate::shard::core::Shard;
use crate::shard::index_file::{IndexError, SharedIndex};
use crate::shard::segment::Segment;

/// Reads one lane's deliveries in order; one owner.
pub struct Lane {
    handle: LaneHandle,
    cursor: u64,
    /// At or below it deliveries may have been tried or resolved before this lane was opened; above it
    /// everything read is new, and progress need not be asked.
    known_until: u64,
    /// The index file that is being walked, kept loaded between reads.
    walked: Option<SharedIndex>,
}

/// The rest of a lane's face, shareable.
#[derive(Clone)]
pub struct LaneHandle {
    shard: Arc<Shard>,
    id: LaneId,
    destination: DestinationId,
    bell: Arc<Notify>,
}

impl Lane {
    pub(crate) fn new(shard: Arc<Shard>, id: LaneId, destination: DestinationId) -> Self {
        let floor = shard.progress.view(id, |view| view.floor().0);
        let bell = shard.bells.of(destination);
        // Everything stored before the lane was opened may have a past.
        let known_until = shard.newest.load(std::sync::atomic::Ordering::Acquire);
        let handle = LaneHandle {
            shard,
            id,
            destination,
            bell,
        };
        Self {
            handle,
            cursor: floor.saturating_sub(1),
            known_until,
            walked: None,
        }
    }

    /// The next unresolved deliveries, if they are in memory. `Some(empty)`: nothing newer is stored.
    /// `None`: the next ones lie on disk, use `read`. Never blocks.
    pub fn read_cached(&mut self, max: usize) -> Option<Vec<Delivery>> {
        loop {
            let mut events = Vec::new();
            let mut cursor = self.cursor;
            let destination = self.handle.destination;
            let cached = self.handle.shard.tail.each_after(self.cursor, |event| {
                cursor = event.position.sequence.0;
                if event.destinations.contains(destination) {
                    events.push(Arc::clone(event));
                }
                events.len() < max
            });
            if !cached {
                return None;
            }
            let found = !events.is_empty();
            self.cursor = cursor;
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
    pub fn read(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            if let Some(deliveries) = self.read_cached(max) {
                self.walked = None;
                return Ok(deliveries);
            }
            let newest = self
                .handle
                .shard
                .newest
                .load(std::sync::atomic::Ordering::Acquire);
            let next = self
                .handle
                .shard
                .segments()
                .into_iter()
                .find_map(|segment| {
                    let (_, last) = segment.span()?;
                    (last > self.cursor).then_some((segment, last))
                });
            let Some((segment, last)) = next else {
                // The rest of the way to the tail was burned or is gone.
                self.cursor = self.cursor.max(newest);
                continue;
            };
            let deliveries = self.read_segment(&segment, last, max)?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    /// The last position read.
    pub fn cursor(&self) -> Option<Position> {
        (self.cursor > 0).then(|| self.handle.shard.position(self.cursor))
    }

    /// The shareable rest.
    pub fn handle(&self) -> LaneHandle {
        self.handle.clone()
    }

    fn read_segment(
        &mut self,
        segment: &Segment,
        last: u64,
        max: usize,
    ) -> Result<Vec<Delivery>, ReadError> {
        let shard = Arc::clone(&self.handle.shard);
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
            .lane_after(
                shard.disk.as_ref(),
                self.handle.destination,
                self.cursor,
                max,
            )
            .map_err(|error| unreadable(&shard, segment, &error))?;
        let Some(&reached) = sequences.last() else {
            self.cursor = self.cursor.max(last);
            return Ok(Vec::new());
        };
        shard.progress.view(self.handle.id, |view| {
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
        Ok(self.unresolved(rows.into_iter().flatten().collect()))
    }

    /// Joins events with their past; resolved ones are left out.
    fn unresolved(&self, events: Vec<Arc<StoredEvent>>) -> Vec<Delivery> {
        let fresh = |event| Delivery {
            event,
            attempts: 0,
            retry_at: None,
        };
        if events
            .first()
            .is_none_or(|event| event.position.sequence.0 > self.known_until)
        {
            return events.into_iter().map(fresh).collect();
        }
        self.handle.shard.progress.view(self.handle.id, |view| {
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

impl LaneHandle {
    /// The lane's durable number.
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// The destination it serves.
    pub fn destination(&self) -> DestinationId {
        self.destination
    }

    /// Resolves when something for this lane was committed since this was last awaited.
    pub async fn appended(&self) {
        self.bell.notified().await;
    }

    /// The event, if it is in memory.
    pub fn event_cached(&self, position: Position) -> Option<Arc<StoredEvent>> {
        self.shard.tail.get(position.sequence.0)
    }

    /// The event; may read the disk.
    ///
    /// # Errors
    /// `Damaged` where it is gone for good, `Failed` where reading again may help.
    pub fn event(&self, position: Position) -> Result<Arc<StoredEvent>, ReadError> {
        self.shard
            .event(position.sequence.0)?
            .ok_or(ReadError::Damaged { position })
    }

    /// At most `max` unresolved deliveries of this key in `(after, through]`, in order; may read the
    /// disk.
    ///
    /// # Errors
    /// A file cannot be read; reading again may help.
    pub fn next_of_key(
        &self,
        key_hash: u64,
        after: Position,
        through: Position,
        max: usize,
    ) -> Result<Vec<Position>, ReadError> {
        let span = (after.sequence.0, through.sequence.0);
        let mut found = Vec::new();
        for segment in self.shard.segments() {
            let Some((first, last)) = segment.span() else {
                continue;
            };
            if last <= span.0 || first > span.1 {
                continue;
            }
            let sequences = segment
                .key_after(self.shard.disk.as_ref(), self.destination, key_hash, span)
                .map_err(|error| unreadable(&self.shard, &segment, &error))?;
            self.shard.progress.view(self.id, |view| {
                let unresolved = sequences
                    .into_iter()
                    .filter(|sequence| !view.is_resolved(Sequence(*sequence)));
                found.extend(unresolved.map(|sequence| self.shard.position(sequence)));
            });
            if found.len() >= max {
                break;
            }
        }
        found.truncate(max);
        Ok(found)
    }

    /// Records that a delivery is resolved; durable within 25 ms.
    pub fn settle(&self, event: &Arc<StoredEvent>, resolution: Resolution) {
        self.shard
            .progress
            .settle(self.id, self.destination, event, resolution);
    }

    /// Records many as delivered; durable within 25 ms.
    pub fn settle_delivered(&self, positions: &[Position]) {
        let sequences = positions.iter().map(|position| position.sequence);
        self.shard.progress.deliver(self.id, sequences);
    }

    /// Records a failed attempt that will be repeated.
    pub fn record_failure(&self, position: Position, attempt: AttemptRecord, retry_at: Timestamp) {
        self.shard
            .progress
            .record_failure(self.id, position.sequence, attempt, retry_at);
    }

    /// Records that attempt `number` is about to be sent; synced when it resolves.
    ///
    /// # Errors
    /// The disk takes nothing: do not send.
    pub async fn record_start(&self, position: Position, number: u32) -> Result<(), NotDurable> {
        self.shard
            .progress
            .record_start(self.id, position.sequence, number);
        self.shard.progress.durable().await
    }

    /// Records that these attempts are about to be sent; synced when it resolves.
    ///
    /// # Errors
    /// The disk takes nothing: do not send.
    pub async fn record_starts(&self, starts: &[(Position, u32)]) -> Result<(), NotDurable> {
        for (position, number) in starts {
            self.shard
                .progress
                .record_start(self.id, position.sequence, *number);
        }
        self.shard.progress.durable().await
    }

    /// Resolves once everything recorded before is synced.
    ///
    /// # Errors
    /// The store stopped, or the disk takes nothing.
    pub async fn durable(&self) -> Result<(), NotDurable> {
        self.shard.progress.durable().await
    }

    /// Dead letters whose redrive was under way, for start-up; reads the disk.
    ///
    /// # Errors
    /// The letters cannot be read.
    pub fn redriving(&self) -> Result<Vec<DeadLetter>, LetterError> {
        self.shard.progress.redriving(self.id)
    }

    /// Ends a redrive: delivered removes the letter, dead-lettered keeps it with one attempt more.
    pub fn settle_letter(&self, letter: u64, resolution: Resolution) {
        self.shard.progress.settle_letter(letter, resolution);
    }

    /// Whether the last run ended without a clean stop: then the first window is recorded before it is
    /// sent.
    pub fn stopped_uncleanly(&self) -> bool {
        self.shard.unclean
    }

    /// Unresolved deliveries of this lane, redrives included.
    pub fn pending(&self) -> u64 {
        self.shard.pending(self.id, self.destination)
    }
}

fn unreadable(shard: &Shard, segment: &Segment, error: &IndexError) -> ReadError {
    let failed = ReadError::Failed {
        file: segment.index_path.display().to_string(),
        reason: error.to_string(),
    };
    shard.condition.degraded(failed.to_string());
    failed
}
