//! The operating system's files.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::{Calls, OpenFile, Overwrite, Space};

/// The system's own files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Calls for SystemDisk {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    fn remove_empty(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn list_names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(SystemFile(File::create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(Box::new(SystemFile(file)))
    }

    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn read_part(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        // The length may come from a damaged file: what is there bounds it.
        let left = file.metadata()?.len().saturating_sub(offset);
        let length = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn copy_bytes(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::copy(from, to).map(|_bytes| ())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn rename_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn has(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.len())
    }

    fn volume_space(&self, path: &Path) -> io::Result<Space> {
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

impl OpenFile for SystemFile {
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::empty(), 0, bytes)?)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
