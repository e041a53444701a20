//! The single calls to the system that durable operations consist of. They are a port of their own so that
//! power can be cut between any two of them, while the order in which they are made is the product's own.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::{Disk, Overwrite, Space, with_suffix};

/// One call to the system each; none makes more durable than it says.
pub trait Calls: Send + Sync + std::fmt::Debug + 'static {
    /// Makes a directory; an error when there is something of that name.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_empty(&self, path: &Path) -> io::Result<()>;

    /// Whether there is a directory of that name.
    fn is_directory(&self, path: &Path) -> bool;

    /// Names in a directory, in no order.
    fn list_names(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes the names in a directory durable.
    fn sync_names(&self, directory: &Path) -> io::Result<()>;

    /// Opens an empty file for writing: makes it, or takes away what it held.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file that exists for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// The whole of a file.
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// `length` bytes of a file from `offset`; fewer where the file ends before.
    fn read_part(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Makes `to` a file with the bytes of `from`.
    fn copy_bytes(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, in place of one that has the name.
    fn rename_file(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Whether there is something of that name.
    fn has(&self, path: &Path) -> io::Result<bool>;

    /// Bytes of a file.
    fn file_bytes(&self, path: &Path) -> io::Result<u64>;

    /// Space of the volume that holds `path`.
    fn volume_space(&self, path: &Path) -> io::Result<Space>;
}

/// A file that is open for writing. Its `sync` makes the bytes durable and how many there are.
pub trait OpenFile: Overwrite {
    /// Allocates the blocks of its first `bytes`; it has at least so many afterwards.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Cuts it, or lengthens it by zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Its bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Makes its bytes durable and all that is known of it.
    fn sync_all(&self) -> io::Result<()>;
}

impl<C: Calls> Disk for C {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        match self.make_directory(path) {
            Ok(()) => sync_parent(self, path),
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && self.is_directory(path) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        match self.remove_empty(path) {
            Ok(()) => sync_parent(self, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.list_names(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.sync_names(directory)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_whole(path)
    }

    fn read_range(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.read_part(path, offset, length)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let temporary = with_suffix(path, ".tmp");
        let file = self.create(&temporary)?;
        file.write_at(content, 0)?;
        failpoint!("file.before-sync");
        file.sync_all()?;
        failpoint!("file.before-rename");
        self.rename(&temporary, path)
    }

    fn preallocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = self.create(path)?;
        file.allocate(bytes)?;
        file.sync_all()?;
        sync_parent(self, path)
    }

    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>> {
        Ok(self.open(path)?)
    }

    fn shorten(&self, path: &Path, bytes: u64) -> io::Result<()> {
        match self.open(path) {
            Ok(file) if file.bytes()? > bytes => file.set_len(bytes),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        match self.remove_file(path) {
            Ok(()) => {
                failpoint!("file.unlinked");
                sync_parent(self, path)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.rename_file(from, to)?;
        failpoint!("file.renamed");
        sync_parent(self, to)
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let temporary = with_suffix(to, ".tmp");
        self.copy_bytes(from, &temporary)?;
        self.open(&temporary)?.sync_all()?;
        self.rename(&temporary, to)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.has(path)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.file_bytes(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.volume_space(path)
    }
}

fn sync_parent(calls: &impl Calls, path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    calls.sync_names(parent)
}
