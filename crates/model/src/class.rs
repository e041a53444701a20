//! Why an attempt did not deliver: a closed set of classes. The outcome says what may have happened at
//! the destination; the class says what was in the way, whose business that is, and so what policy does.
//!
//! Names are JSON, metric label, configuration key and disk format at once: they never change.

use crate::outcome::OutcomeKind;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// The receiver has enough for now, and looked at nothing.
    Throttled,
    /// The receiver, or what stands before it, cannot serve at the moment.
    Unavailable,
    /// No answer within the time given.
    Timeout,
    /// No connection could be made.
    Connect,
    /// The connection broke after something was sent.
    ConnectionLost,
    /// The name has no address, or none could be asked.
    Dns,
    /// The TLS handshake failed.
    Tls,
    /// The receiver's certificate is not one that can be trusted.
    Certificate,
    /// The receiver does not accept our credentials, or they may not do this.
    Auth,
    /// The receiver says that it is gone for good.
    Gone,
    /// The receiver knows no such place.
    NotFound,
    /// The receiver points elsewhere, which is not followed.
    Redirected,
    /// The receiver's state is in the way: somebody else is at it, or it has this already.
    Conflict,
    /// The event is larger than the receiver takes.
    TooLarge,
    /// The batch in which the event travelled is larger than the receiver takes; it goes alone next time.
    BatchTooLarge,
    /// The receiver will never take this event as it is.
    Invalid,
    /// The event does not have what the destination's request is made of.
    Mapping,
    /// The topic does not exist.
    MissingTopic,
    /// The Kafka client failed beyond repair and is replaced.
    FatalProducer,
    /// The answer was none that the protocol knows.
    Protocol,
    /// The address may not be reached, by our own rules.
    BlockedAddress,
    /// Handling the event crashed.
    Crashed,
    /// We ended the attempt ourselves, or stopped before its outcome was known.
    Interrupted,
    /// A file or its disk failed.
    Io,
    /// The destination was over its limit when the event was accepted.
    BacklogLimit,
    /// The destination was retired.
    Retired,
    /// The attempt was recorded before classes were.
    Unclassified,
}

/// Who has to do something about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The receiver, or the way to it.
    Receiver,
    /// We: the event, the configuration, this machine.
    Ours,
}

impl Fault {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Receiver => "receiver",
            Self::Ours => "ours",
        }
    }
}

/// What is always true of a class.
struct Facts {
    name: &'static str,
    fault: Option<Fault>,
    usual: OutcomeKind,
}

impl FailureClass {
    /// All of them, in the order in which documentation lists them.
    pub const ALL: [Self; 27] = [
        Self::Throttled,
        Self::Unavailable,
        Self::Timeout,
        Self::Connect,
        Self::ConnectionLost,
        Self::Dns,
        Self::Tls,
        Self::Certificate,
        Self::Auth,
        Self::Gone,
        Self::NotFound,
        Self::Redirected,
        Self::Conflict,
        Self::TooLarge,
        Self::BatchTooLarge,
        Self::Invalid,
        Self::Mapping,
        Self::MissingTopic,
        Self::FatalProducer,
        Self::Protocol,
        Self::BlockedAddress,
        Self::Crashed,
        Self::Interrupted,
        Self::Io,
        Self::BacklogLimit,
        Self::Retired,
        Self::Unclassified,
    ];

    /// Name in JSON, metrics, configuration and on disk.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Who has to do something about it; `None` where nobody said.
    pub fn fault(self) -> Option<Fault> {
        self.facts().fault
    }

    /// The outcome with which it comes where nothing else is known. A 503 with `Retry-After` was not
    /// executed, one without may have been: what a sink reports stands before this.
    pub fn usual_outcome(self) -> OutcomeKind {
        self.facts().usual
    }

    /// Whether an attempt can end with it; the others say why a delivery was set aside without one.
    pub fn is_of_attempts(self) -> bool {
        !matches!(
            self,
            Self::BacklogLimit | Self::Retired | Self::Unclassified
        )
    }

