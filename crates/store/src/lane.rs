//! A lane's face of the store: one destination's deliveries in order, and what became of them. In which order
//! shards are read is decided by `places`.

mod places;
mod reader;

use std::sync::Arc;

use tokio::sync::Notify;
use wayhold_model::{DestinationId, LaneId, Position, Sequence, StoredEvent, Timestamp};

use self::places::{How, Places};
pub(crate) use self::reader::unreadable;
use crate::delivery::{AttemptRecord, DeadLetter, Delivery, Resolution};
use crate::error::ReadError;
use crate::progress::{LetterError, NotDurable};
use crate::shard::core::Shard;
use crate::shards::{Map, Shards};

/// Reads one lane's deliveries in order; one owner.
pub struct Lane {
    handle: LaneHandle,
    places: Places,
}

/// The rest of a lane's face, shareable.
#[derive(Clone)]
pub struct LaneHandle {
    shards: Arc<Shards>,
    id: LaneId,
    destination: DestinationId,
    bell: Arc<Notify>,
}

impl Lane {
    pub(crate) fn new(
        shards: &Arc<Shards>,
        id: LaneId,
        destination: DestinationId,
        bell: Arc<Notify>,
    ) -> Self {
        Self {
            places: Places::new(id, destination),
            handle: LaneHandle {
                shards: Arc::clone(shards),
                id,
                destination,
                bell,
            },
        }
    }

    /// The next unresolved deliveries, if they are in memory. `Some(empty)`: nothing newer is stored.
    /// `None`: the next ones lie on disk, use `read`. Never blocks.
    pub fn read_cached(&mut self, max: usize) -> Option<Vec<Delivery>> {
        self.places.follow(&self.handle.shards);
        // What lies in memory fails nobody.
        self.places.read(max, How::FromMemory).ok().flatten()
    }

    /// The next unresolved deliveries, at most `max`; may read the disk. Empty: nothing newer is stored,
    /// or only where reading failed before.
    ///
    /// # Errors
    /// A file cannot be read. Its shard is left alone until `read_failed_again`; reading goes on with the
    /// others. Damaged rows are skipped and named in health.
    pub fn read(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        self.places.follow(&self.handle.shards);
        let batch = self.places.read(max, How::FromDisk)?;
        Ok(batch.unwrap_or_default())
    }

    /// Reads everything that is unresolved from the beginning again: for deliveries that became pending
    /// behind the place where this had come to.
    pub fn rewind(&mut self) {
        let LaneHandle {
            shards,
            id,
            destination,
            bell,
        } = &self.handle;
        *self = Self::new(shards, *id, *destination, Arc::clone(bell));
    }

    /// Reads again where reading failed.
    pub fn read_failed_again(&mut self) {
        self.places.try_failed_again();
    }

    /// The shareable rest.
    pub fn handle(&self) -> LaneHandle {
        self.handle.clone()
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
        let map = self.shards.now();
        map.of(position)?.tail.get(position.sequence.0)
    }

    /// The event; may read the disk.
    ///
    /// # Errors
    /// `Damaged` where it is gone for good, `Failed` where reading again may help.
    pub fn event(&self, position: Position) -> Result<Arc<StoredEvent>, ReadError> {
        let map = self.shards.now();
        let event = match map.of(position) {
            Some(shard) => shard.event(position.sequence.0)?,
            None => None,
        };
        event.ok_or(ReadError::Damaged { position })
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
        let mut found = Vec::new();
        let map = self.shards.now();
        for shard in map.of_key(key_hash) {
            let Some(span) = span_in(shard, after, through) else {
                continue;
            };
            self.next_in(shard, key_hash, span, max, &mut found)?;
            if found.len() >= max {
                break;
            }
        }
        found.truncate(max);
        Ok(found)
    }

    fn next_in(
        &self,
        shard: &Shard,
        key_hash: u64,
        span: (u64, u64),
        max: usize,
        found: &mut Vec<Position>,
    ) -> Result<(), ReadError> {
        for segment in shard.segments() {
            let Some((first, last)) = segment.span() else {
                continue;
            };
            if last <= span.0 || first > span.1 {
                continue;
            }
            let sequences = segment
                .key_after(shard.disk.as_ref(), self.destination, key_hash, span)
                .map_err(|error| unreadable(shard, &segment, &error))?;
            shard.progress.view(self.id, |view| {
                let unresolved = sequences
                    .into_iter()
                    .filter(|sequence| !view.is_resolved(Sequence(*sequence)));
                found.extend(unresolved.map(|sequence| shard.position(sequence)));
            });
            if found.len() >= max {
                break;
            }
        }
        Ok(())
    }

    /// Records that a delivery is resolved; durable within 25 ms.
    pub fn settle(&self, event: &Arc<StoredEvent>, resolution: Resolution) {
        if let Some(shard) = self.shards.now().of(event.position) {
            shard
                .progress
                .settle(self.id, self.destination, event, resolution);
        }
    }

