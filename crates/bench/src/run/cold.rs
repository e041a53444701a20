//! Makes a start cold: what it needs of the disk is read from the disk.

use std::path::Path;

use rustix::fs::{Advice, fadvise, sync};

use crate::BenchError;

/// Where root asks the kernel to forget clean pages, directory entries and inodes.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// How the page cache was emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// Of everything, by `drop_caches`.
    Machine,
    /// Of the store's files, by `posix_fadvise`: directory entries and inodes stay in memory.
    Files,
}

/// Writes what is dirty and forgets what the kernel holds in memory of `folder`, for root of everything.
///
/// # Errors
/// When a file of the folder cannot be opened.
pub fn forget(folder: &Path) -> Result<Cold, BenchError> {
    // Only clean pages can be forgotten.
    sync();
    if std::fs::write(DROP_CACHES, "3").is_ok() {
        return Ok(Cold::Machine);
    }
    forget_files(folder)?;
    Ok(Cold::Files)
}

fn forget_files(folder: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget_files(&entry.path())?;
        } else {
            let file = std::fs::File::open(entry.path())?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

impl std::fmt::Display for Cold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Machine => "drop_caches",
            Self::Files => "posix_fadvise on the store's files",
        })
    }
}
