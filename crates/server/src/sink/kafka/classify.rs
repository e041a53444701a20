//! What a delivery report, or the lack of one, means for the event.

use rdkafka::error::RDKafkaErrorCode as Code;
use wayhold_model::{Failure, FailureClass, Outcome, OutcomeKind};

/// What is known of a record when its report comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported<'a> {
    pub(super) topic: &'a str,
    /// Bytes of the record, where they are known.
    pub(super) size: usize,
    /// Whether it was the only one in its batch.
    pub(super) alone: bool,
    /// Whether its topic is one of several, so that its trouble is not the destination's.
    pub(super) one_of_several: bool,
}

/// The outcome of a record that the broker or the client reported as failed.
pub(super) fn outcome_of_error(code: Code, reported: Reported<'_>) -> Outcome {
    let Reported {
        topic,
        size,
        alone,
        one_of_several,
    } = reported;
    let said = |class, words: String| Failure::new(class, words).with_status(code as i32);
    if is_too_large(code) {
        return if alone {
            Outcome::Refused(said(
                FailureClass::TooLarge,
                format!("record too large: {size} bytes are more than topic {topic} takes"),
            ))
        } else {
            let words = format!(
                "batch too large for topic {topic}; this record of {size} bytes goes alone next time"
            );
            Outcome::NotExecuted(said(FailureClass::BatchTooLarge, words).of_part())
        };
    }
    let (kind, class) = meaning_of(code);
    let mut failure = said(class, format!("topic {topic}: {code}"));
    if one_of_several && is_of_topic(code) {
        failure = failure.of_part();
    }
    match kind {
        OutcomeKind::Delivered => Outcome::Delivered,
        OutcomeKind::Refused => Outcome::Refused(failure),
        OutcomeKind::NotExecuted => Outcome::NotExecuted(failure),
        OutcomeKind::Unknown => Outcome::Unknown(failure),
    }
}

/// Whether the broker found the batch, or the record in it, larger than it takes.
pub(super) fn is_too_large(code: Code) -> bool {
    matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
}

/// Whether the client gave the record back unanswered, since it was ended.
pub(super) fn is_purged(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::PurgeInflight)
}

/// Whether the broker answered, and what it lacks is this topic or a right to it.
fn is_of_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::UnknownTopicId
            | Code::TopicAuthorizationFailed
    )
}

/// The same of a code by its number; `None` where there is no such code, or it is no error.
pub(crate) fn meaning_of_number(number: i32) -> Option<(OutcomeKind, FailureClass)> {
    let raw = rdkafka::types::RDKafkaRespErr::try_from(number).ok()?;
    match Code::from(raw) {
        Code::NoError => None,
        code => Some(meaning_of(code)),
    }
}

