//! One segment: an append-only SQLite file written by one process run, and its index. While it is
//! unindexed its index is in memory (`Recent`); afterwards in its index file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rusqlite::Connection;
use wayhold_model::{DestinationId, DestinationSet, Generation, ShardId};

use super::index_file::{Identified, Identity, IndexError, IndexFile, SharedIndex};
use super::recent::Recent;
use super::row::{self, DamagedRow, Origin, Row};
use crate::connection::{self, Access, ConnectionError, Fault, FreePages, Profile};
use crate::disk::Disk;

/// Version of a segment file's layout; a newer one is refused.
pub(crate) const FORMAT: u32 = 1;

/// Bytes of a WAL frame's header, and of the WAL's own (SQLite file format, section 4.1).
const WAL_FRAME_HEADER: u64 = 24;
const WAL_HEADER: u64 = 32;

/// One segment of a shard.
pub(crate) struct Segment {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    pub(crate) index_path: PathBuf,
    index: RwLock<Index>,
    /// The index file's content while somebody reads it; the last reader frees it.
    loaded: Mutex<std::sync::Weak<super::index_file::Loaded>>,
    /// When it was closed, in microseconds since the epoch; 0 while it is active.
    pub(crate) closed_at: AtomicU64,
    /// Whether its WAL was moved into its database.
    pub(crate) checkpointed: AtomicBool,
    /// Bytes of its files, as of the last commit or checkpoint.
    pub(crate) bytes: AtomicU64,
    /// Per destination the first sequence that was unresolved when last looked at.
    pub(crate) unresolved_from: Mutex<BTreeMap<DestinationId, u64>>,
    /// Held by who changes its files: writes the index, moves the WAL, removes them.
    pub(crate) files: Mutex<()>,
    /// Whether the whole index file was held against its checksums since it was opened: from then on
    /// single rows of it are read.
    verified: AtomicBool,
    /// Whether it is recorded as dropped: its database goes, or is gone.
    dropped: AtomicBool,
}

enum Index {
    Memory(Recent),
    File(IndexFile),
}

impl Segment {
    /// A segment without an index file.
    pub(crate) fn unindexed(dir: &Path, identity: Identity, recent: Recent) -> Self {
        Self::with_index(dir, identity, Index::Memory(recent))
    }

    /// A sealed segment.
    pub(crate) fn indexed(dir: &Path, file: IndexFile) -> Self {
        Self::with_index(dir, file.identity, Index::File(file))
    }

