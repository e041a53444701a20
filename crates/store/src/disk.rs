//! File operations of the store that are not SQLite's, behind one port so that faults can be injected.
//! Each operation that creates, renames or removes a name syncs the directory before it returns: without
//! it the change can be undone by a power loss although the file itself was synced. What each consists of
//! is in [`Calls`].

mod calls;
mod system;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

pub use self::calls::{Calls, OpenFile};
pub use self::system::SystemDisk;

/// Space of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free for this process.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// The store's file access. Every error is the system's own and concerns the path that was given.
pub trait Disk: Send + Sync + std::fmt::Debug + 'static {
    /// Makes a directory durable; its parent must exist. No error when it exists already.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory durably. No error when it is absent: the step may be a repetition.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// The whole of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// `length` bytes of a file from `offset`; fewer where the file ends before.
    fn read_range(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Puts a whole file in place, durably: after a crash there is the new content, the former, or
    /// nothing, but never a part. Goes through `<name>.tmp`.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Makes a file of that length whose blocks are all allocated, durable and empty of meaning.
    fn preallocate(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// Opens a file to overwrite parts of it in place.
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>>;

    /// Cuts a file to at most that many bytes, which gives the rest back to the volume; durable at some
    /// later time. No error when it is absent: the step may be a repetition.
    fn shorten(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// Removes a file durably. No error when it is absent: the step may be a repetition.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Renames a file durably within its directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Puts a whole copy of a file in place, durably, as `replace` does.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Whether there is something of that name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Bytes of a file.
    fn len(&self, path: &Path) -> io::Result<u64>;

    /// Space of the volume that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
}

/// A file that is overwritten in place.
pub trait Overwrite: Send + std::fmt::Debug {
    /// Writes all of `bytes` at `offset`, without sync.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes what was written durable. After an error nothing that was written may be relied on.
    fn sync(&self) -> io::Result<()>;
}

/// Puts a file aside under `<name>.quarantined.<n>` and returns that name. What the store does not
/// understand is kept for a person, never deleted.
pub fn quarantine(disk: &dyn Disk, path: &Path) -> io::Result<PathBuf> {
    let aside = name_aside(disk, path)?;
    disk.rename(path, &aside)?;
    Ok(aside)
}

fn name_aside(disk: &dyn Disk, path: &Path) -> io::Result<PathBuf> {
    let mut number = 1_u32;
    loop {
        let aside = with_suffix(path, &format!(".quarantined.{number}"));
        if !disk.exists(&aside)? {
            return Ok(aside);
        }
        number += 1;
    }
}

/// Bytes of a log that are written again at once.
const RENEWED_BYTES: usize = 1024 * 1024;

/// Writes the log of a SQLite file again, in place and durably, before anything is moved from it into the file. A sync
/// of it that failed in an earlier run may have left what was written in the system's memory alone, and no later sync
/// would write that: then a crash while the log is moved would leave half of it in the file and nothing to finish it
/// from.
pub fn renew_log(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let log = with_suffix(path, "-wal");
    if !disk.exists(&log)? || disk.len(&log)? == 0 {
        return Ok(());
    }
    let file = disk.overwrite(&log)?;
    let mut offset = 0;
    loop {
        let bytes = disk.read_range(&log, offset, RENEWED_BYTES)?;
        if bytes.is_empty() {
            break;
        }
        file.write_at(&bytes, offset)?;
        offset += bytes.len() as u64;
    }
    file.sync()?;
    disk.sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Copies a SQLite file aside with its WAL, as they are; the main file last, so that a repetition finds
/// that there is no whole copy.
pub fn copy_database_aside(disk: &dyn Disk, path: &Path) -> io::Result<PathBuf> {
    let aside = name_aside(disk, path)?;
    let log = with_suffix(path, "-wal");
    if disk.exists(&log)? {
        disk.copy(&log, &with_suffix(&aside, "-wal"))?;
    }
    disk.copy(path, &aside)?;
    Ok(aside)
}

/// Puts a SQLite file aside with what belongs to it (`-wal`, `-shm`), so that the three keep fitting
/// together: the WAL's name is made of the new one.
pub fn quarantine_database(disk: &dyn Disk, path: &Path) -> io::Result<PathBuf> {
    let aside = quarantine(disk, path)?;
    for suffix in DATABASE_SUFFIXES {
        let companion = with_suffix(path, suffix);
        if disk.exists(&companion)? {
            disk.rename(&companion, &with_suffix(&aside, suffix))?;
        }
    }
    Ok(aside)
}

/// Removes a SQLite file with what belongs to it; the main file last, so that a repetition finds it.
pub fn unlink_database(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    unlink_companions(disk, path)?;
    disk.unlink(path)
}

/// Removes what SQLite keeps beside a file that needs none of it: its log is empty, or the file goes.
pub(crate) fn unlink_companions(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    for suffix in DATABASE_SUFFIXES {
        disk.unlink(&with_suffix(path, suffix))?;
    }
    Ok(())
}

/// The name of a compacted segment's database while it is made.
pub(crate) fn making(path: &Path) -> PathBuf {
    with_suffix(path, ".new")
}

/// The name of a database that is being removed: nobody opens it under that.
pub(crate) fn leaving(path: &Path) -> PathBuf {
    with_suffix(path, ".gone")
}

/// Files that SQLite keeps beside a database: in WAL mode, and while the file is being made.
pub(crate) const DATABASE_SUFFIXES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The path of a file beside another.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_whole_and_leaves_no_temporary_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.idx");
        for content in [b"first".as_slice(), b"second, longer"] {
            SystemDisk.replace(&path, content).unwrap();
            assert_eq!(SystemDisk.read(&path).unwrap(), content);
        }
        assert_eq!(SystemDisk.list(folder.path()).unwrap(), ["1.idx"]);
    }

    #[test]
    fn a_preallocated_file_is_overwritten_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        SystemDisk.preallocate(&path, 4096).unwrap();
        let file = SystemDisk.overwrite(&path).unwrap();
        file.write_at(b"slot", 512).unwrap();
        file.sync().unwrap();
        assert_eq!(SystemDisk.len(&path).unwrap(), 4096);
        assert_eq!(SystemDisk.read(&path).unwrap()[512..516], *b"slot");
    }

    #[test]
    fn a_quarantined_database_keeps_its_log_and_overwrites_no_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("7.db");
        for number in [1, 2] {
            std::fs::write(&path, format!("main {number}")).unwrap();
            std::fs::write(folder.path().join("7.db-wal"), format!("log {number}")).unwrap();
            let aside = quarantine_database(&SystemDisk, &path).unwrap();
            assert_eq!(
                aside,
                folder.path().join(format!("7.db.quarantined.{number}"))
            );
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("7.db.quarantined.1"), "main 1");
        assert_eq!(read("7.db.quarantined.2-wal"), "log 2");
    }

    #[test]
    fn removing_what_is_gone_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        unlink_database(&SystemDisk, &folder.path().join("1.db")).unwrap();
        let space = SystemDisk.space(folder.path()).unwrap();
        assert!(space.free > 0 && space.free <= space.total);
    }

    #[test]
    fn a_log_is_written_again_as_it_is_and_one_that_is_absent_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let (file, log) = (folder.path().join("a.db"), folder.path().join("a.db-wal"));
        renew_log(&SystemDisk, &file).unwrap();
        assert!(!log.exists());
        for length in [0, 1, RENEWED_BYTES, 2 * RENEWED_BYTES + 5] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            std::fs::write(&log, &bytes).unwrap();
            renew_log(&SystemDisk, &file).unwrap();
            assert!(std::fs::read(&log).unwrap() == bytes, "{length}");
        }
    }
}
