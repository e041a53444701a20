//! The one way in which a SQLite connection of the store opens: durability settings are set and read
//! back, and the library's version is checked, so that no file is ever written with weaker promises
//! than the others. Errors of SQLite become one of four faults here, because the reaction differs:
//! a write refused for lack of space may be tried again, a failed write or sync never is.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use thiserror::Error;

use crate::disk::with_suffix;

/// Oldest SQLite that is used: the release that fixed the WAL-reset bug, which could corrupt a database
/// when two connections wrote and checkpointed at the same moment.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// How long a statement waits for another connection's lock. Writers never meet (each file has one), so
/// this only covers the moments of opening and checkpointing.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Make the file, which must not exist, and write it.
    Create,
    /// Write a file that exists.
    Write,
    /// Read a file that exists.
    Read,
    /// Look at a file that no process has open and change nothing, not even beside it.
    Examine,
}

/// How pages that hold nothing any more are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreePages {
    /// Never: the file is append-only and ends by being unlinked.
    Keep,
    /// In small steps, by `PRAGMA incremental_vacuum`.
    ReturnInSteps,
}

/// What distinguishes one kind of file from another; the rest is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Bytes of a page; only effective where the file is made.
    pub(crate) page_size: u32,
    /// What happens to freed pages; only effective where the file is made.
    pub(crate) free_pages: FreePages,
    /// Most memory for cached pages.
    pub(crate) cache_kib: u32,
}

/// What went wrong in SQLite, by what may be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The write was refused for lack of space and rolled back; the file is sound. Try again when there
    /// is space.
    NoSpace,
    /// A read, write or sync failed. What the file holds of the last transaction is uncertain for good:
    /// never write to it again.
    Io,
    /// The file is damaged, or not a database.
    Corrupt,
    /// Anything else; it says nothing good of the file, so treat it as `Io`.
    Other,
}

impl Fault {
    /// The fault behind an error of SQLite.
    pub(crate) fn of(error: &rusqlite::Error) -> Self {
        let Some(error) = error.sqlite_error() else {
            return Self::Other;
        };
        // The shared-memory index holds nothing durable; it fails to grow before anything is written.
        if error.extended_code == ffi::SQLITE_IOERR_SHMSIZE {
            return Self::NoSpace;
        }
        match error.code {
            ErrorCode::DiskFull => Self::NoSpace,
            ErrorCode::SystemIoFailure => Self::Io,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt,
            _ => Self::Other,
        }
    }
}

/// Why a file could not be opened.
#[derive(Debug, Error)]
pub(crate) enum ConnectionError {
    /// The library that was linked in has a known bug; link the bundled one.
    #[error("SQLite {found} has a bug that damages files; expected at least 3.51.3")]
    Version {
        /// Version of the library.
        found: &'static str,
    },
    /// A setting did not take, so the file would not keep the store's promises.
    #[error("SQLite setting {name} reads back as {found}; expected {expected}")]
    Setting {
        /// Its pragma.
        name: &'static str,
        /// What was set.
        expected: String,
        /// What it became.
        found: String,
    },
    /// Written by a newer version, and left as it is.
    #[error("has format {found}, this binary knows up to {known}")]
    Newer {
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// A file of this kind that belongs somewhere else.
    #[error("it belongs to another shard or node")]
    Foreign,
    /// The file exists already, or the directory takes none.
    #[error("cannot make the file: {0}")]
    Make(#[source] io::Error),
    /// SQLite refused.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl ConnectionError {
    /// The fault behind it.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Version { .. } | Self::Setting { .. } | Self::Newer { .. } | Self::Foreign => {
                Fault::Other
            }
            Self::Make(error) if error.kind() == io::ErrorKind::StorageFull => Fault::NoSpace,
            Self::Make(_) => Fault::Io,
            Self::Sqlite(error) => Fault::of(error),
        }
    }
}

