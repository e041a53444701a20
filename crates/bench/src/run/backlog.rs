//! Stores with something pending, filled once and left twice: by a clean stop and by `kill -9`. Each
//! trial starts on a copy, so that measuring does not change what is measured.
//!
//! The last segment of each holds single-event commits up to nearly its limit: of all that a start may
//! have to read again, that is the most.

use std::path::{Path, PathBuf};

use super::control;
use super::plan::Plan;
use crate::BenchError;
use crate::process::{Server, load};
use crate::serve::DESTINATION;

/// Single-event commits after which the WAL tells how much one of them takes.
const PROBE: u64 = 200;

/// How the last run of a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By SIGTERM, with everything made durable.
    Stopped,
    /// By SIGKILL, as a power cut would have it but for the page cache.
    Killed,
}

impl Ending {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Stopped, Self::Killed];

    /// Its word in names of figures.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Killed => "killed",
        }
    }
}

/// A store with so much pending, as it was left.
pub struct Backlog {
    /// Its word in names of figures.
    pub name: &'static str,
    /// Whether its events wait for a paused destination.
    pub is_pending: bool,
    folder: PathBuf,
}

/// Fills all of them: one without anything pending, and one that grows; `flags` are the server's.
pub fn prepare(
    plan: &Plan,
    (backlogs, flags): (&[(&'static str, u64)], &[&str]),
    folder: &Path,
) -> Result<Vec<Backlog>, BenchError> {
    let sizes = backlogs;
    let empty = folder.join("empty");
    let mut backlogs = vec![leave(plan, ("empty", false), flags, (&empty, folder))?];
    std::fs::remove_dir_all(&empty)?;
    let grown = folder.join("grown");
    let mut pending = 0;
    for &(name, events) in sizes {
        let server = Server::start("wayhold", &grown, &plan.serve("wayhold", flags))?;
        fill(&server, events - pending, name)?;
        server.stop()?;
        pending = events;
        backlogs.push(leave(plan, (name, true), flags, (&grown, folder))?);
    }
    std::fs::remove_dir_all(&grown)?;
    Ok(backlogs)
}

fn fill(server: &Server, events: u64, prefix: &str) -> Result<(), BenchError> {
    let flags = [
        "--connections=16".to_owned(),
        "--batch=100".to_owned(),
        format!("--events={events}"),
        format!("--prefix={prefix}"),
    ];
    load(server.address, &flags).map(drop)
}

/// Runs on a store once for each ending, and keeps a copy of what it leaves.
fn leave(
    plan: &Plan,
    (name, is_pending): (&'static str, bool),
    flags: &[&str],
    (data, folder): (&Path, &Path),
) -> Result<Backlog, BenchError> {
    let backlog = Backlog {
        name,
        is_pending,
        folder: folder.to_owned(),
    };
    let delivering = (!is_pending).then_some("--deliver");
    let flags: Vec<&str> = flags.iter().copied().chain(delivering).collect();
    let flags = plan.serve("wayhold", &flags);
    for ending in Ending::ALL {
        let server = Server::start("wayhold", data, &flags)?;
        let prefix = format!("{name}-{}", ending.as_str());
        commit_one_by_one(&server, data, plan.last_segment, &prefix)?;
        if !is_pending {
            control::drained(server.address, DESTINATION)?;
        }
        match ending {
            Ending::Stopped => drop(server.stop()?),
            Ending::Killed => server.kill(),
        }
        copy(data, &backlog.kept(ending))?;
    }
    Ok(backlog)
}

/// Fills the active segment, the fullest of several shards', to this share of its limit; the server has just
/// begun it.
fn commit_one_by_one(
    server: &Server,
    data: &Path,
    share: f64,
    prefix: &str,
) -> Result<(), BenchError> {
    let one_by_one = |events: u64, part: &str| {
        let flags = [
            "--connections=1".to_owned(),
            format!("--events={events}"),
            format!("--prefix={prefix}-{part}"),
        ];
        load(server.address, &flags).map(drop)
    };
    let empty = active_wal(data)?;
    one_by_one(PROBE, "probe")?;
    let each = active_wal(data)?.saturating_sub(empty) / PROBE;
    if each == 0 {
        return Err("the active segment's WAL does not grow with commits".into());
    }
    let limit = wayhold_store::Options::default().segment_bytes;
    let more = (share_of(limit, share) / each).saturating_sub(PROBE);
    if more > 0 {
        one_by_one(more, "rest")?;
    }
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of some megabytes"
)]
fn share_of(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

/// Bytes of the largest WAL that belongs to no sealed segment: the active one's, since the prepared
/// one holds only its schema.
fn active_wal(folder: &Path) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            bytes = bytes.max(active_wal(&path)?);
        } else if path.extension().is_some_and(|kind| kind == "db-wal")
            && is_numbered(&path)
            && !path.with_extension("idx").exists()
        {
            // A prepared file may get its name between the two looks.
            bytes = bytes.max(entry.metadata().map_or(0, |metadata| metadata.len()));
        }
    }
    Ok(bytes)
}

fn is_numbered(path: &Path) -> bool {
    path.file_stem()
        .and_then(|stem| stem.to_str())
        .is_some_and(|stem| stem.parse::<u64>().is_ok())
}

impl Backlog {
    /// A copy to start on, in a folder that does not exist yet.
    pub fn copy_to(&self, ending: Ending, to: &Path) -> Result<(), BenchError> {
        copy(&self.kept(ending), to)
    }

    fn kept(&self, ending: Ending) -> PathBuf {
        self.folder
            .join(format!("{}.{}", self.name, ending.as_str()))
    }
}

/// Copies a stopped server's folder. Databases of sealed segments are linked: no start changes what they
/// say, and copying gigabytes would be most of the run. Index files are copied, whether their database is
/// there or gone: they take a note once everything is resolved, and every start is to find the ones that it
/// reads equally new on the disk.
fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            self::copy(&path, &copy)?;
            continue;
        }
        match file(&path) {
            File::Unchanging => std::fs::hard_link(&path, &copy)?,
            File::Rebuilt => {}
            File::Changing => drop(std::fs::copy(&path, &copy)?),
        }
    }
    Ok(())
}

