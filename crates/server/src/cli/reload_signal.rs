//! The signal that asks a server to read its configuration again.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Failure};
use crate::app::App;

/// Who asked, in the audit trail.
const BY: &str = "SIGHUP";

/// SIGHUP, noticed from the moment that this was made.
#[derive(Debug)]
pub struct ReloadSignal(Signal);

impl ReloadSignal {
    /// From here on the signal no longer ends the process.
    ///
    /// # Errors
    /// When the operating system does not let the process listen.
    pub fn new() -> Result<Self, Failure> {
        let signal = signal(SignalKind::hangup()).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot listen for signals: {error}"))
        })?;
        Ok(Self(signal))
    }

    /// Has the server follow its configuration at every signal. Signals that come meanwhile are one more.
    pub async fn follow(mut self, app: &Arc<App>) -> Infallible {
        loop {
            if self.0.recv().await.is_none() {
                // No signal will come any more.
                std::future::pending::<()>().await;
            }
            // What came of it stands in the log, in the metrics and in the audit trail.
            drop(app.reload(BY).await);
        }
    }
}