/// Opens `path` in WAL mode with synchronous=FULL, without any checkpoint but explicit ones, through the
/// VFS of that name (faults can be injected there) or the system's.
///
/// After `Access::Create` the directory has to be synced by the caller: SQLite ignores the result of its
/// own attempt.
pub(crate) fn open(
    path: &Path,
    access: Access,
    profile: Profile,
    vfs: Option<&str>,
) -> Result<Connection, ConnectionError> {
    require_version(rusqlite::version_number())?;
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX
        | match access {
            Access::Create | Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Read | Access::Examine => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
    if access == Access::Create {
        // SQLite itself cannot be asked to refuse a file that exists.
        File::create_new(path).map_err(ConnectionError::Make)?;
    }
    let connection = match (access, vfs) {
        (Access::Examine, _) => examine(path, flags)?,
        (_, Some(vfs)) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
        (_, None) => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A close that checkpoints would write to a file after its last sync was answered for.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // A file is user data: it must not bring code (views, triggers) that runs with our rights.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // Plans do not depend on values that are bound: they would be made anew with each of them.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    set(&connection, "cell_size_check", "ON", "1")?;
    set(&connection, "foreign_keys", "OFF", "0")?;
    set(&connection, "temp_store", "MEMORY", "2")?;
    let cache = format!("-{}", profile.cache_kib);
    set(&connection, "cache_size", &cache, &cache)?;
    if access == Access::Create {
        let page_size = profile.page_size.to_string();
        set(&connection, "page_size", &page_size, &page_size)?;
        match profile.free_pages {
            FreePages::Keep => set(&connection, "auto_vacuum", "NONE", "0")?,
            FreePages::ReturnInSteps => set(&connection, "auto_vacuum", "INCREMENTAL", "2")?,
        }
    }
    match access {
        Access::Create | Access::Write => {
            // Asking another program's file to be in WAL mode would change it. One without any table was
            // being made when the process ended; it may have a page already, and no log yet.
            let tables = "SELECT count(*) FROM sqlite_schema";
            let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
            match access == Access::Write && tables > 0 {
                true => require(&connection, "journal_mode", "wal")?,
                false => set(&connection, "journal_mode", "WAL", "wal")?,
            }
            match planted!("answer-before-sync") {
                true => set(&connection, "synchronous", "NORMAL", "1")?,
                false => set(&connection, "synchronous", "FULL", "2")?,
            }
            set(&connection, "wal_autocheckpoint", "0", "0")?;
        }
        Access::Read | Access::Examine => set(&connection, "query_only", "ON", "1")?,
    }
    Ok(connection)
}

/// What SQLite's own check finds wrong with a file, at most `max` sentences; none where it is sound.
pub(crate) fn integrity(connection: &Connection, max: u32) -> Vec<String> {
    let found = connection
        .prepare(&format!("PRAGMA integrity_check({max})"))
        .and_then(|mut check| {
            let rows = check.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
    match found {
        Ok(found) if found == ["ok"] => Vec::new(),
        Ok(found) => found,
        Err(error) => vec![error.to_string()],
    }
}

/// Opens a file without locks, and without the shared memory that SQLite would make beside it: the index of its
/// log is kept on the heap. A file without a log is read as if on a medium that cannot be written, since
/// SQLite would make an empty log otherwise.
fn examine(path: &Path, flags: OpenFlags) -> Result<Connection, ConnectionError> {
    /// SQLite's name of the system's files without locks.
    const WITHOUT_LOCKS: &str = "unix-none";
    let log = std::fs::metadata(with_suffix(path, "-wal"));
    if log.is_ok_and(|log| log.len() > 0) {
        let connection = Connection::open_with_flags_and_vfs(path, flags, WITHOUT_LOCKS)?;
        set(&connection, "locking_mode", "EXCLUSIVE", "exclusive")?;
        return Ok(connection);
    }
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte));
            }
            _ => uri.extend(format!("%{byte:02x}").chars()),
        }
    }
    uri.push_str("?immutable=1");
    let flags = flags | OpenFlags::SQLITE_OPEN_URI;
    Ok(Connection::open_with_flags(uri, flags)?)
}

