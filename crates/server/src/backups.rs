//! Backups of the running store: one at a time, begun by a request that does not wait for it, and looked at
//! while it is made.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thiserror::Error;
use wayhold_model::{Clock, Timestamp};
use wayhold_store::backup::{Manifest, Progress};
use wayhold_store::{CatalogError, Store};

use crate::blocking::blocking;

/// Backups that are remembered until the server stops, the newest: what an operator asks about is the last
/// one and perhaps the one before.
const REMEMBERED_MAX: usize = 10;

/// Backups of one store.
pub struct Backups {
    store: Store,
    clock: Arc<dyn Clock>,
    /// Oldest first.
    runs: Mutex<Vec<Arc<BackupRun>>>,
}

/// One backup, under way or ended.
#[derive(Debug)]
pub struct BackupRun {
    /// Counts from 1 since the start of the server.
    pub number: u64,
    /// The directory.
    pub to: PathBuf,
    /// Who asked for it.
    pub by: String,
    /// When.
    pub begun_at: Timestamp,
    /// How far it has come.
    pub progress: Progress,
    ended: OnceLock<(Timestamp, Result<Manifest, String>)>,
}

/// A backup was not begun.
#[derive(Debug, Error)]
pub enum BeginError {
    /// One at a time.
    #[error("a backup to {to} is being made already; wait until it is complete", to = to.display())]
    Running {
        /// Where to.
        to: PathBuf,
    },
    /// The path leads to different places from different directories.
    #[error("to: expected an absolute path of a directory on the server's machine")]
    Relative,
    /// It could not be recorded who asked for it.
    #[error(transparent)]
    Audit(#[from] CatalogError),
}

impl Backups {
    /// None yet.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            runs: Mutex::default(),
        }
    }

    /// Begins a backup to a directory of this machine, in the name of `by`, once that is in the audit trail.
    ///
    /// # Errors
    /// Nothing was begun.
    pub async fn begin(
        self: &Arc<Self>,
        to: &Path,
        by: &str,
    ) -> Result<Arc<BackupRun>, BeginError> {
        if !to.is_absolute() {
            return Err(BeginError::Relative);
        }
        let run = self.register(to, by)?;
        let (backups, audited) = (Arc::clone(self), Arc::clone(&run));
        let audit = move || {
            let (by, subject) = (&audited.by, audited.to.display().to_string());
            backups
                .store
                .catalog()
                .audit(by, "store.backup", &subject, None)
        };
        let recorded = match blocking(audit).await {
            Ok(recorded) => recorded.map(drop).map_err(BeginError::from),
            Err(interrupted) => Err(BeginError::Audit(CatalogError::Closed {
                reason: interrupted.to_string(),
            })),
        };
        if let Err(error) = recorded {
            self.end(&run, Err(error.to_string()));
            return Err(error);
        }
        let (backups, making) = (Arc::clone(self), Arc::clone(&run));
        tokio::spawn(async move {
            let (store, one) = (backups.store.clone(), Arc::clone(&making));
            let made = blocking(move || store.back_up(&one.to, &one.progress)).await;
            let made = made.map_err(|interrupted| interrupted.to_string());
            let made = made.and_then(|made| made.map_err(|error| error.to_string()));
            backups.end(&making, made);
        });
        Ok(run)
    }

    /// Backups since the start, newest first.
    pub fn list(&self) -> Vec<Arc<BackupRun>> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.iter().rev().map(Arc::clone).collect()
    }

    fn register(&self, to: &Path, by: &str) -> Result<Arc<BackupRun>, BeginError> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = runs.iter().find(|run| run.ended().is_none()) {
            return Err(BeginError::Running {
                to: running.to.clone(),
            });
        }
        let run = Arc::new(BackupRun {
            number: runs.last().map_or(1, |last| last.number + 1),
            to: to.to_owned(),
            by: by.to_owned(),
            begun_at: self.clock.now(),
            progress: Progress::default(),
            ended: OnceLock::new(),
        });
        if runs.len() >= REMEMBERED_MAX {
            runs.remove(0);
        }
        runs.push(Arc::clone(&run));
        Ok(run)
    }

    fn end(&self, run: &BackupRun, made: Result<Manifest, String>) {
        let to = run.to.display();
        match &made {
            Ok(manifest) => {
                tracing::info!(%to, bytes = manifest.bytes(), "a backup is complete");
            }
            Err(reason) => tracing::error!(%to, reason, "a backup was not made"),
        }
        // Ended once: nobody else does.
        drop(run.ended.set((self.clock.now(), made)));
    }
}

impl BackupRun {
    /// When it ended, and what it holds or why it was not made; `None` while it is under way.
    pub fn ended(&self) -> Option<&(Timestamp, Result<Manifest, String>)> {
        self.ended.get()
    }
}
