//! What the store tells and is told of deliveries: values only, shared by its parts and its users.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::error_print::fingerprint;
use wayhold_model::{
    DestinationSet, Event, FailureClass, OutcomeKind, Position, StoredEvent, Timestamp,
};

/// One event on its way in.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The event.
    pub event: Arc<Event>,
    /// Whom it will owe a delivery to.
    pub destinations: Arc<DestinationSet>,
    /// Whether the producer gave the id. An id that was made here is new by construction: its event is
    /// never a duplicate, nor is another one of that id a duplicate of it.
    pub identified: bool,
    /// Of its destinations those that are over their limit: their deliveries are set aside as dead letters
    /// of class `backlog_limit` once the event is stored. Nearly always `None`.
    pub set_aside: Option<Arc<DestinationSet>>,
}

/// Durable acceptance of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Where the event lies: the first acceptance's place, also for a duplicate.
    pub position: Position,
    /// Whether the event had been accepted before.
    pub duplicate: bool,
}

/// One unresolved delivery as a lane reads it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The event to deliver.
    pub event: Arc<StoredEvent>,
    /// Attempts recorded so far (the last may have been cut off by a stop).
    pub attempts: u32,
    /// Not before this time, where a failed attempt set one.
    pub retry_at: Option<Timestamp>,
}

/// One recorded attempt that did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// What was in the way.
    pub class: FailureClass,
    /// The receiver's own number, where it gave one.
    pub status: Option<i32>,
    /// One sentence for a person.
    pub reason: String,
    /// How the receiver's answer begins, where it gave one.
    pub answer: Option<Box<str>>,
    /// How long it took, to the microsecond; `None` where it was not sent, or recorded before this was.
    pub duration: Option<Duration>,
}

impl AttemptRecord {
    /// The fingerprint of its failure.
    pub fn fingerprint(&self) -> String {
        fingerprint(
            self.class.name(),
            self.status,
            &self.reason,
            self.answer.as_deref(),
        )
    }
}

/// How a delivery was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Confirmed by the destination.
    Delivered,
    /// Given up after this last attempt; kept with event and attempts.
    DeadLettered(AttemptRecord),
    /// Ended by a stated rule.
    Expired,
}

/// Why a delivery became a dead letter without an attempt that failed for good. Such a letter refers to its
/// event, which stays where it was stored until the letter is redriven or discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAside {
    /// Its destination was over its limit when the event was accepted.
    BacklogLimit,
    /// Its destination was retired with its pending deliveries set aside.
    Retired,
}

impl SetAside {
    /// Its class.
    pub fn class(self) -> FailureClass {
        match self {
            Self::BacklogLimit => FailureClass::BacklogLimit,
            Self::Retired => FailureClass::Retired,
        }
    }

    /// One sentence for a person.
    pub fn reason(self) -> &'static str {
        match self {
            Self::BacklogLimit => "the destination was over its limit when the event was accepted",
            Self::Retired => "the destination was retired",
        }
    }

    /// The fingerprint of its letters.
    pub(crate) fn fingerprint(self) -> String {
        fingerprint(self.class().name(), None, self.reason(), None)
    }

    pub(crate) fn from_class(class: &str) -> Option<Self> {
        [Self::BacklogLimit, Self::Retired]
            .into_iter()
            .find(|why| why.class().name() == class)
    }
}

/// A delivery that was given up.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its number: counts up, never reused.
    pub id: u64,
    /// The event, from the letter's own copy or from where it was stored.
    pub event: Arc<StoredEvent>,
    /// The destination that did not get it.
    pub destination: wayhold_model::DestinationId,
    /// Name of the class of the last attempt's failure, or of why it was set aside. Letters that were
    /// written before attempts had classes have the last attempt's outcome here.
    pub class: String,
    /// What this failure has in common with others of one cause.
    pub fingerprint: String,
    /// What the receiver answered, where it gave a number.
    pub status: Option<i32>,
    /// The last attempt's reason.
    pub reason: String,
    /// The attempts, oldest first; at most the newest `ATTEMPTS_KEPT_MAX`.
    pub attempts: Vec<AttemptRecord>,
    /// When it was given up.
    pub at: Timestamp,
    /// Whether a redrive is under way: then it counts as pending.
    pub redriving: bool,
    /// Whether it refers to its event and has no copy.
    pub referred: bool,
    /// The replay that gave it up; `None` for the event's own delivery.
    pub replay: Option<u64>,
    /// What an operator made of the event: this is sent in its place.
    pub edit: Option<Arc<LetterEdit>>,
}

impl DeadLetter {
    /// The event that is sent when it is redriven: the newest edit, or its own.
    pub fn to_send(&self) -> &Arc<StoredEvent> {
        self.edit.as_ref().map_or(&self.event, |edit| &edit.event)
    }
}

/// What an operator made of a dead letter's event.
#[derive(Clone, Debug)]
pub struct LetterEdit {
    /// The event as edited, in the place of the letter's own: identity and ordering key are the same.
    pub event: Arc<StoredEvent>,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A letter whose event was edited, with both; kept after the letter has ended.
#[derive(Clone, Debug)]
pub struct EditedLetter {
    /// Number of the letter.
    pub letter: u64,
    /// Whose it is or was.
    pub destination: wayhold_model::DestinationId,
    /// The event as it was accepted.
    pub original: Arc<StoredEvent>,
    /// What was made of it.
    pub edit: LetterEdit,
    /// Whether the letter has ended: the edited event has arrived, or the letter was discarded or expired.
    pub ended: bool,
}

/// Where one delivery of an event stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Waits for its first attempt, or for its turn.
    Pending,
    /// Failed and will be tried again.
    Retrying {
        /// Attempts so far.
        attempts: u32,
        /// Not before this time.
        at: Timestamp,
        /// The last failure.
        last: AttemptRecord,
    },
    /// Confirmed by the destination (or ended by a stated rule or an operator, see the audit trail).
    Resolved,
    /// Given up; the dead letter's number.
    Dead {
        /// Number of the dead letter.
        letter: u64,
        /// Whether it is being sent again.
        redriving: bool,
    },
}

/// Counts of one lane, for the accounting identity
/// `accepted = delivered + pending + dead + expired + discarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneTotals {
    /// Obligations accepted, counted where events are stored.
    pub accepted: u64,
    /// Unresolved, counted from the bitmaps of resolved sequences.
    pub pending: u64,
    /// Confirmed by the destination, counted at settlement.
    pub delivered: u64,
    /// Dead letters held (not under redrive).
    pub dead: u64,
    /// Ended by a stated rule.
    pub expired: u64,
    /// Ended by an operator.
    pub discarded: u64,
    /// Redrives ever started.
    pub redriven: u64,
}

impl LaneTotals {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            pending: self.pending + other.pending,
            delivered: self.delivered + other.delivered,
            dead: self.dead + other.dead,
            expired: self.expired + other.expired,
            discarded: self.discarded + other.discarded,
            redriven: self.redriven + other.redriven,
        }
    }
}

/// Most attempts kept with a retry or dead letter: enough to see a pattern, small enough for a row.
pub const ATTEMPTS_KEPT_MAX: usize = 20;
