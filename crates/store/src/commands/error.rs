//! What is answered where a change or a look at commands failed: each kind says what the caller does next.

use rusqlite::ErrorCode;
use thiserror::Error;

use crate::connection::Fault;

/// Nothing of the change is on the disk, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandsError {
    /// More changes wait for the disk than may; try again after a moment.
    #[error("too many commands wait for the disk")]
    Busy,
    /// The volume is full; try again when there is space.
    #[error("no space left to record the command")]
    NoSpace,
    /// A write failed, so the file takes no change until the server is started again. Whether this change is on the
    /// disk is known then: ask for it again with the same key.
    #[error("commands.db takes no changes until the next start: {reason}")]
    Closed {
        /// The failure.
        reason: String,
    },
    /// The server is stopping; ask its successor.
    #[error("the store is stopping")]
    Stopping,
    /// What the file says makes no sense, or the change does not fit what is there. Trying again does not help.
    #[error("commands.db: {reason}")]
    Unfit {
        /// What is wrong.
        reason: String,
    },
}

/// What a failure of SQLite says of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing: the group is rolled back for lack of space.
    NoSpace,
    /// It must not be written again.
    Broken(String),
}

impl Trouble {
    /// The trouble behind an error; `None` where only the one change is at fault.
    pub(super) fn of(error: &rusqlite::Error) -> Option<Self> {
        let code = error.sqlite_error_code()?;
        if matches!(
            code,
            ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig
        ) {
            return None;
        }
        Some(match Fault::of(error) {
            Fault::NoSpace => Self::NoSpace,
            Fault::Io | Fault::Corrupt | Fault::Other => Self::Broken(error.to_string()),
        })
    }

    /// What is answered for it.
    pub(super) fn answer(&self) -> CommandsError {
        match self {
            Self::NoSpace => CommandsError::NoSpace,
            Self::Broken(reason) => CommandsError::Closed {
                reason: reason.clone(),
            },
        }
    }
}

impl From<&rusqlite::Error> for CommandsError {
    fn from(error: &rusqlite::Error) -> Self {
        match Trouble::of(error) {
            Some(trouble) => trouble.answer(),
            None => Self::Unfit {
                reason: error.to_string(),
            },
        }
    }
}
