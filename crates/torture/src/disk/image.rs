//! What a disk holds at one moment.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Files and directories of a tree, by path relative to its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    directories: Vec<PathBuf>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// Directories come in before what they hold.
    pub(crate) fn new(directories: Vec<PathBuf>, files: BTreeMap<PathBuf, Vec<u8>>) -> Self {
        Self { directories, files }
    }

    pub(crate) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    pub(crate) fn files(&self) -> &BTreeMap<PathBuf, Vec<u8>> {
        &self.files
    }

    /// Makes `root` hold exactly this.
    pub(crate) fn write_to(&self, root: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(root)?;
        for directory in &self.directories {
            std::fs::create_dir(root.join(directory))?;
        }
        for (path, content) in &self.files {
            std::fs::write(root.join(path), content)?;
        }
        Ok(())
    }
}