/// Copies the database behind `source`, as its open transaction sees it, into a new file for its owner
/// alone, with `after` called between steps. Whoever reads the source's log with it sees what was synced and
/// nothing of a group that failed, which a copy of the bare files might adopt.
///
/// The copy is one file, without a log. It is worth nothing before the caller synced it: should that not come
/// about, the file has to go.
pub(crate) fn copy(
    source: &Connection,
    path: &Path,
    vfs: Option<&str>,
    mut after: impl FnMut() -> io::Result<()>,
) -> Result<(), ConnectionError> {
    let mut made = File::options();
    made.write(true).create_new(true).mode(0o600);
    made.open(path).map_err(ConnectionError::Make)?;
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_READ_WRITE;
    let mut copy = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
        None => Connection::open_with_flags(path, flags)?,
    };
    set(&copy, "journal_mode", "OFF", "off")?;
    set(&copy, "synchronous", "OFF", "0")?;
    {
        let backup = Backup::new(source, &mut copy)?;
        loop {
            match backup.step(PAGES_PER_STEP)? {
                StepResult::Done => break,
                StepResult::More => after().map_err(ConnectionError::Make)?,
                // Nobody else has the copy, and the source is read in a transaction that is open.
                StepResult::Busy | StepResult::Locked | _ => {
                    let busy = ffi::Error::new(ffi::SQLITE_BUSY);
                    return Err(rusqlite::Error::SqliteFailure(busy, None).into());
                }
            }
        }
    }
    // The source's WAL mode came along in its first page; nothing has begun a log.
    copy.close().map_err(|(_, error)| error)?;
    Ok(())
}

/// Pages that are copied at once: a mebibyte, little enough to wait for in between.
const PAGES_PER_STEP: std::ffi::c_int = 256;

/// Refuses a library that could corrupt a file, should the binary have been linked to another one.
fn require_version(number: i32) -> Result<(), ConnectionError> {
    match number < SQLITE_VERSION_MIN {
        true => Err(ConnectionError::Version {
            found: rusqlite::version(),
        }),
        false => Ok(()),
    }
}

