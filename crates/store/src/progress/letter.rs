//! A dead letter on its way to the file: what is to be written of it, and how two changes that meet
//! before a flush become one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_model::{DestinationId, LaneId, Sequence, StoredEvent, Timestamp};

use crate::delivery::{AttemptRecord, LetterEdit, SetAside};

/// Gives dead letters their numbers, the same count for all shards of a store: so a number names one
/// letter whatever shard it lies in, and lists go by the order in which letters came about.
#[derive(Debug, Default)]
pub(crate) struct LetterNumbers(AtomicU64);

impl LetterNumbers {
    /// Numbers below `next` were given before.
    pub(super) fn raise(&self, next: u64) {
        self.0.fetch_max(next, Ordering::Relaxed);
    }

    /// A number that was never given.
    pub(super) fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Above every number that was given.
    pub(super) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whose a letter is, and where its event lies if it has no copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LetterPlace {
    pub(super) lane: LaneId,
    /// The sequence of the event that it refers to.
    pub(super) referred: Option<Sequence>,
}

/// What a letter keeps of its event.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A copy: the event itself may go.
    Copy(Arc<StoredEvent>),
    /// Where it lies: its segment is kept for it.
    Reference {
        sequence: Sequence,
        why: SetAside,
        at: Timestamp,
    },
}

impl Content {
    pub(super) fn sequence(&self) -> Sequence {
        match self {
            Self::Copy(event) => event.position.sequence,
            Self::Reference { sequence, .. } => *sequence,
        }
    }
}

/// A dead letter that is not in the file yet.
#[derive(Clone, Debug)]
pub(super) struct NewLetter {
    pub(super) lane: LaneId,
    pub(super) destination: DestinationId,
    pub(super) content: Content,
    /// The last attempts; the earlier ones are with the retry.
    pub(super) attempts: Vec<AttemptRecord>,
    pub(super) redriving: bool,
    pub(super) edit: Option<NewEdit>,
}

/// An edit of a letter's event that is not in the file yet.
#[derive(Clone, Debug)]
pub(super) struct NewEdit {
    pub(super) destination: DestinationId,
    pub(super) original: Arc<StoredEvent>,
    pub(super) edit: Arc<LetterEdit>,
}

/// What is to be written of one dead letter.
#[derive(Clone, Debug)]
pub(super) enum LetterChange {
    /// It is new.
    New(NewLetter),
    /// A redrive began or failed.
    Changed {
        redriving: bool,
        /// Attempts to append.
        attempts: Vec<AttemptRecord>,
        /// What its event was edited to, if it was.
        edit: Option<NewEdit>,
    },
    /// It was delivered, expired or discarded.
    Removed,
}

impl LetterChange {
    /// This change and then a later one, as one.
    pub(super) fn then(self, later: Self) -> Self {
        match (self, later) {
            // An edit is in the file before its event is sent, so removing loses none.
            (_, Self::Removed) => Self::Removed,
            // Numbers are never reused, so nothing comes after a removal and nothing is new twice.
            (earlier @ Self::Removed, _) => earlier,
            (_, later @ Self::New(_)) => later,
            (
                Self::New(letter),
                Self::Changed {
                    redriving,
                    attempts,
                    edit,
                },
            ) => Self::New(NewLetter {
                redriving,
                attempts: joined(letter.attempts, attempts),
                edit: edit.or(letter.edit),
                ..letter
            }),
            (
                Self::Changed {
                    attempts: first,
                    edit: before,
                    ..
                },
                Self::Changed {
                    redriving,
                    attempts,
                    edit,
                },
            ) => Self::Changed {
                redriving,
                attempts: joined(first, attempts),
                edit: edit.or(before),
            },
        }
    }
}

fn joined(mut first: Vec<AttemptRecord>, second: Vec<AttemptRecord>) -> Vec<AttemptRecord> {
    first.extend(second);
    first
}
