//! The demo's first destination, a file, read as it grows.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;

use super::super::rehearsal::proof::Step;
use super::super::rehearsal::receiver::Told;

/// What arrived in the file, in its order.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    offset: u64,
    arrived: Vec<Step>,
}

#[derive(Deserialize)]
struct Line {
    data: Told,
}

impl Archive {
    /// A file that may not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            offset: 0,
            arrived: Vec::new(),
        }
    }

    /// What arrived so far.
    pub fn arrived(&self) -> &[Step] {
        &self.arrived
    }

    /// Reads the lines that were added; a last line without its end is left for later, since a kill
    /// may have torn it.
    ///
    /// # Errors
    /// When the file cannot be read, or a line is no event of the demo.
    pub fn follow(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut added = Vec::new();
        #[expect(clippy::verbose_file_reads, reason = "only what was added is read")]
        file.read_to_end(&mut added)?;
        for line in added.split_inclusive(|&byte| byte == b'\n') {
            if !line.ends_with(b"\n") {
                break;
            }
            let Line {
                data: Told { order, step },
            } = serde_json::from_slice(line)?;
            self.arrived.push(Step { order, step });
            self.offset += line.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn whole_lines_are_read_once_and_a_torn_one_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.ndjson");
        let mut archive = Archive::new(path.clone());
        archive.follow().unwrap();
        let mut file = File::create(path).unwrap();
        file.write_all(b"{\"id\":\"1\",\"data\":{\"order\":7,\"step\":1}}\n{\"data\":{\"ord")
            .unwrap();
        archive.follow().unwrap();
        archive.follow().unwrap();
        assert_eq!(archive.arrived(), [Step { order: 7, step: 1 }]);
        file.write_all(b"er\":7,\"step\":2}}\n").unwrap();
        archive.follow().unwrap();
        assert_eq!(archive.arrived().len(), 2);
    }
}
