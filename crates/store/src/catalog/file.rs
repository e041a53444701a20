//! The file behind the catalogue: opening it, changing it, and the copy in memory that readers see.
//!
//! A change is one transaction, synced before it returns. A change that failed in any way but for lack
//! of space closes the catalogue for changes until the next start, because what the file holds of it is
//! uncertain; readers keep what was known to be durable.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use thiserror::Error;
use wayhold_model::shard_map::SHARDS_MAX;
use wayhold_model::{Clock, LaneId, Timestamp};

use crate::backup::require_restored;
use crate::catalog::{
    DestinationRecord, GenerationRecord, RedriveRecord, ReplayRecord, TokenRecord, destinations,
    generations, redrives, replays, tokens,
};
use crate::connection::{self, Access, ConnectionError, Fault, FreePages, Profile};
use crate::delivery::LaneTotals;
use crate::disk::{Disk, renew_log};
use crate::format::{Format, Upgrade};

/// Name of the file in the data directory.
pub(super) const FILE: &str = "catalog.db";

/// `WHca`. A step of `upgrades` also changes `SCHEMA`, which new files begin with.
pub(super) const FORMAT: Format = Format {
    application_id: 0x5748_6361,
    upgrades: &[
        Upgrade::Statements(generations::FROM_FORMAT_1),
        Upgrade::Statements(tokens::FROM_FORMAT_2),
        // Replays came.
        Upgrade::Statements(replays::SCHEMA),
        // Redrives came.
        Upgrade::Statements(redrives::SCHEMA),
    ],
};

/// The log is carried over into the file after this many changes, so that it stays small.
const CHANGES_PER_CHECKPOINT: u32 = 256;

pub(super) const PROFILE: Profile = Profile {
    page_size: 4096,
    free_pages: FreePages::Keep,
    cache_kib: 1024,
};