    fn facts(self) -> Facts {
        use Fault::{Ours, Receiver};
        use OutcomeKind::{NotExecuted, Refused, Unknown};
        let (name, fault, usual) = match self {
            Self::Throttled => ("throttled", Some(Receiver), NotExecuted),
            Self::Unavailable => ("unavailable", Some(Receiver), Unknown),
            Self::Timeout => ("timeout", Some(Receiver), Unknown),
            Self::Connect => ("connect", Some(Receiver), NotExecuted),
            Self::ConnectionLost => ("connection_lost", Some(Receiver), Unknown),
            Self::Dns => ("dns", Some(Receiver), NotExecuted),
            Self::Tls => ("tls", Some(Receiver), NotExecuted),
            Self::Certificate => ("certificate", Some(Receiver), NotExecuted),
            Self::Auth => ("auth", Some(Ours), Refused),
            Self::Gone => ("gone", Some(Receiver), Refused),
            Self::NotFound => ("not_found", Some(Ours), Refused),
            Self::Redirected => ("redirected", Some(Receiver), Refused),
            Self::Conflict => ("conflict", Some(Receiver), Refused),
            Self::TooLarge => ("too_large", Some(Ours), Refused),
            Self::BatchTooLarge => ("batch_too_large", Some(Ours), NotExecuted),
            Self::Invalid => ("invalid", Some(Ours), Refused),
            Self::Mapping => ("mapping", Some(Ours), Refused),
            Self::MissingTopic => ("missing_topic", Some(Receiver), NotExecuted),
            Self::FatalProducer => ("fatal_producer", Some(Ours), Unknown),
            Self::Protocol => ("protocol", Some(Receiver), Unknown),
            Self::BlockedAddress => ("blocked_address", Some(Ours), NotExecuted),
            Self::Crashed => ("crashed", Some(Ours), Unknown),
            Self::Interrupted => ("interrupted", Some(Ours), Unknown),
            Self::Io => ("io", Some(Ours), NotExecuted),
            Self::BacklogLimit => ("backlog_limit", Some(Ours), NotExecuted),
            Self::Retired => ("retired", Some(Ours), NotExecuted),
            Self::Unclassified => ("unclassified", None, Unknown),
        };
        Facts { name, fault, usual }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_a_format_and_find_their_class_again() {
        let names = FailureClass::ALL.map(FailureClass::name);
        assert_eq!(
            names,
            [
                "throttled",
                "unavailable",
                "timeout",
                "connect",
                "connection_lost",
                "dns",
                "tls",
                "certificate",
                "auth",
                "gone",
                "not_found",
                "redirected",
                "conflict",
                "too_large",
                "batch_too_large",
                "invalid",
                "mapping",
                "missing_topic",
                "fatal_producer",
                "protocol",
                "blocked_address",
                "crashed",
                "interrupted",
                "io",
                "backlog_limit",
                "retired",
                "unclassified",
            ]
        );
        assert_eq!(BTreeSet::from(names).len(), names.len());
        for class in FailureClass::ALL {
            assert_eq!(FailureClass::from_name(class.name()), Some(class));
        }
        assert_eq!(FailureClass::from_name("refused"), None);
    }

    #[test]
    fn every_class_but_the_one_of_old_records_says_whose_business_it_is() {
        for class in FailureClass::ALL {
            let known = class.fault().is_some();
            assert_eq!(known, class != FailureClass::Unclassified, "{class:?}");
        }
    }

    #[test]
    fn no_failure_usually_delivers() {
        for class in FailureClass::ALL {
            assert_ne!(class.usual_outcome(), OutcomeKind::Delivered, "{class:?}");
        }
    }

    #[test]
    fn every_class_is_documented_with_whose_business_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failures.md");
        let text = std::fs::read_to_string(path).unwrap();
        for class in FailureClass::ALL {
            let whose = match class.fault() {
                Some(fault) => format!(" {} ", fault.name()),
                None => " ".to_owned(),
            };
            let row = format!("| `{}` |{whose}|", class.name());
            assert!(text.contains(&row), "{row} is not in docs/failures.md");
        }
    }
}