    fn with_index(dir: &Path, identity: Identity, index: Index) -> Self {
        Self {
            identity,
            path: database_path(dir, identity.number),
            index_path: index_path(dir, identity.number),
            index: RwLock::new(index),
            loaded: Mutex::default(),
            closed_at: AtomicU64::new(0),
            checkpointed: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            unresolved_from: Mutex::default(),
            files: Mutex::default(),
            verified: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.identity.number
    }

    /// Adds committed rows to the index in memory.
    pub(crate) fn committed(&self, rows: &[Row]) {
        if let Index::Memory(recent) =
            &mut *self.index.write().unwrap_or_else(PoisonError::into_inner)
        {
            for row in rows {
                recent.push(row);
            }
        }
    }

    /// First and last sequence; `None` while it is empty.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        match &*self.read() {
            Index::Memory(recent) => Some((
                recent.entries().first()?.sequence,
                recent.entries().last()?.sequence,
            )),
            Index::File(file) => (file.rows > 0).then_some((file.first, file.last)),
        }
    }

    /// Whether its index file is written.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(&*self.read(), Index::File(_))
    }

    /// Obligations per destination.
    pub(crate) fn counts(&self) -> BTreeMap<DestinationId, u64> {
        match &*self.read() {
            Index::Memory(recent) => recent.counts().clone(),
            Index::File(file) => file.counts.clone(),
        }
    }

    /// Obligations to one destination.
    pub(crate) fn count(&self, destination: DestinationId) -> u64 {
        let index = self.read();
        let counts = match &*index {
            Index::Memory(recent) => recent.counts(),
            Index::File(file) => &file.counts,
        };
        counts.get(&destination).copied().unwrap_or(0)
    }

    /// Bytes of its index file.
    pub(crate) fn index_bytes(&self) -> u64 {
        match &*self.read() {
            Index::Memory(_) => 0,
            Index::File(file) => file.bytes,
        }
    }

    /// Writes the index file and lets go of the index in memory.
    pub(crate) fn write_index(&self, disk: &dyn Disk) -> std::io::Result<()> {
        let _changing = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody adds to a closed segment, so the lock need not be held while the disk works.
        let recent = match &*self.read() {
            Index::Memory(recent) => recent.clone(),
            Index::File(_) => return Ok(()),
        };
        let file = IndexFile::write(disk, &self.index_path, self.identity, &recent)?;
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Index::File(file);
        Ok(())
    }

    /// Puts an index file in the place of one that is damaged; the caller holds `files`.
    pub(crate) fn replace_index(&self, disk: &dyn Disk, recent: &Recent) -> std::io::Result<()> {
        let file = IndexFile::write(disk, &self.index_path, self.identity, recent)?;
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Index::File(file);
        Ok(())
    }

    /// At most `max` sequences of one lane above `after`.
    pub(crate) fn lane_after(
        &self,
        disk: &dyn Disk,
        destination: DestinationId,
        after: u64,
        max: usize,
    ) -> Result<Vec<u64>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.lane_after(destination, after).take(max).collect());
        }
        Ok(self
            .load(disk)?
            .lane_after(destination, after)
            .take(max)
            .collect())
    }

    /// Sequences of one key in `(after, through]` that owe a delivery to this destination.
    pub(crate) fn key_after(
        &self,
        disk: &dyn Disk,
        destination: DestinationId,
        key_hash: u64,
        (after, through): (u64, u64),
    ) -> Result<Vec<u64>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            let owes = |sequence: &u64| {
                recent
                    .entry(*sequence)
                    .is_some_and(|entry| entry.destinations.contains(destination))
            };
            return Ok(recent
                .key_after(key_hash, after, through)
                .filter(owes)
                .collect());
        }
        let index = self.load(disk)?;
        let owes = |sequence: &u64| index.owes(destination, *sequence);
        Ok(index
            .key_after(key_hash, after, through)
            .filter(owes)
            .collect())
    }

    /// When its newest event was accepted, in microseconds since the epoch.
    pub(crate) fn newest(&self) -> u64 {
        match &*self.read() {
            Index::Memory(recent) => recent.entries().last().map_or(0, |entry| entry.accepted_at),
            Index::File(file) => file.newest,
        }
    }

    /// How many events it holds.
    pub(crate) fn rows(&self) -> usize {
        match &*self.read() {
            Index::Memory(recent) => recent.entries().len(),
            Index::File(file) => file.rows,
        }
    }

    /// What is known of one sequence.
    pub(crate) fn identity_at(
        &self,
        disk: &dyn Disk,
        sequence: u64,
    ) -> Result<Option<Identified>, IndexError> {
        if self.is_indexed() && !self.verified.load(Ordering::Relaxed) {
            let loaded = self.load(disk)?;
            self.verified.store(true, Ordering::Relaxed);
            return Ok(loaded.identity_at(sequence));
        }
        match &*self.read() {
            Index::Memory(recent) => Ok(recent.entry(sequence).map(Identified::from)),
            Index::File(file) => file.identity_at(disk, sequence),
        }
    }

    /// Hands every identity to `take`, ascending by sequence.
    pub(crate) fn each_identity(
        &self,
        disk: &dyn Disk,
        take: impl FnMut(Identified),
    ) -> Result<(), IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            recent.entries().iter().map(Identified::from).for_each(take);
            return Ok(());
        }
        self.load(disk)?.identities().for_each(take);
        Ok(())
    }

    /// The newest event of one identity; looks at all.
    pub(crate) fn find(
        &self,
        disk: &dyn Disk,
        id_hash: u128,
    ) -> Result<Option<Identified>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.find(id_hash).map(Identified::from));
        }
        Ok(self.load(disk)?.find(id_hash))
    }

    /// Whom the event of one sequence owes a delivery to.
    pub(crate) fn destinations_of(
        &self,
        disk: &dyn Disk,
        sequence: u64,
    ) -> Result<DestinationSet, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.entry(sequence).map_or_else(
                || DestinationSet::new([]),
                |entry| entry.destinations.as_ref().clone(),
            ));
        }
        Ok(self.load(disk)?.destinations_of(sequence))
    }

    /// The index file's content, shared by everybody who reads it at the moment.
    pub(crate) fn load(&self, disk: &dyn Disk) -> Result<SharedIndex, IndexError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = loaded.upgrade() {
            return Ok(index);
        }
        let file = match &*self.read() {
            Index::File(file) => file.clone(),
            Index::Memory(_) => return Err(IndexError::Damaged("it is not written yet")),
        };
        let index = Arc::new(file.load(disk)?);
        *loaded = Arc::downgrade(&index);
        Ok(index)
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at.load(Ordering::Acquire) != 0
    }

    /// Nobody may open its database from now on.
    pub(crate) fn set_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// Whether its database goes, or is gone, because nothing of it is unresolved.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `<n>.db`
