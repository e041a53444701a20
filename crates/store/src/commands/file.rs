//! The file of commands: how it is made, opened and kept short.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::{approvals, attempts, bounds, counts, edits, keys, ledger, rows};
use crate::connection::{self, Access, ConnectionError, FreePages, Profile};
use crate::disk::{Disk, renew_log, with_suffix};
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

/// Bytes of log after which it is moved into the file although changes wait: thousands of commands. Nobody is answered
/// meanwhile, so that it is done seldom; pages that many groups wrote are then written once. A start reads as much again
/// in a moment, and it is a quarter of the free disk below which no command is taken.
pub(super) const LOG_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Bytes of log after which it is moved once nobody waits: as much as takes no longer than a few groups.
pub(super) const LOG_BYTES_IN_QUIET: u64 = 1024 * 1024;

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
    checkpoint(&connection)?;
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

/// Moves the log into the file, syncs that, and cuts the log off, so that the next group begins another one. `false`
/// where a reader was in the way, which is no error: the next one does it.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        Ok(row.get::<_, i64>(0)? == 0)
    })
}

/// The same without waiting for readers.
pub(super) fn checkpoint_now(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(Duration::ZERO)?;
    let done = checkpoint(connection);
    connection.busy_timeout(connection::BUSY_TIMEOUT)?;
    done
}

/// The same where the log is longer than that.
pub(super) fn checkpoint_if_longer(
    connection: &Connection,
    (directory, disk): (&Path, &dyn Disk),
    bytes: u64,
) -> rusqlite::Result<()> {
    let log = with_suffix(&path_in(directory), "-wal");
    if disk.len(&log).unwrap_or(0) <= bytes {
        return Ok(());
    }
    checkpoint_now(connection).map(drop)
}
