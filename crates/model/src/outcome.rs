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

    /// The same with what the receiver answered; of a success nothing is kept.
    #[must_use]
    pub fn with_answer(self, body: &[u8]) -> Self {
        match self {
            Self::Delivered => Self::Delivered,
            Self::Refused(failure) => Self::Refused(failure.with_answer(body)),
            Self::NotExecuted(failure) => Self::NotExecuted(failure.with_answer(body)),
            Self::Unknown(failure) => Self::Unknown(failure.with_answer(body)),
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
    /// How the receiver's answer begins, where it gave one: in its words, for people, and at most
    /// `ANSWER_BYTES_MAX` bytes. It may repeat what was sent, so it is kept with the delivery and is in no log.
    pub answer: Option<Box<str>>,
    /// The receiver's wish: no attempt at this destination before this long from now.
    pub retry_after: Option<Duration>,
    /// Whether it concerns a part of the destination only, as one of several topics or one record: then
    /// it is no sign that the rest is down.
    pub of_part: bool,
    /// Whether somebody who knows said that the receiver's name does not exist: waiting is not what mends that.
    pub no_such_name: bool,
}

/// Longest reason kept of one attempt, in bytes: one line in a list.
pub const REASON_BYTES_MAX: usize = 300;

/// Most of a receiver's answer kept of one attempt, in bytes: what says why, without the page around it.
pub const ANSWER_BYTES_MAX: usize = 500;

/// A text on one line, control characters blanked and cut to `max` bytes.
fn line(text: &str, max: usize) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.truncate(line.floor_char_boundary(max));
    line
}

impl Failure {
    /// A failure without a number of the receiver's; control characters of the reason are blanked and the
    /// text is cut.
    pub fn new(class: FailureClass, reason: impl AsRef<str>) -> Self {
        Self {
            class,
            status: None,
            reason: line(reason.as_ref(), REASON_BYTES_MAX),
            answer: None,
            retry_after: None,
            of_part: false,
            no_such_name: false,
        }
    }

    /// The same with the receiver's number.
    #[must_use]
    pub fn with_status(mut self, status: i32) -> Self {
        self.status = Some(status);
        self
    }

    /// The same with what the receiver answered, of which the beginning is kept; nothing where that is no text.
    #[must_use]
    pub fn with_answer(mut self, body: &[u8]) -> Self {
        let end = body.len().min(ANSWER_BYTES_MAX);
        let begin = body.get(..end).unwrap_or_default();
        // A character that the cut went through is left out.
        let text = match std::str::from_utf8(begin) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                let whole = begin.get(..error.valid_up_to()).unwrap_or_default();
                std::str::from_utf8(whole).unwrap_or_default()
            }
            Err(_) => "",
        };
        let text = line(text.trim(), ANSWER_BYTES_MAX);
        self.answer = (!text.is_empty()).then(|| text.into());
        self
    }

    /// The same with the receiver's wish to be left alone for a while.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// The same, of a name that certainly does not exist.
    #[must_use]
    pub fn of_no_such_name(mut self) -> Self {
        self.no_such_name = true;
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
    fn the_beginning_of_an_answer_is_kept_where_it_is_text() {
        let kept = |body: &[u8]| {
            let failure = Failure::new(FailureClass::Invalid, "no").with_answer(body);
            failure.answer.map(String::from)
        };
        let long = "\u{e9}".repeat(ANSWER_BYTES_MAX);
        for (body, expected) in [
            (&b""[..], None),
            (b" \r\n ", None),
            (b"\xff\xfe", None),
            (b"no\xff", None),
            (b" sku\nunknown\t", Some("sku unknown")),
            (long.as_bytes(), long.get(..ANSWER_BYTES_MAX)),
            (
                [b"a", long.as_bytes()].concat().as_slice(),
                format!("a{long}").get(..ANSWER_BYTES_MAX - 1),
            ),
        ] {
            assert_eq!(kept(body).as_deref(), expected, "{body:?}");
        }
    }

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
