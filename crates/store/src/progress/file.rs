//! One state file: its tables, reading all of it at open, and writing a batch (`batch_rows`) as one transaction.
//!
//! Integers of SQLite are signed; sequences and times are stored as the same 64 bits. Rows that could
//! make the store forget a delivery carry a checksum (`checks`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use wayhold_model::{LaneId, Sequence};

use crate::connection::{self, Access, ConnectionError, FreePages, Profile};
use crate::format::{Format, Upgrade};
use crate::progress::batch_rows::{referred_by_letters, write};
use crate::progress::checks::{read_chunk, read_lane};
use crate::progress::letter::LetterPlace;
use crate::progress::letter_edits;
use crate::progress::letter_rows;
use crate::progress::memory::{Batch, Loaded, ResolvedSegment, Retry};
use crate::shards::Owner;

/// `WHst`. A step of `upgrades` also changes `SCHEMA`, which new files begin with.
const FORMAT: Format = Format {
    application_id: 0x5748_7374,
    upgrades: &[
        Upgrade::Statements(REFERENCES),
        Upgrade::Statements(OWNER),
        Upgrade::Statements(COMPACTED),
        Upgrade::Code(give_fingerprints),
        Upgrade::Statements(letter_edits::SCHEMA),
    ],
};

/// Free pages that one step gives back to the file system.
const PAGES_RETURNED_PER_STEP: u32 = 64;

/// Free pages that are kept, since a busy file needs them again at once.
const FREE_PAGES_KEPT: i64 = 256;

const PROFILE: Profile = Profile {
    page_size: 4096,
    free_pages: FreePages::ReturnInSteps,
    cache_kib: 4096,
};

/// Format 3 says whose file it is; one that does not say it yet is told when it is opened for writing.
const OWNER: &str = "
CREATE TABLE owner(node INTEGER NOT NULL, generation INTEGER NOT NULL, shard INTEGER NOT NULL) STRICT;
";

/// Format 4 says what compacted segments left out.
const COMPACTED: &str = "
CREATE TABLE compacted(
    segment INTEGER NOT NULL, lane INTEGER NOT NULL, left_out INTEGER NOT NULL,
    PRIMARY KEY(segment, lane)
) STRICT, WITHOUT ROWID;
";

