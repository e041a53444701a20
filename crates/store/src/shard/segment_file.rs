//! A segment's database: an append-only SQLite file written by one process run. One connection appends,
//! others read; once it is closed it may be checkpointed.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OptionalExtension};
use wayhold_model::{DestinationSet, Generation, ShardId};

use super::index_file::Identity;
use super::row::{self, DamagedRow, Origin, Row};
use crate::connection::{self, Access, ConnectionError, Fault, FreePages, Profile};
use crate::disk::Disk;

/// Newest version of a segment file's layout; a newer one is refused. A compacted segment has it: it says what
/// it covers.
pub(crate) const FORMAT: u32 = 2;

/// The version of every other segment.
const PLAIN: u32 = 1;

/// What a compacted segment has besides.
const COVERS: &str = "CREATE TABLE covers(first INTEGER NOT NULL, last INTEGER NOT NULL)";

/// Bytes of a WAL frame's header, and of the WAL's own (SQLite file format, section 4.1).
const WAL_FRAME_HEADER: u64 = 24;
const WAL_HEADER: u64 = 32;

/// The one connection that appends to a segment.
pub(crate) struct SegmentWriter {
    connection: Connection,
    wal_pages: Arc<AtomicU64>,
    page_size: u32,
    check_seed: u64,
}

impl SegmentWriter {
    /// Makes a segment's file with its schema, synced with its directory.
    pub(crate) fn create(
        disk: &dyn Disk,
        path: &Path,
        identity: Identity,
        hash_seed: u64,
        (page_size, vfs): (u32, Option<&str>),
    ) -> Result<Self, ConnectionError> {
        let mut connection = connection::open(path, Access::Create, profile(page_size), vfs)?;
        if syncs_by_hand() {
            connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        let wal_pages = Arc::new(AtomicU64::new(0));
        let pages = Arc::clone(&wal_pages);
        // Replaces SQLite's own hook, the one that would checkpoint.
        connection.wal_hook(Some(
            move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
                pages.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            },
        ))?;
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute_batch(row::SCHEMA)?;
        transaction.execute(
            "INSERT INTO segment VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
            (
                identity.covers.map_or(PLAIN, |_| FORMAT),
                identity.uuid.to_le_bytes().as_slice(),
                identity.number.cast_signed(),
                identity.generation,
                identity.shard,
                hash_seed.cast_signed(),
            ),
        )?;
        if let Some((first, last)) = identity.covers {
            transaction.execute(COVERS, [])?;
            transaction.execute(
                "INSERT INTO covers VALUES(?1, ?2)",
                [first, last].map(u64::cast_signed),
            )?;
        }
        failpoint!("prepare.before-commit");
        transaction.commit()?;
        failpoint!("prepare.before-directory-sync");
        let parent = path.parent().unwrap_or(Path::new("."));
        disk.sync_directory(parent).map_err(ConnectionError::Make)?;
        Ok(Self {
            connection,
            wal_pages,
            page_size,
            check_seed: identity.check_seed(),
        })
    }

    /// Commits these rows in one transaction, synced. After an error other than a lack of space nothing
    /// may ever be appended to this file again.
    pub(crate) fn append(&mut self, rows: &[Row]) -> Result<(), (Fault, rusqlite::Error)> {
        let result = self.commit(rows);
        result.map_err(|error| {
            let fault = Fault::of(&error);
            if !self.connection.is_autocommit()
                && self.connection.execute_batch("ROLLBACK").is_err()
            {
                // A transaction that cannot even be rolled back leaves the file in doubt.
                return (Fault::Io, error);
            }
            (fault, error)
        })
    }

    fn commit(&mut self, rows: &[Row]) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("BEGIN IMMEDIATE")?
            .execute([])?;
        {
            let mut insert = row::insert_statement(&self.connection)?;
            for row in rows {
                row::write(&mut insert, row, self.check_seed)?;
            }
        }
        failpoint!("group.inserted");
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        match syncs_by_hand() {
            true => sync_by_hand(&self.connection),
            false => Ok(()),
        }
    }

    /// Bytes of its WAL.
    pub(crate) fn wal_bytes(&self) -> u64 {
        let frame = u64::from(self.page_size) + WAL_FRAME_HEADER;
        WAL_HEADER + self.wal_pages.load(Ordering::Relaxed) * frame
    }
}

/// Whether a fault is planted that SQLite leaves no room for: after a failed sync it rolls back, and writes the same
/// frames again with whatever comes next. A log that is synced by hand does not.
fn syncs_by_hand() -> bool {
    [
        planted!("retry-a-failed-sync"),
        planted!("append-after-a-failed-sync"),
    ]
    .contains(&true)
}

/// Syncs the log beside SQLite, as only planted faults do.
fn sync_by_hand(connection: &Connection) -> rusqlite::Result<()> {
    let log = format!("{}-wal", connection.path().unwrap_or_default());
    let synced = File::open(log).and_then(|log| match log.sync_data() {
        Err(_) if planted!("retry-a-failed-sync") => log.sync_data(),
        synced => synced,
    });
    synced.map_err(|_failed| {
        let failed = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
        rusqlite::Error::SqliteFailure(failed, None)
    })
}

