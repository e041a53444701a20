//! The commands of a stopped store, read without changing anything.

use std::path::{Path, PathBuf};

use super::counts::Counts;
use super::file::{self, FORMAT, PROFILE, is_empty};
use super::ledger;
use crate::connection::{self, Access, ConnectionError};

/// The file as it lies on the disk.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) path: PathBuf,
    /// Version of its format.
    pub(crate) format: u32,
    /// Commands by state, as they are counted beside them.
    pub(crate) counts: Counts,
    /// What is wrong with it: of SQLite's own check, and where counts and commands differ.
    pub(crate) unsound: Vec<String>,
}

/// Most sentences of SQLite's check that are kept.
const SENTENCES_MAX: u32 = 5;

/// Reads the file in `directory`; `None` where there is none, or its making was cut off.
///
/// # Errors
/// It cannot be read, is no file of commands, or a newer version wrote it.
pub(crate) fn examine(directory: &Path) -> Result<Option<Examined>, ConnectionError> {
    let path = file::path_in(directory);
    if !path.exists() {
        return Ok(None);
    }
    if is_empty(&connection::open(&path, Access::Examine, PROFILE, None)?)? {
        return Ok(None);
    }
    let (connection, format) = FORMAT.examine(&path, PROFILE)?;
    let counts = Counts::read(&connection)?;
    let mut unsound = connection::integrity(&connection, SENTENCES_MAX);
    let there = Counts::count(&connection)?;
    for ((state, counted), (_, there)) in counts.iter().zip(there.iter()) {
        if there != counted {
            let name = state.name();
            unsound.push(format!(
                "{there} commands are {name}, and {counted} are counted"
            ));
        }
    }
    let most = usize::try_from(SENTENCES_MAX).unwrap_or(usize::MAX);
    match ledger::unsound(&connection, most) {
        Ok(found) => unsound.extend(found),
        Err(error) => unsound.push(format!("the ledger cannot be read: {error}")),
    }
    Ok(Some(Examined {
        path,
        format,
        counts,
        unsound,
    }))
}
