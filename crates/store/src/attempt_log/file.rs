//! One file of the record: `<n>.db` in the directory `attempts`, an append-only SQLite database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, Row, TransactionBehavior, params};
use wayhold_model::{DestinationId, FailureClass, OutcomeKind, Position, Receipt, Timestamp};

use super::AttemptEntry;
use crate::connection::{self, Access, ConnectionError, FreePages, Profile};
use crate::disk::Disk;
use crate::format::{Format, Upgrade};

/// `WHat`. A file is written by the version that made it alone, and read as it is.
const FORMAT: Format = Format {
    application_id: 0x5748_6174,
    upgrades: &[
        // Attempts of replays came.
        Upgrade::Statements("ALTER TABLE attempts ADD COLUMN replay INTEGER"),
    ],
};

/// The version from which attempts of replays are told apart.
const WITH_REPLAYS: u32 = 2;

const PROFILE: Profile = Profile {
    page_size: 4096,
    free_pages: FreePages::Keep,
    cache_kib: 1024,
};

/// `begun` is when the file was made. What goes on one page was sent at about one time, to one shard's events in
/// about their order: so it is written once, and read at one place.
const SCHEMA: &str = "
CREATE TABLE record(begun INTEGER NOT NULL) STRICT;
CREATE TABLE attempts(
    generation INTEGER NOT NULL, shard INTEGER NOT NULL, sequence INTEGER NOT NULL,
    destination INTEGER NOT NULL, at INTEGER NOT NULL, number INTEGER NOT NULL, took INTEGER NOT NULL,
    outcome TEXT NOT NULL, class TEXT, status INTEGER, receipt TEXT, replay INTEGER,
    PRIMARY KEY(generation, shard, sequence, destination, at, number)
) STRICT, WITHOUT ROWID;
";

/// A file that is being written.
#[derive(Debug)]
pub(super) struct RecordFile {
    connection: Connection,
}

impl RecordFile {
    /// Makes the file; the caller syncs the directory.
    pub(super) fn create(path: &Path, begun: Timestamp) -> Result<Self, ConnectionError> {
        let mut connection = connection::open(path, Access::Create, PROFILE, None)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        FORMAT.stamp(&transaction)?;
        transaction.execute(
            "INSERT INTO record VALUES (?)",
            [begun.as_micros().cast_signed()],
        )?;
        transaction.commit()?;
        Ok(Self { connection })
    }

    /// Writes entries as one synced transaction, or none of them.
    pub(super) fn write(&mut self, entries: &[AttemptEntry]) -> rusqlite::Result<()> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT OR IGNORE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?;
            for entry in entries {
                let place = entry.position;
                insert.execute(params![
                    place.generation.0,
                    place.shard.0,
                    place.sequence.0.cast_signed(),
                    entry.destination.0,
                    entry.at.as_micros().cast_signed(),
                    entry.number,
                    i64::try_from(entry.duration.as_micros()).unwrap_or(i64::MAX),
                    entry.outcome.name(),
                    entry.class.map(FailureClass::name),
                    entry.status,
                    entry.receipt.as_ref().map(ToString::to_string),
                    entry.replay.map(u64::cast_signed),
                ])?;
            }
        }
        transaction.commit()
    }

    /// Moves the log into the file; a reader in the way only postpones it.
    pub(super) fn checkpoint(&self) -> rusqlite::Result<()> {
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }
}

/// The entries of one event, beside the writer.
pub(super) fn read(path: &Path, position: Position) -> Result<Vec<AttemptEntry>, ConnectionError> {
    let connection = connection::open(path, Access::Read, PROFILE, None)?;
    let replay = match FORMAT.of(&connection)? {
        WITH_REPLAYS.. => "replay",
        _ => "NULL",
    };
    let mut select = connection.prepare(&format!(
        "SELECT destination, at, number, took, outcome, class, status, receipt, {replay} FROM attempts
         WHERE generation = ? AND shard = ? AND sequence = ?",
    ))?;
    let place = params![
        position.generation.0,
        position.shard.0,
        position.sequence.0.cast_signed()
    ];
    let entries = select.query_map(place, |row| read_row(row, position))?;
    Ok(entries.collect::<rusqlite::Result<_>>()?)
}

fn read_row(row: &Row<'_>, position: Position) -> rusqlite::Result<AttemptEntry> {
    let micros = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let (outcome, class): (String, Option<String>) = (row.get(4)?, row.get(5)?);
    let receipt: Option<String> = row.get(7)?;
    Ok(AttemptEntry {
        position,
        destination: DestinationId(row.get(0)?),
        at: Timestamp::from_micros(micros(1)?),
        number: row.get(2)?,
        duration: Duration::from_micros(micros(3)?),
        outcome: OutcomeKind::from_name(&outcome).unwrap_or(OutcomeKind::Unknown),
        class: class.and_then(|name| FailureClass::from_name(&name)),
        status: row.get(6)?,
        receipt: receipt.as_deref().and_then(Receipt::parse),
        replay: row.get::<_, Option<i64>>(8)?.map(i64::cast_unsigned),
    })
}

/// When a file was begun; `None` where it cannot be read.
pub(super) fn begun(path: &Path) -> Option<Timestamp> {
    let connection = connection::open(path, Access::Read, PROFILE, None).ok()?;
    let begun = connection.query_row("SELECT begun FROM record", [], |row| row.get::<_, i64>(0));
    Some(Timestamp::from_micros(begun.ok()?.cast_unsigned()))
}

/// Where the file of that number lies.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.db"))
}

/// Numbers of the files that are there, ascending.
pub(super) fn numbers(disk: &dyn Disk, directory: &Path) -> std::io::Result<Vec<u64>> {
    let names = disk.list(directory)?.into_iter();
    let mut numbers: Vec<u64> = names
        .filter_map(|name| name.to_str()?.strip_suffix(".db")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// What a file and its log occupy.
pub(super) fn bytes(disk: &dyn Disk, path: &Path) -> u64 {
    let log = path.with_extension("db-wal");
    let of = |path: &Path| disk.len(path).unwrap_or(0);
    of(path) + of(&log)
}
