//! Backups: a consistent copy of a data directory that is made while the store runs, and what is made of one
//! in an empty directory, which is another node.
//!
//! The copy of a shard begins with its progress: it then knows less of what was resolved than the events that
//! are copied after it, so a restored store repeats deliveries and loses none. Every SQLite file is read
//! through SQLite, because closing any other descriptor of it would drop the locks of the connections that
//! the process has on it. Modules in suggested reading order.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

mod manifest;
mod pace;
mod target;

mod online;
mod stopped;

mod restore;

pub use manifest::{FileCopy, Manifest, ShardCopy};
pub(crate) use restore::require_restored;
pub use restore::{RestoreError, Restored, restore, restore_on};

/// How far a backup has come. Read it while it is made.
#[derive(Debug, Default)]
pub struct Progress {
    copied: AtomicU64,
    expected: AtomicU64,
}

impl Progress {
    /// Bytes that are in the backup.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Bytes that were there to be copied at the start; a busy store has more by the end. 0 before it is known.
    pub fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }
}

/// No backup was made. What lies in its directory is not one, and the next one into it cleans it up.
#[derive(Debug, Error)]
pub enum BackupError {
    /// One at a time; wait for it.
    #[error("a backup is being made already; wait until it is complete")]
    Running,
    /// Back up to another directory, or make this one usable.
    #[error("cannot back up to {path}: {reason}")]
    Destination {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the store cannot be read this time; see health, then try again.
    #[error("cannot copy {path}: {reason}")]
    Source {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The store's volume ran low, and the backup held segments that could have been removed. Make room.
    #[error("the store's volume has too little free space to go on with the backup; make room")]
    NoSpace,
    /// The shard map was changed while the backup was made; make it again.
    #[error("the number of shards was changed while the backup was made; make it again")]
    Resharded,
    /// The store stops; make it again when it runs.
    #[error("the store is stopping; make the backup again when it runs")]
    Stopping,
}