/// A read connection to one segment.
pub(crate) struct SegmentReader {
    connection: Connection,
    origin: Origin,
}

/// Why a segment cannot be opened for reading.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SegmentError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("holds another segment's data")]
    Foreign,
    #[error("has format {0}, this binary knows up to {FORMAT}")]
    Newer(u32),
    #[error("is resolved and being removed")]
    Dropped,
}

impl SegmentReader {
    /// Opens a segment's file and checks that it is the one expected (any, where `None`).
    pub(crate) fn open(
        path: &Path,
        expected: Option<Identity>,
        hash_seed: u64,
        vfs: Option<&str>,
    ) -> Result<(Self, Identity), SegmentError> {
        let connection = connection::open(path, Access::Read, profile(4096), vfs)?;
        let (identity, seed) = read_identity(&connection)?;
        if seed != hash_seed || expected.is_some_and(|expected| expected != identity) {
            return Err(SegmentError::Foreign);
        }
        let reader = Self::of(connection, &identity, hash_seed);
        Ok((reader, identity))
    }

    /// Opens the file of a stopped store without changing anything; also who it is and the seed of its node,
    /// whichever that is.
    pub(crate) fn examine(path: &Path) -> Result<(Self, Identity, u64), SegmentError> {
        let connection = connection::open(path, Access::Examine, profile(4096), None)?;
        let (identity, seed) = read_identity(&connection)?;
        Ok((Self::of(connection, &identity, seed), identity, seed))
    }

    /// The first sequence that it holds; `None` where it is empty or cannot be read.
    pub(crate) fn first(&self) -> Option<u64> {
        let first: Option<i64> = self
            .connection
            .query_row("SELECT min(sequence) FROM events", [], |row| row.get(0))
            .ok()?;
        first.map(i64::cast_unsigned)
    }

    /// What SQLite itself finds wrong with the file, at most `max` sentences.
    pub(crate) fn check(&self, max: u32) -> Vec<String> {
        connection::integrity(&self.connection, max)
    }

    fn of(connection: Connection, identity: &Identity, hash_seed: u64) -> Self {
        let origin = Origin {
            generation: Generation(identity.generation),
            shard: ShardId(identity.shard),
            check_seed: identity.check_seed(),
            hash_seed,
        };
        Self { connection, origin }
    }

    /// Reads these sequences (ascending), at most `bytes_max` bytes of events. Missing rows count as
    /// damaged.
    pub(crate) fn rows(
        &self,
        sequences: &[u64],
        bytes_max: usize,
    ) -> Result<Vec<Result<Row, DamagedRow>>, rusqlite::Error> {
        let mut rows = Vec::with_capacity(sequences.len());
        let mut bytes = 0;
        let mut known = None;
        let mut rest = sequences;
        while bytes < bytes_max
            && let Some(&first) = rest.first()
        {
            let run = rest
                .iter()
                .zip(first..)
                .take_while(|(sequence, expected)| **sequence == *expected)
                .count();
            let (run, after) = rest.split_at(run);
            rest = after;
            let before = rows.len();
            bytes += match self.run(run, bytes_max - bytes, &mut known, &mut rows) {
                Err(error) if Fault::of(&error) == Fault::Corrupt => {
                    rows.truncate(before);
                    self.one_by_one(run, bytes_max - bytes, &mut rows)?
                }
                read => read?,
            };
        }
        Ok(rows)
    }

