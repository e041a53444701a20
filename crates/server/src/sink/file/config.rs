//! Keys of `kind = "file"`.

use std::path::PathBuf;

use crate::config::Section;

/// A file destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// The file; made when absent, appended to otherwise.
    pub path: PathBuf,
    /// Past this many bytes the file is renamed to `path.N` and a new one begins.
    pub rotate_bytes: u64,
}

impl FileConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>) -> Option<Self> {
        const MIB: u64 = 1024 * 1024;
        // Below a kilobyte every event would be a file of its own.
        let rotate_bytes = section.bytes_within("rotate_size", 64 * MIB, 1024, MIB * MIB);
        let path = section.require("path", "\"delivered.ndjson\"")?;
        Some(Self { path, rotate_bytes })
    }
}
