//! What a sink says of one attempt. Outcome comes before cause: whether anything may have happened at
//! the destination decides what may be done next; why it failed only decides how soon.

use std::time::Duration;

use crate::class::FailureClass;

/// The four outcomes, without their detail; its names are the JSON and metric names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutcomeKind {
    /// The destination confirmed the event.
    Delivered,
    /// The destination answered "no".
    Refused,
    /// Certain that nothing happened: the request was never processed.
    NotExecuted,
    /// Bytes were sent and no trustworthy answer came.
    Unknown,
}

impl OutcomeKind {
    /// Name in JSON, metrics and the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Refused => "refused",
            Self::NotExecuted => "not_executed",
            Self::Unknown => "unknown",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Delivered,
            Self::Refused,
            Self::NotExecuted,
            Self::Unknown,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }
}

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination confirmed the event.
    Delivered,
    /// The destination answered "no".
    Refused(Failure),
    /// Certain that nothing happened.
    NotExecuted(Failure),
    /// Perhaps it happened.
    Unknown(Failure),
}

impl Outcome {
    /// Without the detail.
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Self::Delivered => OutcomeKind::Delivered,
            Self::Refused(_) => OutcomeKind::Refused,
            Self::NotExecuted(_) => OutcomeKind::NotExecuted,
            Self::Unknown(_) => OutcomeKind::Unknown,
        }
    }

    /// The detail of everything but success.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Delivered => None,
            Self::Refused(failure) | Self::NotExecuted(failure) | Self::Unknown(failure) => {
                Some(failure)
            }
        }
    }

    /// Whether it tells that the destination may be down. One that answers "no" is up, and so is one
    /// that fails in a part only.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Delivered | Self::Refused(_) => false,
            Self::NotExecuted(failure) | Self::Unknown(failure) => !failure.of_part,
        }
    }
}

/// Why an attempt did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was in the way.
    pub class: FailureClass,
    /// The receiver's own number (an HTTP status, a Kafka error code), where it gave one.
    pub status: Option<i32>,
    /// One sentence for a person; holds no payload and no secret, and at most `REASON_BYTES_MAX` bytes.
    pub reason: String,
    /// The receiver's wish: no attempt at this destination before this long from now.
    pub retry_after: Option<Duration>,
    /// Whether it concerns a part of the destination only, as one of several topics or one record: then
    /// it is no sign that the rest is down.
    pub of_part: bool,
}

/// Longest reason kept of one attempt, in bytes: one line in a list.
pub const REASON_BYTES_MAX: usize = 300;

impl Failure {
    /// A failure without a number of the receiver's; control characters of the reason are blanked and the
    /// text is cut.
    pub fn new(class: FailureClass, reason: impl AsRef<str>) -> Self {
        let mut text: String = reason
            .as_ref()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if text.len() > REASON_BYTES_MAX {
            let cut = (0..=REASON_BYTES_MAX)
                .rev()
                .find(|&i| text.is_char_boundary(i))
                .unwrap_or(0);
            text.truncate(cut);
        }
        Self {
            class,
            status: None,
            reason: text,
            retry_after: None,
            of_part: false,
        }
    }

    /// The same with the receiver's number.
    #[must_use]
    pub fn with_status(mut self, status: i32) -> Self {
        self.status = Some(status);
        self
    }

    /// The same with the receiver's wish to be left alone for a while.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// The same, of a part of the destination only.
    #[must_use]
    pub fn of_part(mut self) -> Self {
        self.of_part = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_or_the_failure_of_a_part_is_no_sign_that_the_destination_is_down() {
        let failure = || Failure::new(FailureClass::Unavailable, "no");
        for (outcome, trouble) in [
            (Outcome::Delivered, false),
            (Outcome::Refused(failure()), false),
            (Outcome::NotExecuted(failure()), true),
            (Outcome::Unknown(failure()), true),
            (Outcome::NotExecuted(failure().of_part()), false),
            (Outcome::Unknown(failure().of_part()), false),
        ] {
            assert_eq!(outcome.is_trouble(), trouble, "{outcome:?}");
        }
    }
}
