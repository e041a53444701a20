//! The files of an export, as they are written. Whoever holds the ledger hands in records, hashes and payloads in the order in
//! which they come; nothing is held in memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use wayhold_model::ledger::export::{self, Keys};
use wayhold_model::ledger::note::Note;
use wayhold_model::ledger::{Hash, Salt};

/// An export that is being written.
#[derive(Debug)]
pub struct ExportWriter {
    dir: PathBuf,
    records: BufWriter<File>,
    leaves: BufWriter<File>,
}

impl ExportWriter {
    /// Begins in a directory that is empty or absent.
    ///
    /// # Errors
    ///
    /// It holds something, or cannot be written.
    pub fn create(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        if fs::read_dir(dir)?.next().is_some() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the directory is not empty",
            ));
        }
        fs::create_dir(dir.join(export::PAYLOADS))?;
        let file = |name| File::create_new(dir.join(name)).map(BufWriter::new);
        Ok(Self {
            dir: dir.to_owned(),
            records: file(export::RECORDS)?,
            leaves: file(export::LEAVES)?,
        })
    }

    /// The hash of the next leaf, from that of record 0 on.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn leaf(&mut self, leaf: Hash) -> io::Result<()> {
        writeln!(self.leaves, "{leaf}")
    }

    /// The next record, in canonical form.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn record(&mut self, record: &[u8]) -> io::Result<()> {
        self.records.write_all(record)?;
        self.records.write_all(b"\n")
    }

    /// A payload, in any order.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn payload(&mut self, commitment: Hash, salt: &Salt, payload: &[u8]) -> io::Result<()> {
        let dir = self.dir.join(export::PAYLOADS);
        fs::write(dir.join(commitment.to_string()), payload)?;
        let name = format!("{commitment}{}", export::SALT_SUFFIX);
        fs::write(dir.join(name), format!("{}\n", Hash(salt.0)))
    }

    /// Ends it. The checkpoint comes last: an export without one was cut off.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn finish(self, keys: &Keys, checkpoint: &Note) -> io::Result<()> {
        for file in [self.records, self.leaves] {
            file.into_inner()?.sync_all()?;
        }
        fs::write(self.dir.join(export::KEYS), keys.to_text())?;
        fs::write(self.dir.join(export::CHECKPOINT), checkpoint.to_string())
    }
}
