//! Why an event or a request is not accepted. Each kind asks something else of the producer; the HTTP
//! form of it is made in `http::problem`.

use std::time::Duration;

use thiserror::Error;
use wayhold_model::{InvalidEvent, Position};
use wayhold_store::AppendError;

use super::{Accepted, Difference, FullLimit};
use crate::telemetry::metrics::Refusal as Reason;

/// A refusal of one event, of a whole batch, or of the request that carries them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The bytes are not what their content type says. The producer must send other bytes.
    #[error("byte {offset}: expected {expected}")]
    Malformed {
        /// Byte offset in the body, or in the line of a stream.
        offset: usize,
        /// What was expected there.
        expected: String,
    },
    /// An attribute breaks a rule. The producer must send another event.
    #[error("{field}: expected {expected}")]
    Invalid {
        /// The attribute, by its CloudEvents name (or `key`, `data`).
        field: String,
        /// What was expected of it.
        expected: String,
    },
    /// A header or query parameter cannot be understood.
    #[error("{field}: expected {expected}")]
    Request {
        /// The header or parameter.
        field: String,
        /// What was expected of it.
        expected: String,
    },
    /// A limit is exceeded. The producer must send less at once.
    #[error("{what} exceeds the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, in the unit that `what` names.
        limit: usize,
    },
    /// A content type, charset or encoding that is not spoken here.
    #[error("{what}: expected {expected}")]
    Unsupported {
        /// Which header.
        what: &'static str,
        /// What is understood.
        expected: &'static str,
    },
    /// The body broke off, or its transfer coding is broken.
    #[error("the body ended before it was whole")]
    Cut,
    /// No route matched, and the configuration refuses such events.
    #[error("none of the {routes} routes matches this event")]
    Unmatched {
        /// How many were tried.
        routes: usize,
        /// The first of them.
        named: Vec<String>,
    },
    /// A route's condition failed on this event.
    #[error("route {route}: {reason}")]
    RouteFailed {
        /// The route.
        route: String,
        /// Why its condition has no answer.
        reason: String,
    },
    /// A key rule's condition failed on this event.
    #[error("key rule {rule}: {reason}")]
    KeyFailed {
        /// The rule.
        rule: String,
        /// Why its condition has no answer.
        reason: String,
    },
    /// The same source and id was accepted before with another fingerprint. Nothing was stored.
    #[error("this source and id was accepted before with other content, as {first}")]
    Conflict {
        /// The first acceptance.
        first: Position,
        /// In what the two differ, where the first could be looked at.
        difference: Option<Box<Difference>>,
    },
    /// The same source and id stands twice in the batch with different fingerprints.
    #[error(
        "the same source and id stands earlier in the batch with other content, at index {first}"
    )]
    ConflictInBatch {
        /// Index of the earlier one.
        first: usize,
    },
    /// More waits to be stored than the queue may hold. Come back.
    #[error("more events are waiting to be stored than the queue holds")]
    Busy {
        /// When.
        retry_after: Duration,
    },
    /// More is pending than may be for this event to be let in. Come back when it has drained.
    #[error("{0}")]
    Full(FullLimit),
    /// Less space is free than must stay free. Come back when there is more.
    #[error("less disk space is free than store.min_free asks for")]
    NoSpace {
        /// When.
        retry_after: Duration,
    },
    /// The store cannot accept right now. Come back.
    #[error("the store cannot accept right now: {reason}")]
    Unavailable {
        /// Why, without paths.
        reason: String,
        /// When.
        retry_after: Duration,
    },
    /// The server is stopping. Come back, perhaps elsewhere.
    #[error("the server is stopping")]
    Stopping {
        /// When.
        retry_after: Duration,
    },
    /// One shard of the store failed after another had committed. Send the whole batch again: only the
    /// rest is stored then.
    #[error(
        "{cause}; {} of {} events are stored: send the whole batch again",
        .accepted.iter().flatten().count(), .accepted.len()
    )]
    Partly {
        /// What is stored, in the order of the batch; `None` for what is not.
        accepted: Vec<Option<Accepted>>,
        /// Why the rest is not.
        cause: Box<Refusal>,
    },
}

impl Refusal {
    pub(crate) fn invalid(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn request(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Request {
            field: field.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn malformed(offset: usize, expected: impl Into<String>) -> Self {
        Self::Malformed {
            offset,
            expected: expected.into(),
        }
    }

    /// What the store said, without the place in the batch.
    pub(crate) fn from_append(error: AppendError) -> Refused {
        // The store names a wait for all that waiting can mend.
        let retry_after = error.retry_after().unwrap_or_default();
        match error {
            AppendError::Conflict { index, first } => Self::Conflict {
                first,
                difference: None,
            }
            .at(index),
            AppendError::ConflictInBatch { index, first } => {
                Self::ConflictInBatch { first }.at(index)
            }
            AppendError::Busy => Self::Busy { retry_after }.into(),
            AppendError::NoSpace { .. } => Self::NoSpace { retry_after }.into(),
            AppendError::Unavailable { reason } => Self::Unavailable {
                reason,
                retry_after,
            }
            .into(),
            AppendError::Stopping => Self::Stopping { retry_after }.into(),
            // What is stored of it is the caller's to tell.
            AppendError::Partly { cause, .. } => Self::from_append(*cause),
        }
    }

    /// Whether the same event may be accepted later as it is.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::Full(_)
            | Self::NoSpace { .. }
            | Self::Unavailable { .. }
            | Self::Stopping { .. } => true,
            Self::Partly { cause, .. } => cause.is_temporary(),
            _ => false,
        }
    }

    /// When to come back with the same event, where it may be accepted later.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after }
            | Self::NoSpace { retry_after }
            | Self::Unavailable { retry_after, .. }
            | Self::Stopping { retry_after } => Some(*retry_after),
            Self::Full(full) => Some(full.retry_after),
            Self::Partly { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }

    /// The same for the event at `index` of a batch.
    pub(crate) fn at(self, index: usize) -> Refused {
        Refused {
            index: Some(index),
            refusal: self,
        }
    }

    /// Under which reason it is counted.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Malformed { .. }
            | Self::Invalid { .. }
            | Self::Request { .. }
            | Self::Unsupported { .. }
            | Self::Cut => Reason::Malformed,
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::Unmatched { .. } => Reason::Unmatched,
            Self::RouteFailed { .. } | Self::KeyFailed { .. } => Reason::RouteFailed,
            Self::Conflict { .. } | Self::ConflictInBatch { .. } => Reason::Conflict,
            Self::Busy { .. } => Reason::Busy,
            Self::Full(full) if full.destination.is_some() => Reason::DestinationFull,
            Self::Full(_) => Reason::BacklogFull,
            Self::NoSpace { .. } => Reason::NoSpace,
            Self::Unavailable { .. } => Reason::Unavailable,
            Self::Stopping { .. } => Reason::Stopping,
            Self::Partly { cause, .. } => cause.reason(),
        }
    }
}

impl From<InvalidEvent> for Refusal {
    fn from(invalid: InvalidEvent) -> Self {
        Self::invalid(invalid.field, invalid.expected)
    }
}

/// A refusal and which event of a batch it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{refusal}")]
pub struct Refused {
    /// Index in the batch, from 0; `None` for a single event or the request as a whole.
    pub index: Option<usize>,
    /// Why.
    pub refusal: Refusal,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            index: None,
            refusal,
        }
    }
}
