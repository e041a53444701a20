//! The system's files with a hook before every change, and a volume whose free space is made up.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use wayhold_store::disk::{Disk, Overwrite, Space, SystemDisk};

/// Called before a change with the name of the operation and the path; an error is given instead of the
/// change.
type Hook = dyn Fn(&'static str, &Path) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub struct HookedDisk {
    before: Arc<Hook>,
    /// Bytes of a volume on which there is nothing but the shard's files.
    volume: Arc<AtomicU64>,
    /// Held by each change while it is made.
    changing: Arc<RwLock<()>>,
}

impl HookedDisk {
    pub fn new(
        before: impl Fn(&'static str, &Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            before: Arc::new(before),
            volume: Arc::new(AtomicU64::new(u64::MAX)),
            changing: Arc::default(),
        }
    }

    /// Does something while nothing is changed through here.
    pub fn still<T>(&self, during: impl FnOnce() -> T) -> T {
        let _still = self.changing.write().unwrap();
        during()
    }

    /// Makes the volume so large.
    pub fn set_volume(&self, bytes: u64) {
        self.volume.store(bytes, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedDisk")
    }
}

/// Bytes of the shard's files below a data directory.
pub fn occupied(dir: &Path) -> u64 {
    std::fs::read_dir(dir.join("g1/s0"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum()
}

impl Disk for HookedDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        (self.before)("create_directory", path)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.create_directory(path)
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        (self.before)("remove_directory", path)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.remove_directory(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list(directory)
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        SystemDisk.sync_directory(directory)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }
    fn read_range(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        SystemDisk.read_range(path, offset, length)
    }
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        (self.before)("replace", path)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.replace(path, content)
    }
    fn preallocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let _changing = self.changing.read().unwrap();
        SystemDisk.preallocate(path, bytes)
    }
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>> {
        (self.before)("overwrite", path)?;
        Ok(Box::new(HookedFile {
            file: SystemDisk.overwrite(path)?,
            changing: Arc::clone(&self.changing),
        }))
    }
    fn shorten(&self, path: &Path, bytes: u64) -> io::Result<()> {
        (self.before)("shorten", path)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.shorten(path, bytes)
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        (self.before)("unlink", path)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.unlink(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)("rename", from)?;
        let _changing = self.changing.read().unwrap();
        SystemDisk.rename(from, to)
    }
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _changing = self.changing.read().unwrap();
        SystemDisk.copy(from, to)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        SystemDisk.exists(path)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        SystemDisk.len(path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        let total = self.volume.load(Ordering::SeqCst);
        let free = total.saturating_sub(occupied(path));
        Ok(Space { free, total })
    }
}

#[derive(Debug)]
struct HookedFile {
    file: Box<dyn Overwrite>,
    changing: Arc<RwLock<()>>,
}

impl Overwrite for HookedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _changing = self.changing.read().unwrap();
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
