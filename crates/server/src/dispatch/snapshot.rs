//! What a lane says of itself when somebody asks: values only.

use wayhold_model::{DestinationId, FailureClass, OutcomeKind, Position, Timestamp};
use wayhold_store::{DestinationRecord, RunState};

/// Most blocked keys that a snapshot names; the rest is a number.
pub const BLOCKED_KEYS_SHOWN_MAX: usize = 10;

/// State of a lane, by the names that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Attempts start.
    Running,
    /// The breaker is open, or the receiver asked to be left alone.
    Waiting,
    /// An operator paused it.
    Paused,
    /// An operator disabled it.
    Disabled,
    /// It left the configuration; what it is owed is held.
    Retired,
}

impl LaneState {
    /// Name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Retired => "retired",
        }
    }

    /// All of them, in the order in which `/metrics` shows them.
    pub const ALL: [Self; 5] = [
        Self::Running,
        Self::Waiting,
        Self::Paused,
        Self::Disabled,
        Self::Retired,
    ];
}

/// One lane at one moment.
#[derive(Clone, Debug)]
pub struct LaneSnapshot {
    /// The destination.
    pub destination: DestinationId,
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: LaneState,
    /// Why, where somebody or something said so.
    pub reason: Option<String>,
    /// Since when it does.
    pub since: Timestamp,
    /// Attempts that were sent and have not ended.
    pub in_flight: usize,
    /// Deliveries that failed and wait to be tried again.
    pub retries: usize,
    /// The last attempt that failed.
    pub last_error: Option<LastError>,
    /// When the next attempt starts, where the lane waits for a time.
    pub next_attempt: Option<Timestamp>,
    /// The earliest delivery that is not resolved, as far as the lane has read.
    pub oldest: Option<Position>,
    /// When that one was accepted, where its event could be looked up.
    pub oldest_accepted: Option<Timestamp>,
    /// Keys that wait for a failed or dead delivery.
    pub blocked_keys: usize,
    /// Those of them that most deliveries wait behind.
    pub blocked: Vec<BlockedKey>,
    /// Attempts after an unknown outcome in this run: what the destination may have seen twice.
    pub repeats: u64,
    /// After an unclean stop, the most deliveries that the destination may see a second time for it.
    pub repeats_possible: u64,
}

impl LaneSnapshot {
    /// What is known of a lane that does not answer, or is not there any more because the server stops.
    pub fn unanswered(record: &DestinationRecord) -> Self {
        Self {
            destination: record.id,
            name: record.name.clone(),
            state: match record.state {
                RunState::Running => LaneState::Running,
                RunState::Paused => LaneState::Paused,
                RunState::Disabled => LaneState::Disabled,
                RunState::Retired => LaneState::Retired,
            },
            reason: Some("the lane does not answer".to_owned()),
            since: record.since,
            in_flight: 0,
            retries: 0,
            last_error: None,
            next_attempt: None,
            oldest: None,
            oldest_accepted: None,
            blocked_keys: 0,
            blocked: Vec::new(),
            repeats: 0,
            repeats_possible: 0,
        }
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// When it ended.
    pub at: Timestamp,
    /// Since when attempts fail without one that succeeded; `None` once one did.
    pub failing_since: Option<Timestamp>,
    /// The event.
    pub position: Position,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// What was in the way.
    pub class: FailureClass,
    /// The receiver's own number, where it gave one.
    pub status: Option<i32>,
    /// One sentence for a person.
    pub reason: String,
}

/// A key that waits for a failed or dead delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The ordering key, where the event could be looked up.
    pub key: Option<String>,
    /// The delivery that blocks.
    pub position: Option<Position>,
    /// Its event's id, where it could be looked up.
    pub event_id: Option<String>,
    /// Whether it blocks as a dead letter that an operator must redrive or discard.
    pub held: bool,
    /// Attempts made.
    pub attempts: u32,
    /// When it is tried again, where it waits for a time.
    pub retry_at: Option<Timestamp>,
    /// Deliveries that wait behind it, as far as the lane has read.
    pub waiting: u64,
}
