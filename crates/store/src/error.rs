//! What the store answers when it cannot: each kind says what the caller does next.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use wayhold_model::Position;

use crate::delivery::Receipt;

/// Nothing of the batch was stored, but for `Partly`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The same source and id were accepted before with other content; choose another id.
    #[error("event {index} has the source and id of an earlier event with other content")]
    Conflict {
        /// Index of the event in the batch.
        index: usize,
        /// Where the first event lies.
        first: Position,
    },
    /// The batch itself holds the same source and id twice with other content.
    #[error(
        "events {first} and {index} of the batch have the same source and id and other content"
    )]
    ConflictInBatch {
        /// Index of the later one.
        index: usize,
        /// Index of the earlier one.
        first: usize,
    },
    /// More events wait for a commit than may; send again after a moment.
    #[error("too many events wait for the disk")]
    Busy,
    /// Accepting would leave too little disk for what was accepted; send again later.
    #[error("the disk has too little free space")]
    NoSpace {
        /// How long until there is room, as space came free lately.
        retry_after: Duration,
    },
    /// The shard cannot write at the moment and is being mended; send again later.
    #[error("the store cannot write: {reason}")]
    Unavailable {
        /// What happened, for a person.
        reason: String,
    },
    /// The server is stopping; send again to its successor.
    #[error("the store is stopping")]
    Stopping,
    /// One shard failed after another had committed its part. Send the whole batch again: the rest is
    /// stored, and what is stored is answered with these receipts.
    #[error("only a part of the batch is stored: {cause}")]
    Partly {
        /// Receipts of what is stored, in the order of the batch.
        receipts: Vec<Option<Receipt>>,
        /// Why the rest is not.
        cause: Box<AppendError>,
    },
}

impl AppendError {
    /// When sending again may help; `None` when it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Conflict { .. } | Self::ConflictInBatch { .. } => None,
            Self::Busy | Self::Stopping => Some(Duration::from_secs(1)),
            Self::Unavailable { .. } => Some(Duration::from_secs(2)),
            Self::NoSpace { retry_after } => Some(*retry_after),
            Self::Partly { cause, .. } => cause.retry_after(),
        }
    }
}

/// A stored event cannot be read. The rest of the store goes on.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The row does not match its checksum, or its file is missing or damaged: see health for the file.
    #[error("the event at {position} is damaged on disk")]
    Damaged {
        /// Where it lies.
        position: Position,
    },
    /// The file could not be read this time; read again.
    #[error("reading {file} failed: {reason}")]
    Failed {
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
}

/// The store cannot be opened; the data directory was not changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process owns the data directory.
    #[error("{dir} is in use by another process{holder}; stop it first")]
    Locked {
        /// The data directory.
        dir: PathBuf,
        /// ` (pid 123)` where it is known.
        holder: String,
    },
    /// Written by a newer version.
    #[error("{file} has format {found}, this binary knows up to {known}; run the newer version")]
    Newer {
        /// The file.
        file: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// The SQLite that was linked in has a known data-loss bug.
    #[error("SQLite {found} is linked in, 3.51.3 or newer is needed")]
    Sqlite {
        /// The version found.
        found: String,
    },
    /// The directory or a file in it cannot be used.
    #[error("{path}: {reason}")]
    Unusable {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}
