//! The folder that everything is measured in: new, on the disk that is asked about, gone at the end.

use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use tempfile::TempDir;
use wayhold_store::disk::{Disk, SystemDisk};

use super::super::exit::{Exit, Failure};
use crate::config::quantity::{Size, show_size};

/// Magic numbers of file systems that keep everything in memory.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// A temporary folder; removed when dropped, and with an error to see by `remove`.
#[derive(Debug)]
pub struct Folder {
    dir: TempDir,
    in_memory: bool,
}

impl Folder {
    /// Makes one inside `parent`, which must exist and have so many bytes free. Nothing else in `parent`
    /// is looked at.
    ///
    /// # Errors
    /// When `parent` is no folder, takes no new one, or has too little space.
    pub fn make(parent: &Path, needed: u64) -> Result<Self, Failure> {
        let unusable = |what: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "cannot measure in {}: {what}; --data DIR names another folder",
                parent.display()
            ))
        };
        let free = SystemDisk
            .space(parent)
            .map_err(|error| unusable(&error))?
            .free;
        if free < needed {
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "cannot measure in {}: {} are free, {} are needed; make room, give less --time, \
                     or name another folder with --data DIR",
                    parent.display(),
                    rounded(free),
                    rounded(needed)
                ),
            ));
        }
        let dir = tempfile::Builder::new()
            .prefix("wayhold-bench-")
            .tempdir_in(parent)
            .map_err(|error| unusable(&error))?;
        let kind = statfs(dir.path()).map(|volume| volume.f_type);
        Ok(Self {
            in_memory: kind.is_ok_and(|kind| IN_MEMORY.contains(&kind)),
            dir,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether the file system keeps everything in memory, so that a power failure takes it.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Removes it with everything in it.
    ///
    /// # Errors
    /// When something of it stays.
    pub fn remove(self) -> Result<(), Failure> {
        let path = self.dir.path().to_owned();
        self.dir.close().map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("{} cannot be removed: {error}", path.display()),
            )
        })
    }
}

/// The folder nearest to `path` that exists: its parent, or the parent's, and so on.
pub fn nearest_above(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute
        .ancestors()
        .skip(1)
        .find(|ancestor| ancestor.is_dir())
        .map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// Bytes of all files below `folder` that are there now.
///
/// # Errors
/// When a folder cannot be read; files may vanish meanwhile.
pub fn bytes_below(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // Of a file that is being replaced or unlinked nothing counts.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += if metadata.is_dir() {
            bytes_below(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}

fn rounded(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    show_size(Size(bytes.div_ceil(MIB) * MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_said_in_words_before_anything_is_made() {
        let parent = tempfile::tempdir().unwrap();
        let failure = Folder::make(parent.path(), u64::MAX - (1 << 20)).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message.contains("are needed"), "{failure:?}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_folder_is_new_and_gone_afterwards() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("catalog.db"), "somebody's").unwrap();
        let folder = Folder::make(parent.path(), 1).unwrap();
        std::fs::write(folder.path().join("a"), [0; 10]).unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/c"), [0; 5]).unwrap();
        assert_eq!(bytes_below(folder.path()).unwrap(), 15);
        folder.remove().unwrap();
        assert_eq!(SystemDisk.list(parent.path()).unwrap(), ["catalog.db"]);
        let absent = parent.path().join("absent");
        assert_eq!(Folder::make(&absent, 1).unwrap_err().exit, Exit::Usage);
        assert_eq!(nearest_above(&absent.join("deeper/data")), parent.path());
    }
}
