//! One segment of a stopped store: its database, wherever it lies, and its index file.

use std::path::{Path, PathBuf};

use super::files::{Kind, ShardFiles};
use crate::disk::Disk;
use crate::shard::index_file::{Identity, IndexError, IndexFile};
use crate::shard::recent::Recent;
use crate::shard::row::Row;
use crate::shard::segment::{database_path, index_path};
use crate::shard::segment_file::{SegmentError, SegmentReader};

/// What was read of the index file of one segment.
pub(super) enum Index {
    Absent,
    Unusable(IndexError),
    Open(Box<IndexFile>),
}

impl Index {
    /// Opens the index file of that number.
    pub(super) fn open(disk: &dyn Disk, files: &ShardFiles, number: u64) -> Self {
        if !files.has(Kind::Index(number)) {
            return Self::Absent;
        }
        match IndexFile::open(disk, &index_path(&files.dir, number)) {
            Ok(file) => Self::Open(Box::new(file)),
            Err(error) => Self::Unusable(error),
        }
    }

    /// The last sequence that was acknowledged of this segment, where the index file is the segment's own.
    pub(super) fn sealed_at(&self, identity: Identity) -> Option<u64> {
        match self {
            Self::Open(file) if file.identity == identity => Some(file.last),
            _ => None,
        }
    }
}

/// A database that holds a segment of this node.
pub(super) struct Database {
    pub(super) path: PathBuf,
    pub(super) reader: SegmentReader,
    pub(super) identity: Identity,
    /// Seed of the node that wrote it.
    pub(super) seed: u64,
}

impl Database {
    /// Opens a database.
    pub(super) fn open(path: &Path) -> Result<Self, SegmentError> {
        let (reader, identity, seed) = SegmentReader::examine(path)?;
        Ok(Self {
            path: path.to_owned(),
            reader,
            identity,
            seed,
        })
    }

    /// Whether it is the one that belongs at that place.
    pub(super) fn belongs(&self, files: &ShardFiles, number: u64, seed: Option<u64>) -> bool {
        self.identity.number == number
            && self.identity.generation == files.generation.0
            && self.identity.shard == files.shard.0
            && seed.is_none_or(|seed| seed == self.seed)
    }

    /// Reads every row: the whole ones go to `take`, of the others the sequences are returned, and what
    /// the system said where not everything could be read.
    pub(super) fn rows(&self, mut take: impl FnMut(Row)) -> (Vec<u64>, Option<String>) {
        let mut damaged = Vec::new();
        let whole = self.reader.each(|row| match row {
            Ok(row) => take(row),
            Err(row) => damaged.push(row.sequence),
        });
        (damaged, whole.err().map(|error| error.to_string()))
    }

    /// The index that its rows up to `sealed_at` make, with what is damaged.
    pub(super) fn index(&self, sealed_at: Option<u64>) -> (Recent, Vec<u64>, Option<String>) {
        let mut recent = Recent::default();
        let last = sealed_at.unwrap_or(u64::MAX);
        let (damaged, error) = self.rows(|row| {
            if row.stored.position.sequence.0 <= last {
                recent.push(&row);
            }
        });
        (recent, damaged, error)
    }
}

/// Most segments that are asked for the hash seed of their node: enough to tell the files of another one.
const WITNESSES_MAX: usize = 9;

/// The hash seeds that readable segments name, newest first.
pub(super) fn seeds(shards: &[ShardFiles]) -> Vec<u64> {
    let newest = shards.iter().flat_map(|files| {
        let numbers = files.segments().into_iter().rev();
        numbers.map(|number| database_path(&files.dir, number))
    });
    newest
        .filter_map(|path| Some(SegmentReader::examine(&path).ok()?.2))
        .take(WITNESSES_MAX)
        .collect()
}

/// Whether there are witnesses and none of them is of the node with this seed.
pub(super) fn is_foreign(seed: u64, witnesses: &[u64]) -> bool {
    !witnesses.is_empty() && !witnesses.contains(&seed)
}

/// The seed that most of them name, for where there is no catalogue.
pub(super) fn most_frequent(seeds: &[u64]) -> Option<u64> {
    let count = |seed: &u64| seeds.iter().filter(|other| *other == seed).count();
    seeds.iter().copied().max_by_key(count)
}