const SCHEMA: &str = "
CREATE TABLE identity(
    node_id TEXT NOT NULL, hash_seed INTEGER NOT NULL, token_key BLOB NOT NULL, created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE destinations(
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, incarnation INTEGER NOT NULL,
    state TEXT NOT NULL, reason TEXT, set_by TEXT, since INTEGER NOT NULL
) STRICT;
CREATE TABLE lanes(
    lane INTEGER PRIMARY KEY AUTOINCREMENT, destination INTEGER NOT NULL UNIQUE
) STRICT;
CREATE TABLE principals(
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, roles TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE tokens(
    prefix TEXT PRIMARY KEY, hash BLOB NOT NULL, principal TEXT NOT NULL,
    created_at INTEGER NOT NULL, created_by TEXT NOT NULL, revoked_at INTEGER,
    admit_until INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE audit(
    number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, by TEXT NOT NULL,
    action TEXT NOT NULL, subject TEXT NOT NULL, reason TEXT
) STRICT;
CREATE TABLE counters(
    name TEXT PRIMARY KEY, value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Why the catalogue did not do what it was asked.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// Shards exist without the catalogue that describes them. Restore `catalog.db`; a new one would
    /// have another hash seed and could not read them.
    #[error(
        "{path} is missing although the data directory holds shards; put it back from a backup, or let \
         `wayhold store repair` make one from them"
    )]
    Lost {
        /// Where it was expected.
        path: PathBuf,
    },
    /// Written by a newer version; run that one.
    #[error("{path} has format {found}, this binary knows up to {known}; run the newer version")]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// The file is damaged or foreign. Restore it.
    #[error(
        "cannot use {path}: {reason}. Put it back from a backup, or let `wayhold store repair` make one from \
         the shards"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The volume is full; nothing was changed. Try again when there is space.
    #[error("no space left to record the change; nothing was changed")]
    NoSpace,
    /// An earlier write failed; no change is taken until the server is started again.
    #[error("the catalogue takes no changes until the next start: {reason}")]
    Closed {
        /// The failure.
        reason: String,
    },
    /// There is nothing of that name or number.
    #[error("no such {what}")]
    NotFound {
        /// Kind of thing.
        what: &'static str,
    },
    /// It exists already, with other properties. Choose another name.
    #[error("{what} exists already with other properties")]
    Exists {
        /// Kind of thing.
        what: &'static str,
    },
    /// What is asked for would be one too many. Wait until that has ended, or end it.
    #[error("{what} did not end yet; wait for that, or end it")]
    InTheWay {
        /// What is in the way.
        what: String,
    },
    /// It has ended, and what has ended stays as it is.
    #[error("the {what} has ended")]
    HasEnded {
        /// Kind of thing.
        what: &'static str,
    },
    /// The destination left the configuration, so its state is not the operator's to set.
    #[error("the destination is retired; name it in the configuration to run it again")]
    Retired,
}

/// The catalogue of one data directory. Share it as `Arc<Catalog>`.
pub struct Catalog {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    identity: Identity,
    writer: Mutex<Writer>,
    view: RwLock<Arc<View>>,
}

pub(super) struct Identity {
    pub(super) node_id: String,
    pub(super) hash_seed: u64,
    token_key: [u8; 32],
}

struct Writer {
    connection: Connection,
    /// Why no change is taken any more.
    closed: Option<String>,
    changes: u32,
}

impl std::fmt::Debug for Catalog {
    /// The token key is a secret and the hash seed is not for producers to know.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What readers see: everything small, as of the last durable change.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) generations: Vec<GenerationRecord>,
    pub(super) retired_totals: Vec<(LaneId, LaneTotals)>,
    pub(super) destinations: Vec<DestinationRecord>,
    pub(super) tokens: Vec<TokenRecord>,
    pub(super) replays: Vec<ReplayRecord>,
    pub(super) redrives: Vec<RedriveRecord>,
    /// Counts changes, so that caches know when to look again.
    pub(super) version: u64,
}

impl Catalog {
    /// Opens the catalogue in `directory`, or makes it where the directory holds no shards yet. As long
    /// as it holds none its first generation has `shards` shards; from then on it keeps the number.
    /// Blocking.
    ///
    /// # Errors
    /// `Lost`, `Newer` or `Unusable`: a person has to act. `NoSpace`: make room.
    pub fn open(
        directory: &Path,
        disk: &dyn Disk,
        clock: Arc<dyn Clock>,
        shards: u16,
    ) -> Result<Self, CatalogError> {
        Self::open_through(None, directory, disk, clock, shards)
    }

    /// The same through the SQLite VFS of that name, where one is given.
    ///
    /// # Errors
    /// As of `open`.
    pub(crate) fn open_through(
        vfs: Option<&str>,
        directory: &Path,
        disk: &dyn Disk,
        clock: Arc<dyn Clock>,
        shards: u16,
    ) -> Result<Self, CatalogError> {
        require_restored(directory, disk)?;
        let path = directory.join(FILE);
        let unusable = |reason: &dyn std::fmt::Display| CatalogError::Unusable {
            path: path.clone(),
            reason: reason.to_string(),
        };
        let refused = |error: ConnectionError| match error {
            ConnectionError::Newer { found, known } => CatalogError::Newer {
                path: path.clone(),
                found,
                known,
            },
            error if error.fault() == Fault::NoSpace => CatalogError::NoSpace,
            error => unusable(&error),
        };
        let exists = disk.exists(&path).map_err(|e| unusable(&e))?;
        let has_shards = has_shards(directory, disk)?;
        renew_log(disk, &path).map_err(|e| unusable(&e))?;
        let mut connection = match (exists, has_shards) {
            (true, _) => connection::open(&path, Access::Write, PROFILE, vfs),
            (false, false) => connection::open(&path, Access::Create, PROFILE, vfs),
            // A new catalogue beside old shards would be a new node with another hash seed.
            (false, true) => return Err(CatalogError::Lost { path }),
        }
        .map_err(refused)?;
        let prepared = (|| {
            // A crash while the file was made leaves it without any table: nothing was ever kept in it.
            if is_empty(&connection)? && !has_shards {
                initialise(&mut connection, clock.now())?;
            }
            FORMAT.upgrade(&mut connection)?;
            if !has_shards {
                let shards = shards.clamp(1, SHARDS_MAX);
                connection.execute("UPDATE generations SET shards = ?, made = 0", [shards])?;
            }
            // What recovery took from the log may never have been synced; now it is.
            checkpoint(&connection)?;
            Ok::<_, ConnectionError>(())
        })();
        prepared.map_err(refused)?;
        disk.sync_directory(directory).map_err(|e| unusable(&e))?;
        let identity = read_identity(&connection).map_err(|e| unusable(&e))?;
        let view = read_view(&connection, 0).map_err(|e| unusable(&e))?;
        Ok(Self {
            path,
            clock,
            identity,
            writer: Mutex::new(Writer {
                connection,
                closed: None,
                changes: 0,
            }),
            view: RwLock::new(Arc::new(view)),
        })
    }

    /// Name of this node, drawn when the data directory was made.
    pub fn node_id(&self) -> &str {
        &self.identity.node_id
    }

    /// Seed of every hash in this data directory.
    pub fn hash_seed(&self) -> u64 {
        self.identity.hash_seed
    }

    /// Secret key for hashing tokens; never leaves the process.
    pub fn token_key(&self) -> &[u8; 32] {
        &self.identity.token_key
    }

    /// Why no change is taken any more, for health; `None` when all is well.
    pub fn closed(&self) -> Option<String> {
        self.writer().closed.clone()
    }

    /// Counts durable changes: a cache of what the catalogue says is stale when this moved.
    pub fn version(&self) -> u64 {
        self.view().version
    }

    /// Raises a counter durably and returns its new value, which no earlier call ever returned.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub fn count_up(&self, counter: &str) -> Result<u64, CatalogError> {
        self.change(|change| {
            Ok(change.transaction.query_row(
                "INSERT INTO counters VALUES (?1, 1)
                 ON CONFLICT(name) DO UPDATE SET value = value + 1 RETURNING value",
                [counter],
                |row| row.get::<_, i64>(0),
            )?)
        })
        .map(i64::cast_unsigned)
    }

    /// Carries the log over into the file, at stop. Blocking.
    pub fn stop(&self) {
        let writer = self.writer();
        if writer.closed.is_none()
            && let Err(error) = checkpoint(&writer.connection)
        {
            tracing::warn!(path = %self.path.display(), %error, "catalogue not checkpointed at stop");
        }
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// One durable change, audited by who makes it; the view is renewed before it returns.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&Change<'_>) -> Result<T, ChangeError>,
    ) -> Result<T, CatalogError> {
        let mut writer = self.writer();
        if let Some(reason) = &writer.closed {
            return Err(CatalogError::Closed {
                reason: reason.clone(),
            });
        }
        let now = self.clock.now();
        let version = self.view().version + 1;
        let done = (|| {
            let transaction = writer
                .connection
                .transaction_with_behavior(TransactionBehavior::Immediate)?;
            let open = Change { transaction, now };
            let value = change(&open)?;
            let view = read_view(&open.transaction, version)?;
            failpoint!("catalogue.before-commit");
            open.transaction.commit()?;
            failpoint!("catalogue.committed");
            Ok((value, view))
        })();
        match done {
            Ok((value, view)) => {
                *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
                writer.changes += 1;
                if writer.changes.is_multiple_of(CHANGES_PER_CHECKPOINT)
                    && let Err(error) = checkpoint(&writer.connection)
                    && Fault::of(&error) != Fault::NoSpace
                {
                    self.close(&mut writer, &error);
                }
                Ok(value)
            }
            Err(ChangeError::Refused(error)) => Err(error),
            Err(ChangeError::Sqlite(error)) if Fault::of(&error) == Fault::NoSpace => {
                Err(CatalogError::NoSpace)
            }
            Err(ChangeError::Sqlite(error)) => Err(self.close(&mut writer, &error)),
        }
    }

    /// Reads what the view does not hold. Blocking.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, CatalogError> {
        read(&self.writer().connection).map_err(|error| CatalogError::Unusable {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Hands out the connection, for copying the file; changes wait meanwhile.
    pub(crate) fn with_connection<T>(&self, with: impl FnOnce(&Connection) -> T) -> T {
        with(&self.writer().connection)
    }

    fn close(&self, writer: &mut Writer, error: &rusqlite::Error) -> CatalogError {
        let reason = error.to_string();
        tracing::error!(path = %self.path.display(), %reason, "catalogue closed for changes");
        writer.closed = Some(reason.clone());
        CatalogError::Closed { reason }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change under way.
pub(super) struct Change<'a> {
    pub(super) transaction: Transaction<'a>,
    /// The time that the change is recorded with.
    pub(super) now: Timestamp,
}

/// Why a change is rolled back.
pub(super) enum ChangeError {
    /// It makes no sense; the file is sound.
    Refused(CatalogError),
    /// SQLite failed.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for ChangeError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<CatalogError> for ChangeError {
    fn from(error: CatalogError) -> Self {
        Self::Refused(error)
    }
}

/// Whether any generation of shards was begun.
fn has_shards(directory: &Path, disk: &dyn Disk) -> Result<bool, CatalogError> {
    let names = disk
        .list(directory)
        .map_err(|error| CatalogError::Unusable {
            path: directory.to_owned(),
            reason: error.to_string(),
        })?;
    let is_generation = |name: &std::ffi::OsString| {
        name.to_str()
            .and_then(|name| name.strip_prefix('g'))
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    Ok(names.iter().any(is_generation))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
        row.get(0)
    })
}

/// Draws the name of a node.
pub(super) fn draw_node_id() -> rusqlite::Result<String> {
    let mut node = [0; 16];
    getrandom::fill(&mut node)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    Ok(format!("{:032x}", u128::from_be_bytes(node)))
}

pub(super) fn initialise(connection: &mut Connection, now: Timestamp) -> rusqlite::Result<()> {
    let (mut seed, mut key) = ([0; 8], [0; 32]);
    for bytes in [seed.as_mut_slice(), &mut key] {
        getrandom::fill(bytes)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch(generations::SCHEMA)?;
    transaction.execute_batch(replays::SCHEMA)?;
    transaction.execute_batch(redrives::SCHEMA)?;
    transaction.execute(
        "INSERT INTO identity VALUES (?1, ?2, ?3, ?4)",
        params![
            draw_node_id()?,
            i64::from_le_bytes(seed),
            key,
            now.as_micros().cast_signed(),
        ],
    )?;
    transaction.execute(
        "INSERT INTO generations VALUES (1, 1, ?1, 0, NULL)",
        [now.as_micros().cast_signed()],
    )?;
    FORMAT.stamp(&transaction)?;
    transaction.commit()
}

/// Moves the log into the file and syncs both. A reader in the way is no error: the next one does it.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

pub(super) fn read_identity(connection: &Connection) -> rusqlite::Result<Identity> {
    connection.query_row(
        "SELECT node_id, hash_seed, token_key FROM identity",
        [],
        |row| {
            Ok(Identity {
                node_id: row.get(0)?,
                hash_seed: row.get::<_, i64>(1)?.cast_unsigned(),
                token_key: row.get(2)?,
            })
        },
    )
}

pub(super) fn read_view(connection: &Connection, version: u64) -> rusqlite::Result<View> {
    Ok(View {
        generations: generations::read(connection)?,
        retired_totals: generations::read_retired(connection)?,
        destinations: destinations::read(connection)?,
        tokens: tokens::read(connection)?,
        replays: replays::read(connection)?,
        redrives: redrives::read(connection)?,
        version,
    })
}

/// Microseconds since the epoch as SQLite holds them.
pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.cast_unsigned())
}

#[cfg(test)]
mod tests;
