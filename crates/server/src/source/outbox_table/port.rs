//! What a database must be able to do so that its table can be read. The runner (`reader`) owns all
//! policy: when to read, what becomes of a refused row, how long to wait; an implementation knows its
//! database and holds the rule by which no committed row is passed over.

use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;

use super::row::{Place, Row};

/// A table in some database. Cheap to make: nothing is opened before `connect`.
pub trait Database: Send + Sync + 'static {
    /// Opens what reading needs and takes the lock under which one reader at a time reads this table. The
    /// lock goes with the connections: it is free again when they are dropped, or lost.
    ///
    /// # Errors
    /// Says what is in the way, and whether time can mend it.
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>>;

    /// What reading would lack: columns, privileges, settings; empty where nothing is missing. Takes no lock
    /// and changes nothing.
    ///
    /// # Errors
    /// When the database cannot be asked at all.
    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>>;
}

/// An open table, in three parts that work at the same time.
pub struct Connected {
    /// Finds rows.
    pub reader: Box<dyn Reader>,
    /// Deletes or marks them, and counts.
    pub settler: Box<dyn Settler>,
    /// Says when to look again.
    pub waker: Box<dyn Waker>,
}

/// Finds committed rows, sweep by sweep. A sweep sees the table at one moment and gives its rows in order;
/// whatever is committed later is a later sweep's. There is no "last id": a row is passed over only by being
/// settled, so none can be missed, whatever order ids were drawn and transactions ended in.
pub trait Reader: Send {
    /// The next rows in order, at most as many as the configuration allows and none of these aggregates.
    /// After a batch that does not end with `More` the next call begins another sweep; the caller has
    /// settled what it will settle by then. A sweep that the caller gives up ends with `abandon`.
    ///
    /// # Errors
    /// When the connection is lost, and the lock with it: nothing more may be read by it.
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>>;

    /// Takes note of a row of this sweep that is not accepted: it is refused, or behind a refused one of its
    /// aggregate, and stays in the table. Told before the call of `next` that begins another sweep; nothing is
    /// told of rows that a sweep had still to give when it was abandoned.
    fn stays(&mut self, _row: &Row) {}

    /// Ends a sweep before its end, so that nothing in the database is held by it; also called where only the
    /// last batch of one was not taken whole. What is not settled is given again.
    ///
    /// # Errors
    /// As `next`.
    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>>;
}

/// What becomes of rows whose events are durable.
pub trait Settler: Send {
    /// Deletes or marks exactly these rows; one that is gone already is no fault.
    ///
    /// # Errors
    /// When it is not known whether it was done. The rows are read again then.
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>>;

    /// How much waits in the table.
    ///
    /// # Errors
    /// As `settle`.
    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>>;
}

/// Says when it is worth looking again.
pub trait Waker: Send {
    /// Ends when something may have been committed; perhaps never, so the caller bounds its wait.
    ///
    /// # Errors
    /// When it will never say anything again.
    fn woken(&mut self) -> BoxFuture<'_, Result<(), Trouble>>;
}

/// Rows in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The rows; may be empty.
    pub rows: Vec<Row>,
    /// What comes after them.
    pub end: End,
}

/// What comes after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// More of this sweep.
    More,
    /// More, in another sweep at once: this one is as long as one may be.
    Again,
    /// Nothing that is committed.
    Empty,
    /// Rows that wait for a transaction which is still open; nothing will wake the reader when it ends.
    Open,
}

/// How much waits in the table. Counting ends at `LAG_ROWS_MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Rows that are neither deleted nor marked.
    pub rows: u64,
    /// Age of the oldest by the table's own times, where it has any.
    pub oldest: Option<Duration>,
    /// Bytes of the database's log that are kept for this reader, where it reads that.
    pub log_bytes: Option<u64>,
}

/// Most rows that are counted: from there on it is "very many".
pub const LAG_ROWS_MAX: u64 = 1_000_000;

/// Something that is missing, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is missing, in a sentence.
    pub problem: String,
    /// The statement or setting that mends it, where there is one.
    pub remedy: Option<String>,
    /// Whether reading works all the same.
    pub advice: bool,
}

/// Why a table is not read. No text holds a password or a payload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Trouble {
    /// Another reader has the lock. Come back: it may die.
    #[error("another reader has the lock of this table")]
    Elsewhere,
    /// The database cannot be reached, or the connection broke. Come back.
    #[error("{0}")]
    Unreachable(String),
    /// Something is missing, which somebody must mend; it is looked at again all the same.
    #[error("{}", findings_text(.0))]
    Misfit(Vec<Finding>),
    /// Nothing that waiting mends: events may be missing. Reading stops until somebody has decided.
    #[error("{problem}: {remedy}")]
    Lost {
        /// What happened.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

fn findings_text(findings: &[Finding]) -> String {
    let told: Vec<_> = findings
        .iter()
        .filter(|finding| !finding.advice)
        .map(|finding| finding.problem.as_str())
        .collect();
    told.join("; ")
}
