//! Where a case is tried.

use tempfile::TempDir;

/// A directory in memory where there is one.
pub(crate) fn folder() -> Result<TempDir, String> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("wayhold-torture-");
    let made = builder
        .tempdir_in("/dev/shm")
        .or_else(|_| builder.tempdir());
    made.map_err(|error| error.to_string())
}

/// What the store's answers are awaited on.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_time()
        .build()
        .map_err(|error| error.to_string())
}
