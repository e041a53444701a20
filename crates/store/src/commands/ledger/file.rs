//! The ledger of a data directory, for an export: of a stopped store as it lies on the disk, without a trace; of a running one
//! beside its writer, as it stood at one moment.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::super::change::View;
use super::super::error::CommandsError;
use super::super::file::{self, FORMAT, PROFILE};
use crate::connection::{self, Access, ConnectionError};
use crate::error::OpenError;
use crate::opening::{lock_shared, unusable};

/// The ledger's file, open for reading at one moment.
#[derive(Debug)]
pub struct LedgerFile {
    connection: Connection,
    /// Held while no server runs; `None` beside a running one.
    _lock: Option<File>,
}

impl LedgerFile {
    /// Opens it; `None` where the store never had any command. Blocking.
    ///
    /// # Errors
    /// It is no data directory, was written by a newer version, or cannot be read.
    pub fn open(dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = file::path_in(dir);
        let failed = |error: ConnectionError| match error {
            ConnectionError::Newer { found, known } => OpenError::Newer {
                file: path.clone(),
                found,
                known,
            },
            error => unusable(&path, error),
        };
        let (lock, access) = match lock_shared(dir) {
            Ok(lock) => (lock, Access::Examine),
            Err(OpenError::Locked { .. }) => (None, Access::Read),
            Err(error) => return Err(error),
        };
        if !path.exists() {
            return Ok(None);
        }
        let connection = connection::open(&path, access, PROFILE, None).map_err(failed)?;
        if file::is_empty(&connection).map_err(|error| failed(error.into()))? {
            return Ok(None);
        }
        let connection = match access {
            Access::Examine => {
                drop(connection);
                FORMAT.examine(&path, PROFILE).map_err(failed)?.0
            }
            _ => {
                FORMAT.of(&connection).map_err(failed)?;
                // Everything that is read belongs to the moment of the first look.
                let begun = connection.execute_batch("BEGIN");
                begun.map_err(|error| failed(error.into()))?;
                connection
            }
        };
        Ok(Some(Self {
            connection,
            _lock: lock,
        }))
    }

    /// Looks at it.
    ///
    /// # Errors
    /// The closure's own.
    pub fn read<T, E: From<CommandsError>>(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        look(&View::new(&self.connection))
    }
}