pub(crate) fn database_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.db"))
}

/// `<n>.idx`
pub(crate) fn index_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.idx"))
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
                FORMAT,
                identity.uuid.to_le_bytes().as_slice(),
                identity.number.cast_signed(),
                identity.generation,
                identity.shard,
                hash_seed.cast_signed(),
            ),
        )?;
        transaction.commit()?;
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
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Bytes of its WAL.
    pub(crate) fn wal_bytes(&self) -> u64 {
        let frame = u64::from(self.page_size) + WAL_FRAME_HEADER;
        WAL_HEADER + self.wal_pages.load(Ordering::Relaxed) * frame
    }
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
        let identity = read_identity(&connection)?;
        if expected.is_some_and(|expected| expected != identity) {
            return Err(SegmentError::Foreign);
        }
        let origin = Origin {
            generation: Generation(identity.generation),
            shard: ShardId(identity.shard),
            check_seed: identity.check_seed(),
            hash_seed,
        };
        Ok((Self { connection, origin }, identity))
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

fn read_identity(connection: &Connection) -> Result<Identity, SegmentError> {
    let (format, identity) = connection
        .query_row(
            "SELECT format, uuid, number, generation, shard FROM segment",
            [],
            |row| {
                let uuid: Vec<u8> = row.get(1)?;
                let identity = Identity {
                    uuid: uuid.try_into().map_or(0, u128::from_le_bytes),
                    number: row.get::<_, i64>(2)?.cast_unsigned(),
                    generation: row.get(3)?,
                    shard: row.get(4)?,
                };
                Ok((row.get::<_, u32>(0)?, identity))
            },
        )
        .map_err(ConnectionError::from)?;
    if format > FORMAT {
        return Err(SegmentError::Newer(format));
    }
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn two_who_seal_a_segment_at_once_leave_one_whole_index_file() {
        let dir = tempfile::tempdir().unwrap();
        for number in 1..=200 {
            let identity = Identity {
                generation: 1,
                shard: 0,
                number,
                uuid: 5,
            };
            let segment = Segment::unindexed(dir.path(), identity, Recent::default());
            std::thread::scope(|scope| {
                let seal = || segment.write_index(&SystemDisk);
                let both = [scope.spawn(seal), scope.spawn(seal)];
                for sealed in both {
                    sealed.join().unwrap().unwrap();
                }
            });
            IndexFile::open(&SystemDisk, &segment.index_path).unwrap();
        }
    }
}