/// What a start does with a file.
enum File {
    /// Reads it at most, or moves a WAL into its database.
    Unchanging,
    /// Makes it anew.
    Rebuilt,
    /// May write to it.
    Changing,
}

fn file(path: &Path) -> File {
    let is_sealed = is_numbered(path) && path.with_extension("idx").exists();
    match path.extension().and_then(|kind| kind.to_str()) {
        Some("db" | "db-wal") if is_sealed => File::Unchanging,
        Some("db-shm") if is_sealed => File::Rebuilt,
        _ => File::Changing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_what_no_start_changes_and_nothing_else() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let shard = folder.path().join("from/g1/s0");
        std::fs::create_dir_all(&shard).unwrap();
        for name in [
            "1.idx",
            "2.idx",
            "2.db",
            "2.db-wal",
            "2.db-shm",
            "3.db",
            "3.db-wal",
            "3.db-shm",
            "mark",
            "state-1.db",
        ] {
            std::fs::write(shard.join(name), name).unwrap();
        }
        copy(&folder.path().join("from"), &folder.path().join("to")).unwrap();
        let copied = folder.path().join("to/g1/s0");
        for name in ["2.db", "2.db-wal"] {
            assert_eq!(copied.join(name).metadata().unwrap().nlink(), 2, "{name}");
        }
        for name in [
            "1.idx",
            "2.idx",
            "3.db",
            "3.db-wal",
            "3.db-shm",
            "mark",
            "state-1.db",
        ] {
            assert_eq!(copied.join(name).metadata().unwrap().nlink(), 1, "{name}");
            assert_eq!(std::fs::read_to_string(copied.join(name)).unwrap(), name);
        }
        assert!(!copied.join("2.db-shm").exists());
    }

    #[test]
    fn the_active_wal_is_the_largest_without_an_index_file() {
        let folder = tempfile::tempdir().unwrap();
        let shard = folder.path().join("g1/s0");
        std::fs::create_dir_all(&shard).unwrap();
        for (name, bytes) in [
            ("1.idx", 1),
            ("1.db-wal", 900),
            ("2.db-wal", 500),
            ("3.db-wal", 40),
            ("state-1.db-wal", 700),
        ] {
            std::fs::write(shard.join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(active_wal(folder.path()).unwrap(), 500);
    }
}