const SCHEMA: &str = "
CREATE TABLE owner(node INTEGER NOT NULL, generation INTEGER NOT NULL, shard INTEGER NOT NULL) STRICT;
CREATE TABLE shard(next_letter INTEGER NOT NULL) STRICT;
CREATE TABLE lanes(
    lane INTEGER PRIMARY KEY, floor INTEGER NOT NULL, accepted_base INTEGER NOT NULL,
    delivered INTEGER NOT NULL, dead INTEGER NOT NULL, expired INTEGER NOT NULL,
    discarded INTEGER NOT NULL, redriven INTEGER NOT NULL, row_check INTEGER NOT NULL
) STRICT;
CREATE TABLE chunks(
    lane INTEGER NOT NULL, chunk INTEGER NOT NULL, resolved BLOB NOT NULL, row_check INTEGER NOT NULL,
    PRIMARY KEY(lane, chunk)
) STRICT, WITHOUT ROWID;
CREATE TABLE retries(
    lane INTEGER NOT NULL, sequence INTEGER NOT NULL, attempts INTEGER NOT NULL, retry_at INTEGER,
    history TEXT NOT NULL, PRIMARY KEY(lane, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_letters(
    id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, destination INTEGER NOT NULL,
    sequence INTEGER NOT NULL, redriving INTEGER NOT NULL, class TEXT NOT NULL, attempts TEXT NOT NULL,
    row_check INTEGER NOT NULL, accepted_at INTEGER NOT NULL, tenant INTEGER NOT NULL,
    destinations TEXT NOT NULL, event_id TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL,
    subject TEXT NOT NULL, key TEXT NOT NULL, time TEXT NOT NULL, content_type TEXT NOT NULL,
    dataschema TEXT NOT NULL, extensions TEXT NOT NULL, data BLOB NOT NULL,
    referred INTEGER NOT NULL DEFAULT 0, given_up_at INTEGER NOT NULL DEFAULT 0,
    fingerprint TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX dead_letters_by_sequence ON dead_letters(lane, sequence);
CREATE INDEX dead_letters_by_cause ON dead_letters(destination, class, fingerprint, redriving);
CREATE INDEX dead_letters_redriving ON dead_letters(lane) WHERE redriving = 1;
CREATE TABLE dropped(
    segment INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL
) STRICT;
CREATE TABLE referred(
    lane INTEGER NOT NULL, chunk INTEGER NOT NULL, held BLOB NOT NULL, row_check INTEGER NOT NULL,
    PRIMARY KEY(lane, chunk)
) STRICT, WITHOUT ROWID;
CREATE TABLE compacted(
    segment INTEGER NOT NULL, lane INTEGER NOT NULL, left_out INTEGER NOT NULL,
    PRIMARY KEY(segment, lane)
) STRICT, WITHOUT ROWID;
";

/// Version 2: dead letters that refer to their events.
const REFERENCES: &str = "
ALTER TABLE dead_letters ADD COLUMN referred INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dead_letters ADD COLUMN given_up_at INTEGER NOT NULL DEFAULT 0;
CREATE TABLE referred(
    lane INTEGER NOT NULL, chunk INTEGER NOT NULL, held BLOB NOT NULL, row_check INTEGER NOT NULL,
    PRIMARY KEY(lane, chunk)
) STRICT, WITHOUT ROWID;
";

/// Format 5: dead letters have the fingerprint of their error.
const FINGERPRINTS: &str = "
ALTER TABLE dead_letters ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
DROP INDEX IF EXISTS dead_letters_by_class;
CREATE INDEX dead_letters_by_cause ON dead_letters(destination, class, fingerprint, redriving);
";

fn give_fingerprints(file: &Transaction<'_>) -> rusqlite::Result<()> {
    file.execute_batch(FINGERPRINTS)?;
    letter_rows::fill_fingerprints(file)
}

/// A state file that is open for writing.
#[derive(Debug)]
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    connection: Connection,
    seed: u64,
}

/// What a file holds, with what could not be used.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) loaded: Loaded,
    /// One sentence per damaged row that was left out.
    pub(super) findings: Vec<String>,
}

impl StateFile {
    /// Makes a new file and fills it in one transaction: until that is committed it holds no table and
    /// counts as absent. The caller syncs the directory.
    pub(super) fn create(
        path: &Path,
        vfs: Option<&str>,
        (seed, owner): (u64, Owner),
        fill: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, ConnectionError> {
        let mut connection = connection::open(path, Access::Create, PROFILE, vfs)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        transaction.execute_batch(letter_edits::SCHEMA)?;
        FORMAT.stamp(&transaction)?;
        write_owner(&transaction, owner)?;
        fill(&transaction)?;
        transaction.commit()?;
        Ok(Self {
            path: path.to_owned(),
            connection,
            seed,
        })
    }

    /// Opens a file that exists, and syncs what recovery took from its log: a letter that was read there
    /// may be the only copy of its event. `None` where its making was cut off.
    pub(super) fn open(
        path: &Path,
        vfs: Option<&str>,
        (seed, owner): (u64, Owner),
    ) -> Result<Option<Self>, ConnectionError> {
        let mut connection = connection::open(path, Access::Write, PROFILE, vfs)?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables == 0 {
            return Ok(None);
        }
        FORMAT.upgrade(&mut connection)?;
        match read_owner(&connection)? {
            Some(found) if found != owner => return Err(ConnectionError::Foreign),
            Some(_) => {}
            None => write_owner(&connection, owner)?,
        }
        let file = Self {
            path: path.to_owned(),
            connection,
            seed,
        };
        file.checkpoint()?;
        Ok(Some(file))
    }

    /// Opens the file of a stopped store without changing anything; also its version. `None` where its making
    /// was cut off.
    pub(super) fn examine(
        path: &Path,
        (seed, owner): (u64, Owner),
    ) -> Result<Option<(Self, u32)>, ConnectionError> {
        let connection = connection::open(path, Access::Examine, PROFILE, None)?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        drop(connection);
        if tables == 0 {
            return Ok(None);
        }
        let (connection, format) = FORMAT.examine(path, PROFILE)?;
        if read_owner(&connection)?.is_some_and(|found| found != owner) {
            return Err(ConnectionError::Foreign);
        }
        let file = Self {
            path: path.to_owned(),
            connection,
            seed,
        };
        Ok(Some((file, format)))
    }

    /// Opens a file for reading letters beside its writer.
    pub(super) fn open_reader(
        path: &Path,
        vfs: Option<&str>,
    ) -> Result<Connection, ConnectionError> {
        connection::open(path, Access::Read, PROFILE, vfs)
    }

    /// Writes a batch as one synced transaction, or nothing of it.
    pub(super) fn write(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        write(&transaction, batch, self.seed)?;
        failpoint!("progress.before-commit");
        transaction.commit()
    }

    /// Moves the log into the file and syncs both; a reader in the way only postpones it.
    pub(super) fn checkpoint(&self) -> rusqlite::Result<()> {
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }

    /// The same without waiting for readers: the next call may find them gone.
    pub(super) fn checkpoint_now(&self) -> rusqlite::Result<()> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let done = self.checkpoint();
        self.connection.busy_timeout(connection::BUSY_TIMEOUT)?;
        done
    }

    /// Gives a few free pages back; whether there are more.
    pub(super) fn return_free_pages(&self) -> rusqlite::Result<bool> {
        let free: i64 = self
            .connection
            .pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        if free <= FREE_PAGES_KEPT {
            return Ok(false);
        }
        self.connection.execute_batch(&format!(
            "PRAGMA incremental_vacuum({PAGES_RETURNED_PER_STEP})"
        ))?;
        Ok(free > FREE_PAGES_KEPT + i64::from(PAGES_RETURNED_PER_STEP))
    }

    /// Everything but dead letters and histories, which stay in the file. An error means that the file
    /// as a whole cannot be trusted.
    pub(super) fn read(&self) -> rusqlite::Result<Contents> {
        let mut contents = Contents::default();
        let loaded = &mut contents.loaded;
        let connection = &self.connection;
        let (next, newest): (i64, Option<i64>) = connection.query_row(
            "SELECT next_letter, (SELECT max(id) FROM dead_letters) FROM shard",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        loaded.next_letter = next.max(newest.unwrap_or(0) + 1).cast_unsigned();
        let mut lanes = connection.prepare("SELECT * FROM lanes ORDER BY lane")?;
        let mut rows = lanes.query([])?;
        while let Some(row) = rows.next()? {
            loaded.lanes.push(read_lane(row, self.seed)?);
        }
        let mut chunks = connection.prepare("SELECT * FROM chunks ORDER BY lane, chunk")?;
        let mut rows = chunks.query([])?;
        while let Some(row) = rows.next()? {
            let (lane, number, chunk) = read_chunk(row, self.seed)?;
            match chunk {
                Some(chunk) => loaded.chunks.push((lane, number, chunk)),
                None => contents.findings.push(format!(
                    "{}: what was resolved of lane {} in sequences {} to {} is damaged; those \
                     deliveries may be repeated and counted again",
                    self.path.display(),
                    lane.0,
                    number << 12,
                    (number << 12) | 4095,
                )),
            }
        }
        self.read_referred(&mut contents)?;
        let loaded = &mut contents.loaded;
        let mut retries =
            connection.prepare("SELECT lane, sequence, attempts, retry_at FROM retries")?;
        let mut rows = retries.query([])?;
        while let Some(row) = rows.next()? {
            let retry = Retry {
                attempts: row.get(2)?,
                retry_at: row.get::<_, Option<i64>>(3)?.map(letter_rows::timestamp),
            };
            let sequence = row.get::<_, i64>(1)?.cast_unsigned();
            loaded.retries.push((LaneId(row.get(0)?), sequence, retry));
        }
        let mut redriving = connection.prepare(
            "SELECT id, lane, sequence, referred FROM dead_letters WHERE redriving = 1 ORDER BY id",
        )?;
        let mut rows = redriving.query([])?;
        while let Some(row) = rows.next()? {
            let letter = row.get::<_, i64>(0)?.cast_unsigned();
            let sequence = Sequence(row.get::<_, i64>(2)?.cast_unsigned());
            let place = LetterPlace {
                lane: LaneId(row.get(1)?),
                referred: row.get::<_, bool>(3)?.then_some(sequence),
            };
            loaded.redriving.push((letter, place));
        }
        let mut segments = connection.prepare("SELECT segment, first, last FROM dropped")?;
        let mut rows = segments.query([])?;
        while let Some(row) = rows.next()? {
            loaded.segments.push(ResolvedSegment {
                segment: row.get::<_, i64>(0)?.cast_unsigned(),
                first: Sequence(row.get::<_, i64>(1)?.cast_unsigned()),
                last: Sequence(row.get::<_, i64>(2)?.cast_unsigned()),
            });
        }
        let mut compacted = connection.prepare("SELECT segment, lane, left_out FROM compacted")?;
        let mut rows = compacted.query([])?;
        while let Some(row) = rows.next()? {
            let [segment, left_out] = [row.get::<_, i64>(0)?, row.get(2)?].map(i64::cast_unsigned);
            let lane = LaneId(row.get(1)?);
            loaded.compacted.push((segment, lane, left_out));
        }
        Ok(contents)
    }

    /// Which events letters refer to. What is damaged is taken from the letters themselves.
    fn read_referred(&self, contents: &mut Contents) -> rusqlite::Result<()> {
        let connection = &self.connection;
        let mut chunks = connection.prepare("SELECT * FROM referred ORDER BY lane, chunk")?;
        let mut rows = chunks.query([])?;
        while let Some(row) = rows.next()? {
            let (lane, number, mut chunk) = read_chunk(row, self.seed)?;
            if chunk.is_none() {
                contents.findings.push(format!(
                    "{}: which events the dead letters of lane {} refer to was damaged in one place; \
                     it was taken from the letters",
                    self.path.display(),
                    lane.0,
                ));
                chunk = Some(referred_by_letters(connection, lane, number)?);
            }
            let chunk = chunk.filter(|chunk| !chunk.is_empty());
            contents
                .loaded
                .referred
                .extend(chunk.map(|chunk| (lane, number, chunk)));
        }
        Ok(())
    }

    /// The connection, for copying out of the file.
    pub(super) fn reader(&self) -> &Connection {
        &self.connection
    }
}

fn write_owner(connection: &Connection, owner: Owner) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO owner VALUES (?, ?, ?)",
        params![owner.node.cast_signed(), owner.generation, owner.shard],
    )?;
    Ok(())
}

/// `None` where the file was written before files said it.
fn read_owner(connection: &Connection) -> rusqlite::Result<Option<Owner>> {
    connection
        .query_row("SELECT node, generation, shard FROM owner", [], |row| {
            Ok(Owner {
                node: row.get::<_, i64>(0)?.cast_unsigned(),
                generation: row.get(1)?,
                shard: row.get(2)?,
            })
        })
        .optional()
}