    /// Reads a run that has a damaged page in it: each row by its own, so that only what lies on that
    /// page is damaged.
    fn one_by_one(
        &self,
        run: &[u64],
        bytes_max: usize,
        rows: &mut Vec<Result<Row, DamagedRow>>,
    ) -> Result<usize, rusqlite::Error> {
        let mut bytes = 0;
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {} FROM events WHERE sequence = ?1",
            row::COLUMNS
        ))?;
        for &sequence in run {
            let row = statement.query_row([sequence.cast_signed()], |sql_row| {
                Ok(row::read(sql_row, &self.origin, &mut None))
            });
            let row = match row {
                Ok(row) => row,
                Err(error)
                    if error == rusqlite::Error::QueryReturnedNoRows
                        || Fault::of(&error) == Fault::Corrupt =>
                {
                    Err(DamagedRow { sequence })
                }
                Err(error) => return Err(error),
            };
            bytes += row.as_ref().map_or(0, |row| row.stored.event.size());
            rows.push(row);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads a run of consecutive sequences with one statement.
    fn run(
        &self,
        run: &[u64],
        bytes_max: usize,
        known: &mut Option<Arc<DestinationSet>>,
        rows: &mut Vec<Result<Row, DamagedRow>>,
    ) -> Result<usize, rusqlite::Error> {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else {
            return Ok(0);
        };
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {} FROM events WHERE sequence BETWEEN ?1 AND ?2 ORDER BY sequence",
            row::COLUMNS
        ))?;
        let mut found = statement.query((first.cast_signed(), last.cast_signed()))?;
        let mut bytes = 0;
        let mut next = first;
        while let Some(sql_row) = found.next()? {
            let row = row::read(sql_row, &self.origin, known);
            let sequence = sequence_of(&row);
            rows.extend((next..sequence).map(|sequence| Err(DamagedRow { sequence })));
            next = sequence + 1;
            bytes += row.as_ref().map_or(0, |row| row.stored.event.size());
            rows.push(row);
            if bytes >= bytes_max {
                return Ok(bytes);
            }
        }
        rows.extend((next..=last).map(|sequence| Err(DamagedRow { sequence })));
        Ok(bytes)
    }

    /// Hands every row to `take`, ascending: what recovery reads of a segment without an index file.
    ///
    /// # Errors
    /// Not all could be read. What lies before the damage and what lies after it was handed over.
    pub(crate) fn each(
        &self,
        mut take: impl FnMut(Result<Row, DamagedRow>),
    ) -> Result<(), rusqlite::Error> {
        let mut last = None;
        let Err(error) = self.scan("ASC", |row| {
            last = Some(sequence_of(&row));
            take(row);
            true
        }) else {
            return Ok(());
        };
        let mut rest = Vec::new();
        // From the other end up to the damage, which is an error again, or to what was read already.
        drop(self.scan("DESC", |row| {
            let is_new = last.is_none_or(|last| sequence_of(&row) > last);
            if is_new {
                rest.push(row);
            }
            is_new
        }));
        rest.into_iter().rev().for_each(take);
        Err(error)
    }

    /// Copies the segment as it is at this moment, also one that is being appended to, into a new file; see
    /// [`connection::copy`]. Also its last sequence, and when that was accepted.
    pub(crate) fn copy(
        &self,
        path: &Path,
        vfs: Option<&str>,
        after: impl FnMut() -> std::io::Result<()>,
    ) -> Result<Option<(u64, u64)>, ConnectionError> {
        let moment = self.connection.unchecked_transaction()?;
        let newest = moment
            .query_row(
                "SELECT sequence, accepted_at FROM events ORDER BY sequence DESC LIMIT 1",
                [],
                |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
            )
            .optional()?;
        connection::copy(&moment, path, vfs, after)?;
        Ok(newest.map(|(sequence, at)| (sequence.cast_unsigned(), at.cast_unsigned())))
    }

    /// Hands rows to `take` in this order until it returns false.
    fn scan(
        &self,
        order: &str,
        mut take: impl FnMut(Result<Row, DamagedRow>) -> bool,
    ) -> Result<(), rusqlite::Error> {
        let mut known = None;
        let mut statement = self.connection.prepare(&format!(
            "SELECT {} FROM events ORDER BY sequence {order}",
            row::COLUMNS
        ))?;
        let mut found = statement.query([])?;
        while let Some(sql_row) = found.next()? {
            if !take(row::read(sql_row, &self.origin, &mut known)) {
                break;
            }
        }
        Ok(())
    }
}

fn sequence_of(row: &Result<Row, DamagedRow>) -> u64 {
    match row {
        Ok(row) => row.stored.position.sequence.0,
        Err(damaged) => damaged.sequence,
    }
}

/// Moves a closed segment's WAL into its database. `false` when a reader was in the way: try again.
pub(crate) fn checkpoint(path: &Path, vfs: Option<&str>) -> Result<bool, ConnectionError> {
    let connection = connection::open(path, Access::Write, profile(4096), vfs)?;
    let busy: i64 =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(busy == 0)
}

/// Who a segment is, and the hash seed of the node that wrote it.
fn read_identity(connection: &Connection) -> Result<(Identity, u64), SegmentError> {
    let (format, mut identity, seed) = connection
        .query_row(
            "SELECT format, uuid, number, generation, shard, hash_seed FROM segment",
            [],
            |row| {
                let uuid: Vec<u8> = row.get(1)?;
                let identity = Identity {
                    uuid: uuid.try_into().map_or(0, u128::from_le_bytes),
                    number: row.get::<_, i64>(2)?.cast_unsigned(),
                    generation: row.get(3)?,
                    shard: row.get(4)?,
                    covers: None,
                };
                let seed = row.get::<_, i64>(5)?.cast_unsigned();
                Ok((row.get::<_, u32>(0)?, identity, seed))
            },
        )
        .map_err(ConnectionError::from)?;
    if format > FORMAT {
        return Err(SegmentError::Newer(format));
    }
    if format == FORMAT {
        let covers = connection.query_row("SELECT first, last FROM covers", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        });
        let (first, last) = covers.map_err(ConnectionError::from)?;
        identity.covers = Some((first.cast_unsigned(), last.cast_unsigned()));
    }
    Ok((identity, seed))
}

fn profile(page_size: u32) -> Profile {
    /// A writer touches the right edge of one tree; a reader scans.
    const CACHE_KIB: u32 = 1024;
    Profile {
        page_size,
        free_pages: FreePages::Keep,
        cache_kib: CACHE_KIB,
    }
}
