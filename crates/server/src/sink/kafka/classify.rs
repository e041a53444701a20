//! What a delivery report, or the lack of one, means for the event.

use rdkafka::error::RDKafkaErrorCode as Code;
use wayhold_model::{Failure, Outcome, OutcomeKind};

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
    let said = |words: String| Failure::new(words).with_status(code as i32);
    if is_too_large(code) {
        return if alone {
            Outcome::Refused(said(format!(
                "record too large: {size} bytes are more than topic {topic} takes"
            )))
        } else {
            let words = format!(
                "batch too large for topic {topic}; this record of {size} bytes goes alone next time"
            );
            Outcome::NotExecuted(said(words).of_part())
        };
    }
    let mut failure = said(format!("topic {topic}: {code}"));
    if one_of_several && is_of_topic(code) {
        failure = failure.of_part();
    }
    match kind_of(code) {
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

/// What a code says of one record. Only what the broker itself decided before it wrote anything is
/// "not executed"; a record that was purged may have been sent before it came back to the queue.
fn kind_of(code: Code) -> OutcomeKind {
    match code {
        // It has it already, from an earlier try of the client's.
        Code::DuplicateSequenceNumber => OutcomeKind::Delivered,
        // The record itself is at fault and always will be.
        Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation
        | Code::UnsupportedCompressionType
        | Code::InvalidRecord => OutcomeKind::Refused,
        // Somebody has to create a topic, grant a right or repair a cluster.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicId
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::Authentication
        | Code::SSL
        | Code::Resolve
        | Code::AllBrokersDown
        | Code::InvalidMessage
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::NotController
        | Code::NotEnoughReplicas
        | Code::FencedLeaderEpoch
        | Code::ThrottlingQuotaExceeded
        | Code::QueueFull => OutcomeKind::NotExecuted,
        _ => OutcomeKind::Unknown,
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

    #[test]
    fn each_code_has_its_outcome() {
        for (code, expected) in [
            (Code::DuplicateSequenceNumber, OutcomeKind::Delivered),
            (Code::InvalidRecord, OutcomeKind::Refused),
            (Code::UnknownTopicOrPartition, OutcomeKind::NotExecuted),
            (Code::UnknownTopic, OutcomeKind::NotExecuted),
            (Code::TopicAuthorizationFailed, OutcomeKind::NotExecuted),
            (Code::NotEnoughReplicas, OutcomeKind::NotExecuted),
            (Code::NotEnoughReplicasAfterAppend, OutcomeKind::Unknown),
            (Code::RequestTimedOut, OutcomeKind::Unknown),
            (Code::MessageTimedOut, OutcomeKind::Unknown),
            (Code::PurgeInflight, OutcomeKind::Unknown),
            (Code::PurgeQueue, OutcomeKind::Unknown),
            (Code::BrokerTransportFailure, OutcomeKind::Unknown),
            (Code::OutOfOrderSequenceNumber, OutcomeKind::Unknown),
            (Code::Fatal, OutcomeKind::Unknown),
            (Code::Unknown, OutcomeKind::Unknown),
        ] {
            assert_eq!(outcome_of_error(code, BATCHED).kind(), expected, "{code:?}");
        }
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
        let batched = outcome_of_error(Code::MessageSizeTooLarge, BATCHED);
        assert_eq!(batched.kind(), OutcomeKind::NotExecuted);
        let alone = Reported {
            alone: true,
            ..BATCHED
        };
        let refused = outcome_of_error(Code::MessageSizeTooLarge, alone);
        assert_eq!(refused.kind(), OutcomeKind::Refused);
        let failure = refused.failure().unwrap();
        assert!(
            failure.reason.contains("204800 bytes"),
            "{}",
            failure.reason
        );
        assert_eq!(failure.status, Some(10));
    }
}
