//! The signals that ask a command to stop before it is done.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Failure};

/// SIGTERM and SIGINT, noticed from the moment that this was made.
#[derive(Debug)]
pub struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    /// From here on the signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When the operating system does not let the process listen.
    pub fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot listen for signals: {error}"))
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first of them and names it.
    pub async fn received(mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
