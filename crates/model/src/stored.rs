//! An event with what its durable acceptance added: where it lies, when it was taken, and whom it is
//! owed to.

use std::sync::Arc;

use crate::event::Event;
use crate::id::{DestinationSet, Position};
use crate::time::Timestamp;

/// A durably accepted event, as lanes and look-ups see it. Shared as `Arc<StoredEvent>`.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    /// Where it lies.
    pub position: Position,
    /// When it was accepted, in store time (which never moves backwards).
    pub accepted_at: Timestamp,
    /// Whom it owes a delivery to; fixed at acceptance.
    pub destinations: Arc<DestinationSet>,
    /// Hash of the ordering key; `None` where the event has no key and therefore no order.
    pub key_hash: Option<u64>,
    /// The event.
    pub event: Arc<Event>,
}