/// Sets a pragma and reads it back.
fn set(
    connection: &Connection,
    name: &'static str,
    value: &str,
    expected: &str,
) -> Result<(), ConnectionError> {
    // Some pragmas answer when set and some do not; what counts is what they answer afterwards.
    let mut statement = connection.prepare(&format!("PRAGMA {name}={value}"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    require(connection, name, expected)
}

/// Reads a pragma back.
fn require(
    connection: &Connection,
    name: &'static str,
    expected: &str,
) -> Result<(), ConnectionError> {
    let found = connection.pragma_query_value(None, name, |row| {
        Ok(match row.get_ref(0)? {
            rusqlite::types::ValueRef::Integer(value) => value.to_string(),
            other => String::from_utf8_lossy(other.as_bytes().unwrap_or_default()).into_owned(),
        })
    })?;
    if found == expected {
        return Ok(());
    }
    Err(ConnectionError::Setting {
        name,
        expected: expected.to_owned(),
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: Profile = Profile {
        page_size: 8192,
        free_pages: FreePages::ReturnInSteps,
        cache_kib: 512,
    };

    #[test]
    fn what_is_examined_is_read_whole_and_nothing_is_changed_or_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a folder?with=signs%");
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("1.db");
        let writer = open(&path, Access::Create, PROFILE, None).unwrap();
        let insert = "CREATE TABLE IF NOT EXISTS t(x); INSERT INTO t VALUES (1);";
        writer.execute_batch(insert).unwrap();
        drop(writer);
        let writer = open(&path, Access::Write, PROFILE, None).unwrap();
        writer
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .unwrap();
        writer.execute_batch(insert).unwrap();
        drop(writer);
        let files = || {
            let names = std::fs::read_dir(&dir).unwrap();
            let mut files: Vec<_> = names
                .map(|entry| entry.unwrap().path())
                .map(|path| (path.clone(), std::fs::read(path).unwrap()))
                .collect();
            files.sort();
            files
        };
        // With a log, with an empty one, and without any; the first shared memory is of the writer.
        std::fs::remove_file(dir.join("1.db-shm")).unwrap();
        for (rows, step) in [(2, None), (1, Some("empty")), (1, Some("gone"))] {
            match step {
                None => {}
                Some("empty") => std::fs::write(dir.join("1.db-wal"), []).unwrap(),
                Some(_) => std::fs::remove_file(dir.join("1.db-wal")).unwrap(),
            }
            let before = files();
            let reader = open(&path, Access::Examine, PROFILE, None).unwrap();
            let count: i64 = reader
                .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
                .unwrap();
            assert_eq!(count, rows, "{step:?}");
            reader
                .execute_batch("INSERT INTO t VALUES (2)")
                .unwrap_err();
            assert!(files() == before, "{step:?}");
            drop(reader);
            assert!(files() == before, "{step:?}");
        }
    }

    #[test]
    fn a_new_file_keeps_its_settings_for_every_later_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.db");
        let writer = open(&path, Access::Create, PROFILE, None).unwrap();
        writer
            .execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
            .unwrap();
        let reader = open(&path, Access::Read, PROFILE, None).unwrap();
        let number = |c: &Connection, name: &str| {
            c.pragma_query_value(None, name, |row| row.get::<_, i64>(0))
                .unwrap()
        };
        assert_eq!(number(&reader, "page_size"), 8192);
        assert_eq!(number(&reader, "auto_vacuum"), 2);
        assert!(reader.execute("INSERT INTO t VALUES (2)", []).is_err());
        drop((reader, writer));
        assert!(
            folder.path().join("1.db-wal").exists(),
            "closing checkpoints nothing"
        );
        let again = open(&path, Access::Write, PROFILE, None).unwrap();
        let rows: i64 = again
            .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1);
    }

    #[test]
    fn an_older_library_is_refused_and_told_what_is_required() {
        require_version(rusqlite::version_number()).unwrap();
        require_version(SQLITE_VERSION_MIN).unwrap();
        for older in [3_040_001, 3_051_002, 0] {
            let error = require_version(older).unwrap_err().to_string();
            assert!(error.contains("3.51.3"), "{error}");
        }
    }

    #[test]
    fn what_is_absent_or_present_against_expectation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.db");
        assert!(open(&path, Access::Write, PROFILE, None).is_err());
        assert!(open(&path, Access::Read, PROFILE, None).is_err());
        drop(open(&path, Access::Create, PROFILE, None).unwrap());
        assert!(open(&path, Access::Create, PROFILE, None).is_err());
    }

    #[test]
    fn a_file_whose_making_was_cut_off_can_be_written_and_another_programs_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.db");
        // SQLite writes the first page before the one that says which log it has.
        let unfinished = Connection::open(&path).unwrap();
        unfinished
            .execute_batch("PRAGMA page_size=4096; VACUUM;")
            .unwrap();
        unfinished.execute_batch("PRAGMA user_version=0;").unwrap();
        drop(unfinished);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
        open(&path, Access::Write, PROFILE, None).unwrap();

        let foreign = folder.path().join("2.db");
        let other = Connection::open(&foreign).unwrap();
        other.execute_batch("CREATE TABLE t(x)").unwrap();
        drop(other);
        let before = std::fs::read(&foreign).unwrap();
        assert!(open(&foreign, Access::Write, PROFILE, None).is_err());
        assert_eq!(std::fs::read(&foreign).unwrap(), before);
    }

    #[test]
    fn faults_are_told_apart_by_what_may_be_done_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.db");
        let writer = open(&path, Access::Create, PROFILE, None).unwrap();
        writer
            .execute_batch("CREATE TABLE t(x); PRAGMA max_page_count=3;")
            .unwrap();
        let full = writer
            .execute("INSERT INTO t VALUES (zeroblob(100000))", [])
            .unwrap_err();
        assert_eq!(Fault::of(&full), Fault::NoSpace);

        let garbage = folder.path().join("2.db");
        std::fs::write(&garbage, [7; 16384]).unwrap();
        let corrupt = open(&garbage, Access::Write, PROFILE, None).unwrap_err();
        assert_eq!(corrupt.fault(), Fault::Corrupt);

        let failure =
            |code| Fault::of(&rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        assert_eq!(failure(ffi::SQLITE_IOERR_FSYNC), Fault::Io);
        assert_eq!(failure(ffi::SQLITE_IOERR_WRITE), Fault::Io);
        assert_eq!(failure(ffi::SQLITE_IOERR_SHMSIZE), Fault::NoSpace);
        assert_eq!(failure(ffi::SQLITE_CONSTRAINT), Fault::Other);
    }
}
