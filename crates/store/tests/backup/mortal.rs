//! The system's files until the process "dies": from one call on nothing below a directory is changed any more.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_store::disk::{Calls, OpenFile, Overwrite, Space, SystemDisk};

#[derive(Clone, Debug)]
pub struct MortalDisk {
    below: PathBuf,
    made: Arc<AtomicU64>,
    last: u64,
}

impl MortalDisk {
    /// Dies instead of the call numbered `last` from 0 that changes something below `below`.
    pub fn new(below: &Path, last: u64) -> Self {
        Self {
            below: below.to_owned(),
            made: Arc::default(),
            last,
        }
    }

    /// Whether it came to that call.
    pub fn has_died(&self) -> bool {
        self.made.load(Ordering::SeqCst) > self.last
    }

    fn change(&self, path: &Path) -> io::Result<()> {
        if path.starts_with(&self.below) && self.made.fetch_add(1, Ordering::SeqCst) >= self.last {
            return Err(io::Error::other("the process is dead"));
        }
        Ok(())
    }

    fn file(&self, path: &Path, file: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(MortalFile {
            disk: self.clone(),
            path: path.to_owned(),
            file,
        })
    }
}

impl Calls for MortalDisk {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.change(path)?;
        SystemDisk.make_directory(path)
    }
    fn remove_empty(&self, path: &Path) -> io::Result<()> {
        self.change(path)?;
        SystemDisk.remove_empty(path)
    }
    fn is_directory(&self, path: &Path) -> bool {
        SystemDisk.is_directory(path)
    }
    fn list_names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list_names(directory)
    }
    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        self.change(directory)?;
        SystemDisk.sync_names(directory)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.change(path)?;
        Ok(self.file(path, SystemDisk.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(self.file(path, SystemDisk.open(path)?))
    }
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read_whole(path)
    }
    fn read_part(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        SystemDisk.read_part(path, offset, length)
    }
    fn copy_bytes(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(to)?;
        SystemDisk.copy_bytes(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change(path)?;
        SystemDisk.remove_file(path)
    }
    fn rename_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(to)?;
        SystemDisk.rename_file(from, to)
    }
    fn has(&self, path: &Path) -> io::Result<bool> {
        SystemDisk.has(path)
    }
    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        SystemDisk.file_bytes(path)
    }
    fn volume_space(&self, path: &Path) -> io::Result<Space> {
        SystemDisk.volume_space(path)
    }
}

#[derive(Debug)]
struct MortalFile {
    disk: MortalDisk,
    path: PathBuf,
    file: Box<dyn OpenFile>,
}

impl Overwrite for MortalFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.change(&self.path)?;
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.change(&self.path)?;
        self.file.sync()
    }
}

impl OpenFile for MortalFile {
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.disk.change(&self.path)?;
        self.file.allocate(bytes)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.change(&self.path)?;
        self.file.set_len(bytes)
    }
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.disk.change(&self.path)?;
        self.file.sync_all()
    }
}
