//! The file of commands: how it is made, opened and kept short.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::{approvals, attempts, bounds, counts, edits, keys, ledger, rows};
use crate::connection::{self, Access, ConnectionError, FreePages, Profile};
use crate::disk::{Disk, renew_log};
use crate::format::Format;

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "commands.db";

/// `WHco`. A step of `upgrades` also changes `SCHEMAS`, which new files begin with.
pub(super) const FORMAT: Format = Format {
    application_id: 0x5748_636f,
    upgrades: &[],
};

/// What each module keeps.
const SCHEMAS: &[&str] = &[
    rows::SCHEMA,
    keys::SCHEMA,
    attempts::SCHEMA,
    approvals::SCHEMA,
    edits::SCHEMA,
    bounds::SCHEMA,
    counts::SCHEMA,
];

/// Enough for the pages that a busy writer touches again and again; readers have as much each.
pub(super) const PROFILE: Profile = Profile {
    page_size: 4096,
    free_pages: FreePages::Keep,
    cache_kib: 8 * 1024,
};

/// Pages of log after which it is moved in any case, and of one that is kept to be written over: 32 MiB. One that grew longer
/// beside a reader is cut off, so that its room is given back and a start does not read it.
pub(super) const LOG_PAGES_MAX: u32 = 8 * 1024;

/// Pages of log after which it is moved once nobody waits.
const LOG_PAGES_IN_QUIET: u32 = 256;

/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS_KEPT: usize = 128;

/// Where the file of a data directory lies.
pub(super) fn path_in(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Whether a data directory ever had commands.
pub(crate) fn exists(directory: &Path, disk: &dyn Disk) -> std::io::Result<bool> {
    disk.exists(&path_in(directory))
}

/// Opens the file for its writer, or makes it. Whatever the log holds of the last run is in the file and synced when
/// this returns: it may have come from a page that was never synced.
pub(super) fn open(
    directory: &Path,
    vfs: Option<&str>,
    disk: &dyn Disk,
) -> Result<Connection, ConnectionError> {
    let path = path_in(directory);
    let access = match disk.exists(&path).map_err(ConnectionError::Make)? {
        true => Access::Write,
        false => Access::Create,
    };
    renew_log(disk, &path).map_err(ConnectionError::Make)?;
    let mut connection = connection::open(&path, access, PROFILE, vfs)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // A crash while the file was made leaves it without any table: nothing was ever kept in it.
    if is_empty(&connection)? {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for schema in SCHEMAS.iter().chain(&ledger::SCHEMAS) {
            transaction.execute_batch(schema)?;
        }
        FORMAT.stamp(&transaction)?;
        transaction.commit()?;
    }
    FORMAT.upgrade(&mut connection)?;
    cut_off(&connection)?;
    disk.sync_directory(directory)
        .map_err(ConnectionError::Make)?;
    Ok(connection)
}

/// Opens the file for a reader beside the writer.
pub(super) fn open_reader(
    directory: &Path,
    vfs: Option<&str>,
) -> Result<Connection, ConnectionError> {
    let reader = connection::open(&path_in(directory), Access::Read, PROFILE, vfs)?;
    reader.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    Ok(reader)
}

pub(super) fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
        row.get(0)
    })
}

/// How far the log is moved into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// It was also begun again or cut off; a reader was in the way otherwise.
    pub(super) is_over: bool,
    /// All of it is in the file, and that is synced. What was moved in part is not.
    pub(super) is_whole: bool,
}

/// What has to have come together before the log is moved while others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoveAfter {
    /// More pages of log than that.
    pub(crate) pages: u32,
    /// So many groups since it was moved last.
    pub(crate) groups: u32,
}

/// When the log is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// Others wait.
    Busy {
        /// Groups since it was moved last.
        groups: u32,
        /// What has to come together.
        after: MoveAfter,
    },
    /// Nobody waits.
    Quiet,
}

impl Occasion {
    fn is_due(self, in_log: u32) -> bool {
        match self {
            Self::Quiet => in_log > LOG_PAGES_IN_QUIET,
            Self::Busy { groups, after } => {
                in_log > LOG_PAGES_MAX || in_log > after.pages && groups >= after.groups
            }
        }
    }
}

/// Moves the log into the file, syncs that, and cuts the log off. A reader that is in the way is no error: the next one does
/// it.
pub(super) fn cut_off(connection: &Connection) -> rusqlite::Result<Moved> {
    checkpoint(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
}

/// The same without waiting for readers.
pub(super) fn cut_off_now(connection: &Connection) -> rusqlite::Result<Moved> {
    at_once(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
}

/// Moves the log into the file and syncs that, where it is time for it; `None` where it is not. It does not wait for readers.
/// The next group begins the log again from its start and in its place: written over, it needs no room to be found, and no
/// length to be synced.
pub(super) fn move_if_due(
    connection: &Connection,
    occasion: Occasion,
) -> rusqlite::Result<Option<Moved>> {
    let pages = pages_in_log(connection)?;
    if !occasion.is_due(pages) {
        return Ok(None);
    }
    match pages > LOG_PAGES_MAX {
        true => cut_off_now(connection),
        false => at_once(connection, "PRAGMA wal_checkpoint(RESTART)"),
    }
    .map(Some)
}

fn at_once(connection: &Connection, pragma: &str) -> rusqlite::Result<Moved> {
    connection.busy_timeout(Duration::ZERO)?;
    let moved = checkpoint(connection, pragma);
    connection.busy_timeout(connection::BUSY_TIMEOUT)?;
    moved
}

fn checkpoint(connection: &Connection, pragma: &str) -> rusqlite::Result<Moved> {
    connection.query_row(pragma, [], |row| {
        let [busy, in_log, moved]: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
        Ok(Moved {
            is_over: busy == 0,
            is_whole: in_log == moved,
        })
    })
}

/// Pages in the log since it was begun last, those that are in the file already included.
fn pages_in_log(connection: &Connection) -> rusqlite::Result<u32> {
    connection
        .prepare_cached("PRAGMA wal_checkpoint(NOOP)")?
        .query_row([], |row| row.get(1))
}

#[cfg(test)]
mod tests;