/// What a code says of one record; the class of a success is not used. Only what the broker itself decided
/// before it wrote anything is "not executed"; a record that was purged may have been sent before it came
/// back to the queue.
fn meaning_of(code: Code) -> (OutcomeKind, FailureClass) {
    use FailureClass as Class;
    use OutcomeKind::{Delivered, NotExecuted, Refused, Unknown};
    match code {
        // It has it already, from an earlier try of the client's.
        Code::DuplicateSequenceNumber => (Delivered, Class::Unclassified),
        // The record itself is at fault and always will be.
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => (Refused, Class::TooLarge),
        Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation
        | Code::UnsupportedCompressionType
        | Code::InvalidRecord => (Refused, Class::Invalid),
        // Somebody has to create a topic, grant a right or mend a certificate.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicId => (NotExecuted, Class::MissingTopic),
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::Authentication => (NotExecuted, Class::Auth),
        Code::SSL => (NotExecuted, Class::Certificate),
        Code::Resolve => (NotExecuted, Class::Dns),
        Code::AllBrokersDown => (NotExecuted, Class::Connect),
        Code::ThrottlingQuotaExceeded | Code::QueueFull => (NotExecuted, Class::Throttled),
        Code::InvalidMessage
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::NotController
        | Code::NotEnoughReplicas
        | Code::FencedLeaderEpoch => (NotExecuted, Class::Unavailable),
        Code::RequestTimedOut
        | Code::OperationTimedOut
        | Code::MessageTimedOut
        | Code::TimedOutQueue => (Unknown, Class::Timeout),
        Code::BrokerTransportFailure | Code::NetworkException => (Unknown, Class::ConnectionLost),
        code if is_purged(code) => (Unknown, Class::Interrupted),
        Code::OutOfOrderSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::UnknownProducerId
        | Code::ProducerFenced
        | Code::Fatal
        | Code::Fenced
        | Code::GaplessGuarantee => (Unknown, Class::FatalProducer),
        _ => (Unknown, Class::Unavailable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHED: Reported<'_> = Reported {
        topic: "orders",
        size: 204_800,
        alone: false,
        one_of_several: false,
    };

    /// The whole table: every code that a producer can meet, by its number.
    #[test]
    fn each_code_has_its_outcome_and_class() {
        use FailureClass as Class;
        use OutcomeKind::{Delivered, NotExecuted, Refused, Unknown};
        for (codes, kind, class) in [
            (&[46][..], Delivered, Class::Unclassified),
            (&[17, 32, 43, 44, 76, 87], Refused, Class::Invalid),
            (&[3, 100, -188, -190], NotExecuted, Class::MissingTopic),
            (&[29, 31, 33, 34, 53, 58, -169], NotExecuted, Class::Auth),
            (&[-181], NotExecuted, Class::Certificate),
            (&[-193], NotExecuted, Class::Dns),
            (&[-187], NotExecuted, Class::Connect),
            (&[89, -184], NotExecuted, Class::Throttled),
            (&[2, 5, 6, 19, 41, 74], NotExecuted, Class::Unavailable),
            // Written on the leader, and perhaps nowhere else; or nobody knows.
            (&[20, 14, 15, 16, 51, 56, -1], Unknown, Class::Unavailable),
            (&[7, -185, -192, -166], Unknown, Class::Timeout),
            (&[13, -195], Unknown, Class::ConnectionLost),
            (&[-151, -152], Unknown, Class::Interrupted),
            (
                &[45, 47, 59, 90, -150, -144, -148],
                Unknown,
                Class::FatalProducer,
            ),
        ] {
            for &number in codes {
                let code = code_of(number);
                let outcome = outcome_of_error(code, BATCHED);
                assert_eq!(outcome.kind(), kind, "{code:?}");
                if let Some(failure) = outcome.failure() {
                    assert_eq!(failure.class, class, "{code:?}");
                    assert_eq!(failure.status, Some(number));
                }
            }
        }
    }

    fn code_of(number: i32) -> Code {
        let raw = rdkafka::types::RDKafkaRespErr::try_from(number);
        raw.unwrap_or_else(|_| panic!("{number} is no code")).into()
    }

    #[test]
    fn a_topics_trouble_is_the_destinations_only_where_there_is_no_other() {
        for (code, one_of_several, trouble) in [
            (Code::UnknownTopic, false, true),
            (Code::UnknownTopic, true, false),
            (Code::TopicAuthorizationFailed, true, false),
            (Code::AllBrokersDown, true, true),
            (Code::MessageSizeTooLarge, false, false),
        ] {
            let reported = Reported {
                one_of_several,
                ..BATCHED
            };
            let outcome = outcome_of_error(code, reported);
            assert_eq!(outcome.is_trouble(), trouble, "{outcome:?}");
        }
    }

    #[test]
    fn too_large_is_the_records_own_fault_only_when_it_was_alone() {
        for number in [10, 18] {
            let batched = outcome_of_error(code_of(number), BATCHED);
            assert_eq!(batched.kind(), OutcomeKind::NotExecuted);
            let class = |outcome: &Outcome| outcome.failure().unwrap().class;
            assert_eq!(class(&batched), FailureClass::BatchTooLarge);
            let alone = Reported {
                alone: true,
                ..BATCHED
            };
            let refused = outcome_of_error(code_of(number), alone);
            assert_eq!(refused.kind(), OutcomeKind::Refused);
            assert_eq!(class(&refused), FailureClass::TooLarge);
            let failure = refused.failure().unwrap();
            assert!(
                failure.reason.contains("204800 bytes"),
                "{}",
                failure.reason
            );
            assert_eq!(failure.status, Some(number));
        }
    }
}
