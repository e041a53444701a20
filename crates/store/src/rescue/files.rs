//! What lies in the directory of a shard, by the names of the files alone.

use std::path::{Path, PathBuf};

use wayhold_model::{Generation, ShardId};

use crate::disk::{Disk, with_suffix};
use crate::error::OpenError;
use crate::opening::shard_directory;
use crate::shard::mark::MARK;
use crate::shards::Name;

/// What a name says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The database of a segment.
    Segment(u64),
    /// What SQLite keeps beside the database of a segment.
    SegmentPart(u64),
    /// The index file of a segment.
    Index(u64),
    Mark,
    /// A state file.
    State(u64),
    /// What SQLite keeps beside a state file.
    StatePart,
    /// On its way into place or away: the next start removes or completes it.
    Passing,
    /// Put aside earlier.
    Quarantined,
    Unknown,
}

/// One shard's directory.
#[derive(Debug)]
pub(super) struct ShardFiles {
    pub(super) generation: Generation,
    pub(super) shard: ShardId,
    pub(super) dir: PathBuf,
    /// Whether it is there.
    pub(super) exists: bool,
    /// Names in it, ascending, with their kinds.
    pub(super) names: Vec<(String, Kind)>,
}

impl ShardFiles {
    /// Lists the directory of a shard.
    pub(super) fn list(
        disk: &dyn Disk,
        data: &Path,
        generation: Generation,
        shard: ShardId,
    ) -> Result<Self, OpenError> {
        let dir = shard_directory(data, generation, shard);
        let unreadable = |error: std::io::Error| OpenError::Unusable {
            path: dir.clone(),
            reason: error.to_string(),
        };
        let exists = disk.exists(&dir).map_err(unreadable)?;
        let mut names: Vec<(String, Kind)> = match exists {
            true => disk.list(&dir).map_err(unreadable)?,
            false => Vec::new(),
        }
        .into_iter()
        .map(|name| name.to_string_lossy().into_owned())
        .map(|name| (name.clone(), kind_of(&name)))
        .collect();
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Self {
            generation,
            shard,
            exists,
            names,
            dir,
        })
    }

    /// What people call it: `g1.s0`.
    pub(super) fn name(&self) -> String {
        Name(self.generation, self.shard).to_string()
    }

    /// Numbers of segments that have a database or an index file, ascending.
    pub(super) fn segments(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .names
            .iter()
            .filter_map(|(_, kind)| match kind {
                Kind::Segment(number) | Kind::Index(number) => Some(*number),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Numbers of state files, ascending.
    pub(super) fn states(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self
            .names
            .iter()
            .filter_map(|(_, kind)| match kind {
                Kind::State(number) => Some(*number),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Whether there is a file of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.names.iter().any(|(_, other)| *other == kind)
    }

    /// Paths of files of this kind.
    pub(super) fn paths(&self, kind: Kind) -> impl Iterator<Item = PathBuf> {
        self.names
            .iter()
            .filter(move |(_, other)| *other == kind)
            .map(|(name, _)| self.dir.join(name))
    }

    /// Databases of segments that were put aside earlier.
    pub(super) fn aside(&self) -> Vec<PathBuf> {
        self.names
            .iter()
            .filter(|(name, kind)| *kind == Kind::Quarantined && is_database_aside(name))
            .map(|(name, _)| self.dir.join(name))
            .collect()
    }
}

/// `7.db.quarantined.1`, but not what lies beside it.
fn is_database_aside(name: &str) -> bool {
    let Some((segment, number)) = name.split_once(".db.quarantined.") else {
        return false;
    };
    segment.parse::<u64>().is_ok() && number.parse::<u32>().is_ok()
}

fn kind_of(name: &str) -> Kind {
    if name == MARK {
        return Kind::Mark;
    }
    if name.contains(".quarantined.") {
        return Kind::Quarantined;
    }
    let (stem, rest) = name.split_once('.').unwrap_or((name, ""));
    let is_part = matches!(rest, "db-wal" | "db-shm" | "db-journal");
    if let Some(number) = stem.strip_prefix("state-") {
        return match number.parse() {
            Ok(number) if rest == "db" => Kind::State(number),
            Ok(_) if is_part => Kind::StatePart,
            _ => Kind::Unknown,
        };
    }
    match (stem.parse(), rest) {
        (Ok(number), "db") => Kind::Segment(number),
        (Ok(number), "idx") => Kind::Index(number),
        (Ok(number), _) if is_part => Kind::SegmentPart(number),
        (Ok(_), "db.gone" | "db.new" | "db.new-wal" | "db.new-shm" | "db.new-journal") => {
            Kind::Passing
        }
        _ if name.ends_with(".tmp") => Kind::Passing,
        _ => Kind::Unknown,
    }
}

/// Bytes of a database and of its log; 0 for what is absent.
pub(super) fn sizes(disk: &dyn Disk, database: &Path) -> (u64, u64) {
    let bytes = |path: &Path| disk.len(path).unwrap_or(0);
    (bytes(database), bytes(&with_suffix(database, "-wal")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_a_file_is() {
        for (name, kind) in [
            ("mark", Kind::Mark),
            ("7.db", Kind::Segment(7)),
            ("7.db-wal", Kind::SegmentPart(7)),
            ("7.idx", Kind::Index(7)),
            ("7.idx.tmp", Kind::Passing),
            ("7.db.gone", Kind::Passing),
            ("state-2.db", Kind::State(2)),
            ("state-2.db-shm", Kind::StatePart),
            ("state-x.db", Kind::Unknown),
            ("7.db.quarantined.1", Kind::Quarantined),
            ("notes.txt", Kind::Unknown),
            ("7", Kind::Unknown),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
        let is_database = [
            "7.db.quarantined.1",
            "7.db.quarantined.1-wal",
            "7.idx.quarantined.1",
        ]
        .map(is_database_aside);
        assert_eq!(is_database, [true, false, false]);
    }
}
