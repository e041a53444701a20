//! Stub until the client lands.

use std::time::Duration;

use wayhold_model::{Failure, Outcome};

use super::config::WebhookConfig;
use crate::sink::{Attempt, BoxFuture, BuildError, Sink};

/// Posts to a URL.
#[derive(Debug)]
pub struct WebhookSink;

impl WebhookSink {
    /// Builds the client.
    ///
    /// # Errors
    /// When the TLS roots cannot be read.
    pub fn start(
        _config: &WebhookConfig,
        _window: usize,
        _clock: std::sync::Arc<dyn wayhold_model::Clock>,
    ) -> Result<Self, BuildError> {
        Ok(Self)
    }
}

impl Sink for WebhookSink {
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
