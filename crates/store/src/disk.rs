//! File operations of the store that are not SQLite's, behind one port so that faults can be injected.
//! Each operation that creates, renames or removes a name syncs the directory before it returns: without
//! it the change can be undone by a power loss although the file itself was synced.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

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
    for suffix in DATABASE_SUFFIXES {
        disk.unlink(&with_suffix(path, suffix))?;
    }
    disk.unlink(path)
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

/// The system's own files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        match std::fs::create_dir(path) {
            Ok(()) => {
                failpoint!("file.unlinked");
                sync_parent(path)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn read_range(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        // The length may come from a damaged file: what is there bounds it.
        let left = file.metadata()?.len().saturating_sub(offset);
        let length = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let temporary = with_suffix(path, ".tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        failpoint!("file.before-sync");
        file.sync_all()?;
        failpoint!("file.before-rename");
        self.rename(&temporary, path)
    }

    fn preallocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        file.sync_all()?;
        sync_parent(path)
    }

    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>> {
        Ok(Box::new(SystemFile(
            OpenOptions::new().write(true).open(path)?,
        )))
    }

    fn shorten(&self, path: &Path, bytes: u64) -> io::Result<()> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) if file.metadata()?.len() > bytes => file.set_len(bytes),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Ok(()) => sync_parent(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)?;
        failpoint!("file.renamed");
        sync_parent(to)
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let temporary = with_suffix(to, ".tmp");
        std::fs::copy(from, &temporary)?;
        OpenOptions::new()
            .write(true)
            .open(&temporary)?
            .sync_all()?;
        self.rename(&temporary, to)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.len())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let volume = statvfs(path)?;
        Ok(Space {
            free: volume.f_bavail.saturating_mul(volume.f_frsize),
            total: volume.f_blocks.saturating_mul(volume.f_frsize),
        })
    }
}

#[derive(Debug)]
struct SystemFile(File);

impl Overwrite for SystemFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
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
}