    /// Records many as delivered; durable within 25 ms.
    pub fn settle_delivered(&self, positions: &[Position]) {
        let map = self.shards.now();
        for (shard, positions) in by_shard(&map, positions, |position| *position) {
            let sequences = positions.map(|position| position.sequence);
            shard.progress.deliver(self.id, sequences);
        }
    }

    /// Records a failed attempt that will be repeated.
    pub fn record_failure(&self, position: Position, attempt: AttemptRecord, retry_at: Timestamp) {
        if let Some(shard) = self.shards.now().of(position) {
            shard
                .progress
                .record_failure(self.id, position.sequence, attempt, retry_at);
        }
    }

    /// Records a failed attempt that does not count: the next one has its number.
    pub fn record_put_off(&self, position: Position, attempt: AttemptRecord, retry_at: Timestamp) {
        if let Some(shard) = self.shards.now().of(position) {
            shard
                .progress
                .record_put_off(self.id, position.sequence, attempt, retry_at);
        }
    }

    /// Records that attempt `number` is about to be sent; synced when it resolves.
    ///
    /// # Errors
    /// The disk takes nothing: do not send.
    pub async fn record_start(&self, position: Position, number: u32) -> Result<(), NotDurable> {
        self.record_starts(&[(position, number)]).await
    }

    /// Records that these attempts are about to be sent; synced when it resolves.
    ///
    /// # Errors
    /// The disk takes nothing: do not send.
    pub async fn record_starts(&self, starts: &[(Position, u32)]) -> Result<(), NotDurable> {
        let mut recorded = Vec::new();
        let map = self.shards.map();
        for (shard, starts) in by_shard(&map, starts, |(position, _)| *position) {
            for (position, number) in starts {
                shard
                    .progress
                    .record_start(self.id, position.sequence, *number);
            }
            recorded.push(shard.progress.durable());
        }
        for durable in recorded {
            durable.await?;
        }
        Ok(())
    }

    /// Resolves once everything recorded before is synced.
    ///
    /// # Errors
    /// The store stopped, or the disk takes nothing.
    pub async fn durable(&self) -> Result<(), NotDurable> {
        let map = self.shards.map();
        let asked: Vec<_> = map.all().map(|shard| shard.progress.durable()).collect();
        drop(map);
        for durable in asked {
            durable.await?;
        }
        Ok(())
    }

    /// Dead letters whose redrive was under way, for start-up; reads the disk.
    ///
    /// # Errors
    /// The letters cannot be read.
    pub fn redriving(&self) -> Result<Vec<DeadLetter>, LetterError> {
        let mut letters = Vec::new();
        for shard in self.shards.now().all() {
            let event = |position: Position| shard.event(position.sequence.0).ok()?;
            letters.extend(shard.progress.redriving(self.destination, &event)?);
        }
        letters.sort_unstable_by_key(|letter| letter.id);
        Ok(letters)
    }

    /// Ends a redrive: delivered removes the letter, dead-lettered keeps it with one attempt more.
    pub fn settle_letter(&self, letter: u64, resolution: Resolution) {
        let map = self.shards.now();
        let mut shards = map.all();
        // One that is under redrive nowhere is settled already.
        if let Some(shard) = shards.find(|shard| shard.progress.is_redriving(letter)) {
            shard.progress.settle_letter(letter, resolution);
        }
    }

    /// Whether the last run ended without a clean stop: then the first window is recorded before it is
    /// sent.
    pub fn stopped_uncleanly(&self) -> bool {
        self.shards.now().all().any(|shard| shard.unclean)
    }

    /// Unresolved deliveries of this lane, redrives included.
    pub fn pending(&self) -> u64 {
        let map = self.shards.now();
        let shards = map.all();
        shards
            .map(|shard| shard.pending(self.id, self.destination))
            .sum()
    }
}

/// Each shard that any of these lie in, with those.
fn by_shard<'a, T>(
    map: &'a Map,
    all: &'a [T],
    position: impl Fn(&T) -> Position + Copy + 'a,
) -> impl Iterator<Item = (&'a Arc<Shard>, impl Iterator<Item = &'a T>)> {
    map.all().filter_map(move |shard| {
        let lies_here = move |one: &&T| shard.holds(position(one));
        let mut here = all.iter().filter(lies_here).peekable();
        here.peek()?;
        Some((shard, here))
    })
}

/// The part of a stretch of positions that lies in a shard, as sequences `(after, through]`.
fn span_in(shard: &Shard, after: Position, through: Position) -> Option<(u64, u64)> {
    if shard.generation < after.generation || shard.generation > through.generation {
        return None;
    }
    let after = Some(after).filter(|after| shard.holds(*after));
    let through = Some(through).filter(|through| shard.holds(*through));
    Some((
        after.map_or(0, |after| after.sequence.0),
        through.map_or(u64::MAX, |through| through.sequence.0),
    ))
}
