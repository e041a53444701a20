//! Work that may wait for the disk, away from the threads that serve everybody.

use thiserror::Error;

/// The work did not end: it panicked, or the process is ending. Nobody knows whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the work was interrupted")]
pub struct Interrupted;

/// Runs `work` where it may block.
///
/// # Errors
/// When it panics, or the process is ending.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Interrupted> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "work on the disk was interrupted");
        Interrupted
    })
}
