//! A memory limit on a process and what it reads and writes: a control group of its own, made and removed
//! here, which takes root. The page cache counts, so that what was read from disk takes room too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::BenchError;

/// Where control groups are, in version 2 and in version 1.
const UNIFIED: &str = "/sys/fs/cgroup";
const MEMORY_V1: &str = "/sys/fs/cgroup/memory";

/// A group whose processes together may hold so much memory. Removed when dropped; its processes have to be
/// gone by then.
#[derive(Debug)]
pub struct MemoryLimit {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryLimit {
    /// A group with this limit, in bytes.
    ///
    /// # Errors
    /// There is no control group here that could be made: no right to, or no memory controller.
    pub fn make(bytes: u64) -> Result<Self, BenchError> {
        let (root, version) = if fs::exists(Path::new(UNIFIED).join("cgroup.controllers"))? {
            (UNIFIED, Version::Two)
        } else {
            (MEMORY_V1, Version::One)
        };
        let path = Path::new(root).join(format!("wayhold-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| cannot(&path, &error))?;
        // From here on it is removed, whatever happens.
        let limit = Self { path, version };
        for (file, value) in limit.settings(bytes) {
            let file = limit.path.join(file);
            fs::write(&file, value).map_err(|error| cannot(&file, &error))?;
        }
        Ok(limit)
    }

    fn settings(&self, bytes: u64) -> Vec<(&'static str, String)> {
        match self.version {
            Version::One => vec![("memory.limit_in_bytes", bytes.to_string())],
            // Nothing may be moved to where it is not counted.
            Version::Two => vec![
                ("memory.max", bytes.to_string()),
                ("memory.swap.max", "0".to_owned()),
            ],
        }
    }

    /// A command that belongs to the group from its first byte on.
    pub fn enter(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.path.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// The most memory that its processes ever held, page cache included, in bytes.
    ///
    /// # Errors
    /// The kernel does not tell: in version 2 it has to be 5.19 or newer.
    pub fn peak(&self) -> Result<u64, BenchError> {
        let file = self.path.join(match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        });
        let text = fs::read_to_string(&file).map_err(|error| cannot(&file, &error))?;
        Ok(text.trim().parse()?)
    }

    /// What enforces it.
    pub fn kind(&self) -> &'static str {
        match self.version {
            Version::One => "cgroup version 1",
            Version::Two => "cgroup version 2",
        }
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A process that has just ended may still count for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> BenchError {
    format!(
        "no memory limit can be set: {}: {error}; it takes root and a control group with a memory controller",
        path.display()
    )
    .into()
}
