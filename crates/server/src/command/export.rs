//! The files of an export, as they are written. Whoever holds the ledger hands in records, hashes and payloads in the order in
//! which they come; nothing is held in memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;
use wayhold_model::ledger::export::{self, Keys};
use wayhold_model::ledger::note::{Note, SigningNoteKey, VerifierKey};
use wayhold_model::ledger::tile::Tile;
use wayhold_model::ledger::{Checkpoint, Hash, Salt};
use wayhold_store::OpenError;
use wayhold_store::commands::{CommandsError, LedgerFile, Payload, View};

use super::ledger_key::{self, KeyError};

/// Records that are read at once: a few megabytes at most.
const PAGE: u32 = 256;

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

/// What was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Records that were written.
    pub records: u64,
    /// Records of the tree, those that are no longer held too.
    pub size: u64,
    /// Payloads that were written.
    pub payloads: u64,
    /// The checkpoint.
    pub checkpoint: Note,
}

/// Why there is no export.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The data directory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file of commands.
    #[error(transparent)]
    Commands(#[from] CommandsError),
    /// Nothing was ever recorded.
    #[error("the store never had a command, so there is no ledger")]
    None,
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The ledger has no key to sign with.
    #[error(
        "the key that is to sign is not known to the ledger yet; start the server on the data directory once"
    )]
    NoKey,
    /// A key in the ledger is none.
    #[error("commands.db holds a key of the ledger that is none: {0}")]
    Unfit(String),
    /// The export cannot be written.
    #[error("{path}: {error}", path = path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Exports the ledger in a data directory, of a stopped store or beside a running server, into a directory that is empty or
/// absent. Blocking; nothing in the data directory is changed.
///
/// # Errors
/// There is nothing to export, or no key to sign with, or one of the directories cannot be used.
pub fn export(data: &Path, out: &Path) -> Result<Exported, ExportError> {
    let file = LedgerFile::open(data)?.ok_or(ExportError::None)?;
    let key = ledger_key::load(data)?.ok_or(ExportError::NoKey)?;
    file.read(|view| write(view, &key, out))
}

fn write(view: &View<'_>, key: &SigningNoteKey, out: &Path) -> Result<Exported, ExportError> {
    let verifier = key.public().to_string();
    let known = view.ledger_keys()?;
    if !known
        .iter()
        .any(|one| one.verifier == verifier && !one.is_retired)
    {
        return Err(ExportError::NoKey);
    }
    let keys = known.into_iter().map(|one| {
        let parsed = one.verifier.parse::<VerifierKey>();
        parsed.map_err(|_| ExportError::Unfit(one.verifier))
    });
    let head = view.ledger_head()?;
    let keys = Keys {
        first: view.first_record()?,
        keys: keys.collect::<Result<_, _>>()?,
    };
    let checkpoint = Checkpoint {
        origin: key.public().name().to_owned(),
        head,
        extensions: Vec::new(),
    };
    let failed = |error| ExportError::Write {
        path: out.to_owned(),
        error,
    };
    let mut exported = Exported {
        records: 0,
        size: head.size,
        payloads: 0,
        checkpoint: checkpoint.sign(key),
    };
    let mut export = ExportWriter::create(out).map_err(failed)?;
    let tiles = (0..).map_while(|number| Tile::in_tree(0, number, head.size));
    for tile in tiles {
        for leaf in view.tile(tile)?.into_iter().flatten() {
            export.leaf(leaf).map_err(failed)?;
        }
    }
    let mut next = keys.first;
    while next < head.size {
        let rows = view.records(next, PAGE)?;
        for row in &rows {
            export.record(&row.record).map_err(failed)?;
            for payload in view.payloads(row.idx)? {
                let Payload {
                    commitment,
                    salt,
                    bytes,
                } = payload;
                export.payload(commitment, &salt, &bytes).map_err(failed)?;
                exported.payloads += 1;
            }
        }
        let Some(last) = rows.last() else {
            break;
        };
        next = last.idx + 1;
        exported.records += rows.len() as u64;
    }
    export.finish(&keys, &exported.checkpoint).map_err(failed)?;
    Ok(exported)
}
