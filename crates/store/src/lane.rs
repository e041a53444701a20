//! A lane's face of the store.

use std::sync::Arc;

use wayhold_model::{DestinationId, LaneId, Position, StoredEvent, Timestamp};

use crate::delivery::{AttemptRecord, DeadLetter, Delivery, Resolution};
use crate::error::ReadError;

/// Reads one lane's deliveries in order; one owner.
pub struct Lane {}

/// The rest of a lane's face, shareable.
#[derive(Clone)]
pub struct LaneHandle {}

impl Lane {
    /// The next unresolved deliveries, if they are in memory. `Some(empty)`: nothing newer is stored.
    /// `None`: the next ones lie on disk, use `read`.
    pub fn read_cached(&mut self, max: usize) -> Option<Vec<Delivery>> {
        let _ = max;
        unimplemented!()
    }

    /// The next unresolved deliveries; may read the disk.
    pub fn read(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        let _ = max;
        unimplemented!()
    }

    /// The last position read.
    pub fn cursor(&self) -> Option<Position> {
        unimplemented!()
    }

    /// The shareable rest.
    pub fn handle(&self) -> LaneHandle {
        unimplemented!()
    }
}

impl LaneHandle {
    /// The lane's durable number.
    pub fn id(&self) -> LaneId {
        unimplemented!()
    }

    /// The destination it serves.
    pub fn destination(&self) -> DestinationId {
        unimplemented!()
    }

    /// Resolves when something for this lane was committed since this was last awaited.
    pub async fn appended(&self) {
        unimplemented!()
    }

    /// The event, if it is in memory.
    pub fn event_cached(&self, position: Position) -> Option<Arc<StoredEvent>> {
        let _ = position;
        unimplemented!()
    }

    /// The event; may read the disk.
    pub fn event(&self, position: Position) -> Result<Arc<StoredEvent>, ReadError> {
        let _ = position;
        unimplemented!()
    }

    /// At most `max` unresolved deliveries of this key in `(after, through]`, in order; may read the
    /// disk.
    pub fn next_of_key(
        &self,
        key_hash: u64,
        after: Position,
        through: Position,
        max: usize,
    ) -> Result<Vec<Position>, ReadError> {
        let _ = (key_hash, after, through, max);
        unimplemented!()
    }

    /// Records that a delivery is resolved; durable within 25 ms.
    pub fn settle(&self, event: &Arc<StoredEvent>, resolution: Resolution) {
        let _ = (event, resolution);
        unimplemented!()
    }

    /// Records many as delivered; durable within 25 ms.
    pub fn settle_delivered(&self, positions: &[Position]) {
        let _ = positions;
        unimplemented!()
    }

    /// Records a failed attempt that will be repeated.
    pub fn record_failure(&self, position: Position, attempt: AttemptRecord, retry_at: Timestamp) {
        let _ = (position, attempt, retry_at);
        unimplemented!()
    }

    /// Records that attempt `number` is about to be sent; synced when it resolves.
    pub async fn record_start(&self, position: Position, number: u32) {
        let _ = (position, number);
        unimplemented!()
    }

    /// Resolves once everything recorded before is synced.
    pub async fn durable(&self) {
        unimplemented!()
    }

    /// Dead letters whose redrive was under way, for start-up.
    pub fn redriving(&self) -> Vec<DeadLetter> {
        unimplemented!()
    }

    /// Ends a redrive.
    pub fn settle_letter(&self, letter: u64, resolution: Resolution) {
        let _ = (letter, resolution);
        unimplemented!()
    }

    /// Whether the last run ended without a clean stop.
    pub fn stopped_uncleanly(&self) -> bool {
        unimplemented!()
    }

    /// Unresolved deliveries of this lane.
    pub fn pending(&self) -> u64 {
        unimplemented!()
    }
}
