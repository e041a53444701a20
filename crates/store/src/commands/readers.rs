//! Connections that read beside the writer, a few and kept open.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, TransactionBehavior};

use super::change::View;
use super::error::CommandsError;
use super::file;
use crate::connection::ConnectionError;

/// Readers that are kept open; more may read at once, and are closed afterwards.
const KEPT_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Readers {
    directory: PathBuf,
    vfs: Option<String>,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(directory: &Path, vfs: Option<String>) -> Self {
        Self {
            directory: directory.to_owned(),
            vfs,
            idle: Mutex::default(),
        }
    }

    /// Reads at one moment, in one transaction.
    pub(super) fn read<T, E: From<CommandsError>>(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut connection = self.take()?;
        let done = {
            let moment = connection
                .transaction_with_behavior(TransactionBehavior::Deferred)
                .map_err(|error| CommandsError::from(&error))?;
            look(&View::new(&moment))
        };
        if done.is_ok() {
            self.put_back(connection);
        }
        done
    }

    /// A connection of its own, for a copy of everything.
    pub(super) fn one(&self) -> Result<Connection, ConnectionError> {
        file::open_reader(&self.directory, self.vfs.as_deref())
    }

    fn take(&self) -> Result<Connection, CommandsError> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.pop()
        };
        match idle {
            Some(connection) => Ok(connection),
            None => self.one().map_err(|error| CommandsError::Unfit {
                reason: error.to_string(),
            }),
        }
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_MAX {
            idle.push(connection);
        }
    }

    /// Closes those that are idle.
    pub(super) fn close(&self) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
