//! Stub until the producer lands.

use std::time::Duration;

use wayhold_model::{Failure, Outcome};

use super::config::KafkaConfig;
use crate::sink::{Attempt, BoxFuture, BuildError, Sink};

/// Produces to Kafka.
#[derive(Debug)]
pub struct KafkaSink;

impl KafkaSink {
    /// Starts the producer's thread.
    ///
    /// # Errors
    /// When librdkafka refuses a property.
    pub fn start(_config: &KafkaConfig, _window: usize) -> Result<Self, BuildError> {
        Ok(Self)
    }
}

impl Sink for KafkaSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        for attempt in attempts.drain(..) {
            attempt.finish(Outcome::NotExecuted(Failure::new("not built yet")));
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(std::future::ready(Err(Failure::new("not built yet"))))
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
