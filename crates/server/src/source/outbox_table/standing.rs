//! How a source is doing, for whoever asks: written by the one task that reads, read by status, metrics
//! and the command line.

use std::sync::{Mutex, MutexGuard, PoisonError};

use wayhold_model::Timestamp;

use super::port::Lag;

/// Most refused rows that are named; the rest is a number.
const REFUSED_SHOWN_MAX: usize = 20;

/// What a source does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not reached its database yet, or not any more.
    Connecting,
    /// It reads.
    Reading,
    /// A limit here keeps it from reading.
    Waiting,
    /// Another reader has the lock.
    Standby,
    /// Something is missing in the database; somebody must mend it.
    Unfit,
    /// It does not read until somebody has decided something.
    Stopped,
}

impl State {
    /// All of them, in the order in which `/metrics` shows them.
    pub const ALL: [Self; 6] = [
        Self::Connecting,
        Self::Reading,
        Self::Waiting,
        Self::Standby,
        Self::Unfit,
        Self::Stopped,
    ];

    /// Name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Reading => "reading",
            Self::Waiting => "waiting",
            Self::Standby => "standby",
            Self::Unfit => "unfit",
            Self::Stopped => "stopped",
        }
    }
}

/// A row that was refused and stays in its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRow {
    /// Its event's id.
    pub id: String,
    /// The key whose later rows wait for it.
    pub key: Option<String>,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// A source at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it does.
    pub state: State,
    /// Why, where there is a reason.
    pub reason: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// Rows that became events since the server started.
    pub accepted: u64,
    /// Rows that were refused and stay in the table.
    pub refused: usize,
    /// The first of them.
    pub refused_rows: Vec<RefusedRow>,
    /// How much waits in the table, as it was counted last.
    pub lag: Option<Lag>,
    /// When that was.
    pub counted_at: Option<Timestamp>,
    /// Since when rows have been waiting without a break, as far as this server saw.
    pub behind_since: Option<Timestamp>,
}

impl Snapshot {
    /// A source that begins now.
    pub(crate) fn beginning(now: Timestamp) -> Self {
        Self {
            state: State::Connecting,
            reason: None,
            since: now,
            accepted: 0,
            refused: 0,
            refused_rows: Vec::new(),
            lag: None,
            counted_at: None,
            behind_since: None,
        }
    }

    /// How old the oldest waiting row is: by the table's own times, else as long as rows have been seen
    /// waiting.
    pub fn oldest_row_age(&self, now: Timestamp) -> std::time::Duration {
        let seen = self.behind_since.map(|since| now.since(since));
        let counted = self.lag.filter(|lag| lag.rows > 0);
        counted
            .and_then(|lag| lag.oldest.or(seen))
            .unwrap_or_default()
    }
}

/// What the reading task writes.
#[derive(Debug)]
pub struct Standing(Mutex<Snapshot>);

impl Standing {
    /// A source that begins now.
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Snapshot::beginning(now)))
    }

    /// How it is at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Notes what it does from now on; answers whether that is something else than before.
    pub(super) fn enter(&self, state: State, reason: Option<String>, now: Timestamp) -> bool {
        let mut standing = self.lock();
        let is_new = standing.state != state || standing.reason != reason;
        if standing.state != state {
            standing.since = now;
        }
        standing.state = state;
        standing.reason = reason;
        is_new
    }

    /// Notes rows that became events.
    pub(super) fn accepted(&self, rows: u64) {
        self.lock().accepted += rows;
    }

    /// Notes which rows are refused now.
    pub(super) fn refused(&self, rows: &[RefusedRow]) {
        let mut standing = self.lock();
        standing.refused = rows.len();
        standing.refused_rows = rows.iter().take(REFUSED_SHOWN_MAX).cloned().collect();
    }

    /// Notes how much waits.
    pub(super) fn counted(&self, lag: Lag, now: Timestamp) {
        let mut standing = self.lock();
        standing.lag = Some(lag);
        standing.counted_at = Some(now);
        standing.behind_since = match lag.rows {
            0 => None,
            _ => standing.behind_since.or(Some(now)),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
