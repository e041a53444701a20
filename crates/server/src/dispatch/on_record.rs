//! What goes on the record of attempts: of those that ended, the ones that their destination asks for.

use std::time::Duration;

use wayhold_model::{DestinationId, Outcome, Position, Receipt, Timestamp};
use wayhold_store::attempt_log::AttemptEntry;

use crate::config::Recorded;

/// An attempt that ended.
pub(super) struct Ended<'a> {
    pub(super) position: Position,
    pub(super) destination: DestinationId,
    /// From 1.
    pub(super) number: u32,
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) outcome: &'a Outcome,
    /// What the receiver calls what it took.
    pub(super) receipt: Option<Receipt>,
    /// The replay that it was made for.
    pub(super) replay: Option<u64>,
}

/// What is recorded of it; `None` where the destination asks for no record of such.
pub(super) fn entry_of(ended: Ended<'_>, asked: Recorded) -> Option<AttemptEntry> {
    let failure = ended.outcome.failure();
    if failure.is_none() && asked == Recorded::Failures {
        return None;
    }
    let answered = match &ended.receipt {
        Some(Receipt::Http { status, .. }) => Some(i32::from(*status)),
        Some(Receipt::Kafka { .. }) | None => None,
    };
    let micros = u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX);
    Some(AttemptEntry {
        position: ended.position,
        destination: ended.destination,
        number: ended.number,
        at: ended.at,
        // As it is written: the same before and after.
        duration: Duration::from_micros(micros),
        outcome: ended.outcome.kind(),
        class: failure.map(|failure| failure.class),
        status: failure.and_then(|failure| failure.status).or(answered),
        receipt: ended.receipt.filter(|_| failure.is_none()),
        replay: ended.replay,
    })
}
