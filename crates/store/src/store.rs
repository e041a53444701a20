//! The store's face.

use std::path::Path;
use std::sync::Arc;

use wayhold_model::{Clock, DestinationId, Position};

use crate::catalog::Catalog;
use crate::delivery::{DeliveryState, LaneTotals, NewEvent, Receipt};
use crate::error::{AppendError, OpenError, ReadError};
use crate::figures::{Figures, Found, Health, Recovery};
use crate::lane::Lane;
use crate::options::Options;
use crate::progress::DeadLetters;

/// The embedded durable store; a cheap handle.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// Opens or makes the store in `dir`.
    pub fn open(
        dir: &Path,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Recovery), OpenError> {
        let _ = (dir, options, clock);
        unimplemented!()
    }

    /// The seed of every hash that reaches the disk.
    pub fn hash_seed(&self) -> u64 {
        unimplemented!()
    }

    /// Stores all events, or none, and returns once they are synced.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, AppendError> {
        let _ = events;
        unimplemented!()
    }

    /// Looks an event up by identity; may read the disk.
    pub fn find(&self, source: &str, id: &str) -> Result<Option<Found>, ReadError> {
        let _ = (source, id);
        unimplemented!()
    }

    /// Looks an event up by position; may read the disk.
    pub fn event(&self, position: Position) -> Result<Option<Found>, ReadError> {
        let _ = position;
        unimplemented!()
    }

    /// Where one delivery stands.
    pub fn delivery_state(&self, position: Position, destination: DestinationId) -> DeliveryState {
        let _ = (position, destination);
        unimplemented!()
    }

    /// The reader of a destination's lane; taken once.
    pub fn lane(&self, destination: DestinationId) -> Lane {
        let _ = destination;
        unimplemented!()
    }

    /// Counts of one lane.
    pub fn totals(&self, destination: DestinationId) -> LaneTotals {
        let _ = destination;
        unimplemented!()
    }

    /// Identity, destinations, tokens and the audit trail.
    pub fn catalog(&self) -> &Arc<Catalog> {
        unimplemented!()
    }

    /// Deliveries that were given up.
    pub fn dead_letters(&self) -> &DeadLetters {
        unimplemented!()
    }

    /// Whether it can durably accept, and what is not as it should be.
    pub fn health(&self) -> Health {
        unimplemented!()
    }

    /// Sizes and counts for metrics and status.
    pub fn figures(&self) -> Figures {
        unimplemented!()
    }

    /// Commits what is queued, syncs mark and progress, releases the lock. Blocking.
    pub fn stop(&self) {
        unimplemented!()
    }
}
