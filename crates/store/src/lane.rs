//! A lane's face of the store: one destination's deliveries in order, and what became of them. Order is
//! kept within a shard, and every event of a key lies in one; shards are read in turn, so that the
//! backlog of one keeps none of the others waiting.

mod reader;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;
use wayhold_model::{DestinationId, LaneId, Position, Sequence, StoredEvent, Timestamp};

use self::reader::{ShardReader, unreadable};
use crate::delivery::{AttemptRecord, DeadLetter, Delivery, Resolution};
use crate::error::ReadError;
use crate::progress::{LetterError, NotDurable};
use crate::shard::core::Shard;
use crate::shards::Shards;

/// Reads one lane's deliveries in order; one owner.
pub struct Lane {
    handle: LaneHandle,
    /// Generations that are not read to their end, oldest first; each is read before the next begins,
    /// because a key may lie in another shard there.
    generations: VecDeque<Turns>,
}

/// The shards of a generation, read in turn.
struct Turns {
    places: Vec<Place>,
    /// Whose turn it is.
    turn: usize,
}

/// One shard, as a lane reads it.
struct Place {
    reader: ShardReader,
    /// Whether reading it failed and it is left alone until `Lane::read_failed_again`.
    failed: bool,
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
        let place = |shard: &Arc<Shard>| Place {
            reader: ShardReader::new(Arc::clone(shard), id, destination),
            failed: false,
        };
        let generations = shards.generations().iter().map(|generation| Turns {
            places: generation.shards.iter().map(place).collect(),
            turn: 0,
        });
        Self {
            generations: generations.collect(),
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
        loop {
            let turns = self.generations.front_mut()?;
            let batch = turns.read_cached(max)?;
            if !batch.is_empty() || !self.go_on() {
                return Some(batch);
            }
        }
    }

    /// The next unresolved deliveries, at most `max`; may read the disk. Empty: nothing newer is stored,
    /// or only where reading failed before.
    ///
    /// # Errors
    /// A file cannot be read. Its shard is left alone until `read_failed_again`; reading goes on with the
    /// others. Damaged rows are skipped and named in health.
    pub fn read(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            let Some(turns) = self.generations.front_mut() else {
                return Ok(Vec::new());
            };
            let batch = turns.read(max)?;
            if !batch.is_empty() || !self.go_on() {
                return Ok(batch);
            }
        }
    }

    /// Reads again where reading failed.
    pub fn read_failed_again(&mut self) {
        for place in self.generations.iter_mut().flat_map(|one| &mut one.places) {
            place.failed = false;
        }
    }

    /// The shareable rest.
    pub fn handle(&self) -> LaneHandle {
        self.handle.clone()
    }

    /// After the generation that is being read had nothing: whether there is a later one. Nothing is
    /// added to an earlier one any more, so what was read to its end stays so.
    fn go_on(&mut self) -> bool {
        let Some(turns) = self.generations.front() else {
            return false;
        };
        let goes_on = self.generations.len() > 1 && turns.places.iter().all(|place| !place.failed);
        if goes_on {
            self.generations.pop_front();
        }
        goes_on
    }
}

impl Turns {
    fn read_cached(&mut self, max: usize) -> Option<Vec<Delivery>> {
        for _ in 0..self.places.len() {
            let place = self.places.get_mut(self.turn)?;
            let batch = match place.failed {
                true => Vec::new(),
                false => place.reader.read_cached(max)?,
            };
            self.turn = (self.turn + 1) % self.places.len();
            if !batch.is_empty() {
                return Some(batch);
            }
        }
        Some(Vec::new())
    }

    fn read(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        let count = self.places.len();
        for _ in 0..count {
            let Some(place) = self.places.get_mut(self.turn) else {
                break;
            };
            self.turn = (self.turn + 1) % count;
            // Until it ended well it counts as failed: a reader that panics is not asked at once again.
            if std::mem::replace(&mut place.failed, true) {
                continue;
            }
            let batch = place.reader.read(max)?;
            place.failed = false;
            if !batch.is_empty() {
                return Ok(batch);
            }
        }
        Ok(Vec::new())
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
        self.shards.of(position)?.tail.get(position.sequence.0)
    }

    /// The event; may read the disk.
    ///
    /// # Errors
    /// `Damaged` where it is gone for good, `Failed` where reading again may help.
    pub fn event(&self, position: Position) -> Result<Arc<StoredEvent>, ReadError> {
        let event = match self.shards.of(position) {
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
        for shard in self.shards.of_key(key_hash) {
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
        if let Some(shard) = self.shards.of(event.position) {
            shard
                .progress
                .settle(self.id, self.destination, event, resolution);
        }
    }

    /// Records many as delivered; durable within 25 ms.
    pub fn settle_delivered(&self, positions: &[Position]) {
        for (shard, positions) in self.by_shard(positions, |position| *position) {
            let sequences = positions.map(|position| position.sequence);
            shard.progress.deliver(self.id, sequences);
        }
    }

    /// Records a failed attempt that will be repeated.
    pub fn record_failure(&self, position: Position, attempt: AttemptRecord, retry_at: Timestamp) {
        if let Some(shard) = self.shards.of(position) {
            shard
                .progress
                .record_failure(self.id, position.sequence, attempt, retry_at);
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
        for (shard, starts) in self.by_shard(starts, |(position, _)| *position) {
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
        let asked: Vec<_> = self
            .shards
            .all()
            .map(|shard| shard.progress.durable())
            .collect();
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
        for shard in self.shards.all() {
            let event = |position: Position| shard.event(position.sequence.0).ok()?;
            letters.extend(shard.progress.redriving(self.id, &event)?);
        }
        letters.sort_unstable_by_key(|letter| letter.id);
        Ok(letters)
    }

    /// Ends a redrive: delivered removes the letter, dead-lettered keeps it with one attempt more.
    pub fn settle_letter(&self, letter: u64, resolution: Resolution) {
        let mut shards = self.shards.all();
        // One that is under redrive nowhere is settled already.
        if let Some(shard) = shards.find(|shard| shard.progress.is_redriving(letter)) {
            shard.progress.settle_letter(letter, resolution);
        }
    }

    /// Whether the last run ended without a clean stop: then the first window is recorded before it is
    /// sent.
    pub fn stopped_uncleanly(&self) -> bool {
        self.shards.all().any(|shard| shard.unclean)
    }

    /// Unresolved deliveries of this lane, redrives included.
    pub fn pending(&self) -> u64 {
        let shards = self.shards.all();
        shards
            .map(|shard| shard.pending(self.id, self.destination))
            .sum()
    }

    /// Each shard that any of these lie in, with those.
    fn by_shard<'a, T>(
        &'a self,
        all: &'a [T],
        position: impl Fn(&T) -> Position + Copy + 'a,
    ) -> impl Iterator<Item = (&'a Arc<Shard>, impl Iterator<Item = &'a T>)> {
        self.shards.all().filter_map(move |shard| {
            let lies_here = move |one: &&T| shard.holds(position(one));
            let mut here = all.iter().filter(lies_here).peekable();
            here.peek()?;
            Some((shard, here))
        })
    }
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
