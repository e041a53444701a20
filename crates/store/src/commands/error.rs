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
    /// A write failed, so the file takes no change until its log could be replaced, or the server is started again.
    /// Whether this change is on the disk is not certain: ask for it again with the same key.
    #[error("commands.db takes no changes: {reason}")]
    Closed {
        /// The failure, and when changes are taken again.
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
    /// Nothing: the group is rolled back, for a change in it was refused after it had written, against its word.
    Spoilt,
    /// What its log holds of the last group is uncertain, so that nothing may be added to it. Another log may.
    Failed(String),
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
            Fault::Io => Self::Failed(format!(
                "a read or write failed; trying again all the time: {error}"
            )),
            Fault::Corrupt | Fault::Other => {
                Self::Broken(format!("it needs to be looked at, and a restart: {error}"))
            }
        })
    }

    /// The trouble behind a failure to move the log into the file. Where a part was moved before, without a sync, the
    /// failure may have been that part's, and only a start moves it again.
    pub(super) fn of_move(error: &rusqlite::Error, is_partly_moved: bool) -> Option<Self> {
        match Self::of(error)? {
            Self::Failed(_) if is_partly_moved => Some(Self::Broken(format!(
                "what was moved into it may not be there; it needs a restart: {error}"
            ))),
            trouble => Some(trouble),
        }
    }

    /// What is answered for it.
    pub(super) fn answer(&self) -> CommandsError {
        match self {
            Self::NoSpace => CommandsError::NoSpace,
            Self::Spoilt => CommandsError::Unfit {
                reason: "a change that it was written together with was refused too late; \
                         nothing of either was kept"
                    .to_owned(),
            },
            Self::Failed(reason) | Self::Broken(reason) => CommandsError::Closed {
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
