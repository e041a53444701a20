//! The file sink: one thread that takes what was submitted, writes it at once and syncs once.
//!
//! The thread owns the file. Submissions that arrive while it syncs share the next sync.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use wayhold_model::{Failure, FailureClass, Outcome};

use super::config::FileConfig;
use super::lines::{AppendError, Lines};
use crate::sink::cloudevents::write_line;
use crate::sink::{Attempt, BoxFuture, BuildError, Sink};

/// Bytes after which a write is not made larger: it bounds memory and how long a sync takes.
const WRITE_BYTES_TARGET: usize = 4 * 1024 * 1024;

/// Appends lines to a file.
#[derive(Debug)]
pub struct FileSink {
    config: FileConfig,
    queue: Mutex<Option<SyncSender<Vec<Attempt>>>>,
    stopped: Mutex<Option<oneshot::Receiver<()>>>,
}

impl FileSink {
    /// Starts the thread; the file is opened with the first submission, so a missing directory is a
    /// failed attempt and not a failed start.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(config: &FileConfig, window: usize) -> Result<Self, BuildError> {
        Self::start_with(config, Lines::new(config.clone()), window)
    }

    fn start_with(config: &FileConfig, lines: Lines, window: usize) -> Result<Self, BuildError> {
        let (queue, submissions) = sync_channel(window.max(1));
        let (stopping, stopped) = oneshot::channel();
        thread::Builder::new()
            .name("file-sink".to_owned())
            .spawn(move || {
                write_until_closed(lines, &submissions);
                drop(stopping);
            })
            .map_err(|error| BuildError(format!("no thread for the file: {error}")))?;
        Ok(Self {
            config: config.clone(),
            queue: Mutex::new(Some(queue)),
            stopped: Mutex::new(Some(stopped)),
        })
    }
}

impl Sink for FileSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        if attempts.is_empty() {
            return;
        }
        let submission = std::mem::take(attempts);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match queue.as_ref() {
            None => submission,
            Some(queue) => match queue.try_send(submission) {
                Ok(()) => return,
                Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => back,
            },
        };
        for attempt in refused {
            attempt.finish(Outcome::NotExecuted(Failure::new(
                FailureClass::Interrupted,
                "the file takes no more lines",
            )));
        }
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async {
            let path = self.config.path.clone();
            let opened = tokio::task::spawn_blocking(move || {
                std::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .truncate(false)
                    .open(path)
                    .map(drop)
            });
            match opened.await {
                Ok(Ok(())) => Ok(format!("{} can be written", self.config.path.display())),
                Ok(Err(error)) => Err(Failure::new(
                    FailureClass::Io,
                    format!("file cannot be opened: {error}"),
                )),
                Err(_) => Err(Failure::new(
                    FailureClass::Interrupted,
                    "the check was cut off",
                )),
            }
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        drop(
            self.queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let stopped = self
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Box::pin(async move {
            if let Some(stopped) = stopped
                && tokio::time::timeout(grace, stopped).await.is_err()
            {
                tracing::warn!("file is still being written after the time given to stop");
            }
        })
    }
}

/// The thread: everything that waits, up to the target size, is one write and one sync.
fn write_until_closed(mut lines: Lines, submissions: &Receiver<Vec<Attempt>>) {
    let mut buffer = Vec::new();
    let mut batch: Vec<Attempt> = Vec::new();
    while let Ok(submission) = submissions.recv() {
        let mut next = Some(submission);
        while let Some(submission) = next {
            for attempt in &submission {
                write_line(&attempt.event.event, &mut buffer);
            }
            batch.extend(submission);
            next = (buffer.len() < WRITE_BYTES_TARGET)
                .then(|| submissions.try_recv().ok())
                .flatten();
        }
        let outcome = outcome_of(lines.append(&buffer));
        buffer.clear();
        buffer.shrink_to(WRITE_BYTES_TARGET);
        for attempt in batch.drain(..) {
            attempt.finish(outcome.clone());
        }
    }
}

fn outcome_of(appended: Result<(), AppendError>) -> Outcome {
    match appended {
        Ok(()) => Outcome::Delivered,
        Err(AppendError::NotWritten(error)) => Outcome::NotExecuted(Failure::new(
            FailureClass::Io,
            format!("file not written: {error}"),
        )),
        Err(AppendError::Doubtful(error)) => Outcome::Unknown(Failure::new(
            FailureClass::Io,
            format!("file perhaps written: {error}"),
        )),
    }
}
