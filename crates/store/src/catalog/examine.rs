//! What the catalogue of a stopped store says, read without changing anything.

use std::path::{Path, PathBuf};

use crate::catalog::file::{self, CatalogError, View};
use crate::catalog::{DestinationRecord, GenerationRecord};
use crate::connection::{self, ConnectionError};

/// A catalogue as it lies on the disk.
#[derive(Debug)]
pub(crate) struct Catalogued {
    pub(crate) path: PathBuf,
    /// Version of its format; what it says was read as if it had the newest.
    pub(crate) format: u32,
    pub(crate) node_id: String,
    pub(crate) hash_seed: u64,
    pub(crate) generations: Vec<GenerationRecord>,
    pub(crate) destinations: Vec<DestinationRecord>,
    pub(crate) tokens: usize,
    /// What SQLite's own check finds wrong with it.
    pub(crate) unsound: Vec<String>,
}

/// Most sentences of SQLite's check that are kept: one tells that a file is damaged, a few tell where.
const SENTENCES_MAX: u32 = 5;

/// Reads the catalogue in `directory`.
pub(crate) fn examine(directory: &Path) -> Result<Catalogued, CatalogError> {
    let path = directory.join(file::FILE);
    if !path.exists() {
        return Err(CatalogError::Lost { path });
    }
    let read = || {
        let (connection, format) = file::FORMAT.examine(&path, file::PROFILE)?;
        let identity = file::read_identity(&connection)?;
        let View {
            generations,
            destinations,
            tokens,
            ..
        } = file::read_view(&connection, 0)?;
        Ok(Catalogued {
            path: path.clone(),
            format,
            node_id: identity.node_id,
            hash_seed: identity.hash_seed,
            generations,
            destinations,
            tokens: tokens.len(),
            unsound: connection::integrity(&connection, SENTENCES_MAX),
        })
    };
    read().map_err(|error: ConnectionError| match error {
        ConnectionError::Newer { found, known } => CatalogError::Newer {
            path: path.clone(),
            found,
            known,
        },
        error => CatalogError::Unusable {
            path: path.clone(),
            reason: error.to_string(),
        },
    })
}
