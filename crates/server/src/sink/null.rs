//! The null sink confirms everything at once and keeps nothing: for trying out and for measuring.

use std::future::ready;
use std::time::Duration;

use wayhold_model::{Failure, Outcome};

use super::{Attempt, BoxFuture, Sink};

/// Confirms everything and keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl Sink for NullSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        for attempt in attempts.drain(..) {
            attempt.finish(Outcome::Delivered);
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(ready(Ok("takes everything and keeps nothing".to_owned())))
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::contract::{Received, Rig, exercise};

    struct Nothing(NullSink);

    impl Rig for Nothing {
        fn sink(&self) -> &dyn Sink {
            &self.0
        }

        fn received(&self, _at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
            Box::pin(ready(None))
        }
    }

    #[tokio::test]
    async fn it_keeps_the_contract() {
        exercise(&Nothing(NullSink)).await;
    }
}
