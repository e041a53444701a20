//! From configuration to a running sink: the one place that knows every kind.

use std::sync::Arc;

use thiserror::Error;
use wayhold_model::Clock;

use super::Sink;
use super::file::FileSink;
use super::null::NullSink;
use super::wayhold::ForwardSink;
use super::webhook::WebhookSink;
use crate::config::DestinationConfig;
use crate::config::SinkConfig;

/// A sink that could not be built: the configuration must change, trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BuildError(pub String);

/// Builds and starts a destination's sink. Call it inside a Tokio runtime; it reaches nothing outside
/// the process yet, so it works while the destination is down.
///
/// # Errors
/// When the configuration cannot work in this binary (see `BuildError`).
pub fn build(
    config: &DestinationConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Sink>, BuildError> {
    let delivery = &config.delivery;
    let window = delivery.concurrency + delivery.replay_concurrency();
    Ok(match &config.sink {
        SinkConfig::Null => Arc::new(NullSink),
        SinkConfig::Rules => {
            return Err(BuildError(
                "rules propose commands, of which a sink knows nothing".to_owned(),
            ));
        }
        SinkConfig::File(config) => Arc::new(FileSink::start(config, window)?),
        SinkConfig::Webhook(config) => {
            Arc::new(WebhookSink::start(config, window, Arc::clone(clock))?)
        }
        SinkConfig::Http(config) => {
            Arc::new(WebhookSink::start(config, window, Arc::clone(clock))?)
        }
        SinkConfig::Wayhold(config) => Arc::new(ForwardSink::start(config, Arc::clone(clock))?),
        #[cfg(feature = "kafka")]
        SinkConfig::Kafka(config) => Arc::new(super::kafka::KafkaSink::start(config, window)?),
    })
}
