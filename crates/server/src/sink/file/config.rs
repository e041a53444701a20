//! Keys of `kind = "file"`.

use std::path::PathBuf;

/// A file destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// The file; made when absent, appended to otherwise.
    pub path: PathBuf,
    /// Past this many bytes the file is renamed to `path.N` and a new one begins.
    pub rotate_bytes: u64,
}
