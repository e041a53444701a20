//! What a receiver's number means to the protocol of a destination, as its `classify` has it.

use wayhold_model::{FailureClass, OutcomeKind};

use crate::config::SinkConfig;

/// Outcome and class of an answer with this number, an HTTP status or a Kafka error code; `waits` is whether
/// it came with a time to wait. `None` where the destination never gives such a number.
pub fn meaning(sink: &SinkConfig, status: i32, waits: bool) -> Option<(OutcomeKind, FailureClass)> {
    match sink {
        SinkConfig::Webhook(_) => {
            let status = http_status(status)?;
            Some(super::webhook::meaning_of_status(status, waits))
        }
        SinkConfig::Http(config) => {
            let status = http_status(status)?;
            let own = config.success.meaning_of(status);
            Some(own.unwrap_or_else(|| super::webhook::meaning_of_status(status, waits)))
        }
        SinkConfig::Wayhold(_) => {
            let status = http_status(status)?;
            Some(super::wayhold::meaning_of_status(status, waits))
        }
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(_) => super::kafka::meaning_of_number(status),
        SinkConfig::File(_) | SinkConfig::Null | SinkConfig::Rules => None,
    }
}

fn http_status(number: i32) -> Option<u16> {
    let status = u16::try_from(number).ok();
    status.filter(|status| (100..=999).contains(status))
}
