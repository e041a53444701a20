//! A configured target with its policy, table `[destinations.NAME]`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::verdict::RetryPolicy;

use crate::sink::file::config::FileConfig;
#[cfg(feature = "kafka")]
use crate::sink::kafka::config::KafkaConfig;
use crate::sink::webhook::config::WebhookConfig;

/// A destination.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// Its name, by which operators and routes know it.
    pub name: DestinationName,
    /// What speaks to it.
    pub sink: SinkConfig,
    /// When and how often it is tried.
    pub delivery: DeliveryPolicy,
}

/// What speaks to a destination, key `kind`.
#[derive(Clone, Debug)]
pub enum SinkConfig {
    /// A file on this machine.
    File(FileConfig),
    /// An HTTP receiver.
    Webhook(WebhookConfig),
    /// A Kafka cluster.
    #[cfg(feature = "kafka")]
    Kafka(KafkaConfig),
    /// Nobody: every delivery succeeds at once.
    Null,
}

impl SinkConfig {
    /// The word in the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Webhook(_) => "webhook",
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "kafka",
            Self::Null => "null",
        }
    }
}

/// When and how often a destination is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// What a failed delivery means for later events of its key.
    pub on_failure: OnFailure,
    /// What a dead letter means for later events of its key.
    pub on_dead_letter: OnDeadLetter,
    /// Waits and number of attempts.
    pub retry: RetryPolicy,
    /// When it is left alone altogether.
    pub breaker: BreakerPolicy,
    /// Most attempts in flight: the most that repeat after an unclean stop.
    pub concurrency: usize,
    /// Most attempts in flight for one ordering key; above 1 order within a key is given up.
    pub in_flight_per_key: u32,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Most blocked keys before the lane stops reading ahead.
    pub max_blocked_keys: usize,
}

/// What a failed delivery means for later events of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They wait until it is resolved.
    Block,
    /// It is set aside for retry and they go on.
    Park,
}

/// What a dead letter means for later events of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeadLetter {
    /// They go on.
    Release,
    /// They wait until an operator has redriven or discarded it.
    Hold,
}

/// Name of a destination: `[a-z0-9][a-z0-9_-]{0,62}`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationName(Arc<str>);

/// A text that cannot name a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected 1 to 63 of a-z, 0-9, \"-\" and \"_\", beginning with a letter or digit")]
pub struct InvalidName;

impl DestinationName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DestinationName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let begins = text.bytes().next().is_some_and(plain);
        let goes_on = text
            .bytes()
            .all(|byte| plain(byte) || byte == b'-' || byte == b'_');
        (begins && goes_on && text.len() <= 63)
            .then(|| Self(text.into()))
            .ok_or(InvalidName)
    }
}

impl fmt::Display for DestinationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
