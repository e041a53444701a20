//! The system's files with a hook before every change, and a volume whose free space is made up.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_store::disk::{Disk, Overwrite, Space, SystemDisk};

/// Called before a change with the name of the operation and the path; an error is given instead of the
/// change.
type Hook = dyn Fn(&'static str, &Path) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub struct HookedDisk {
    before: Arc<Hook>,
    /// Bytes of a volume on which there is nothing but the shard's files.
    volume: Arc<AtomicU64>,
}

impl HookedDisk {
    pub fn new(
        before: impl Fn(&'static str, &Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            before: Arc::new(before),
            volume: Arc::new(AtomicU64::new(u64::MAX)),
        }
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
        SystemDisk.create_directory(path)
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
        SystemDisk.replace(path, content)
    }
    fn preallocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        SystemDisk.preallocate(path, bytes)
    }
    fn overwrite(&self, path: &Path) -> io::Result<Box<dyn Overwrite>> {
        (self.before)("overwrite", path)?;
        SystemDisk.overwrite(path)
    }
    fn shorten(&self, path: &Path, bytes: u64) -> io::Result<()> {
        (self.before)("shorten", path)?;
        SystemDisk.shorten(path, bytes)
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        (self.before)("unlink", path)?;
        SystemDisk.unlink(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)("rename", from)?;
        SystemDisk.rename(from, to)
    }
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
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
