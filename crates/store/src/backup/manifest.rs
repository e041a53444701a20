//! What a backup consists of: the file that is written last, and without which there is no backup.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use wayhold_model::hash;

/// Name of the file in the backup's directory.
pub(crate) const MANIFEST: &str = "manifest.json";

/// Version of the format of manifest and directory; a newer one is refused.
pub(crate) const FORMAT: u32 = 1;

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    pub format: u32,
    /// The node that it is a copy of.
    pub node_id: String,
    /// When it was begun, in microseconds since the epoch: what was acknowledged before is in it.
    pub begun_at: u64,
    /// When it was complete, in microseconds since the epoch.
    pub made_at: u64,
    /// Whether the store ran meanwhile; otherwise it holds everything.
    pub online: bool,
    /// The shards, oldest generation first.
    pub shards: Vec<ShardCopy>,
    /// Every file of it, this one excepted.
    pub files: Vec<FileCopy>,
    /// What the store itself could not read, with the reason: it is in the backup no more than in the store.
    pub left_out: Vec<String>,
}

/// How far the copy of one shard reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCopy {
    /// Its generation.
    pub generation: u32,
    /// Its number.
    pub shard: u16,
    /// The last sequence in it; 0 where it holds none.
    pub last_sequence: u64,
    /// When that was accepted, in microseconds since the epoch: what was accepted later is not in the backup.
    /// Absent where it holds none, and where the store did not run.
    pub last_accepted_at: Option<u64>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCopy {
    /// Path below the backup's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// XXH3-64 of its content, as 16 hexadecimal digits.
    pub checksum: String,
}

/// The file: a manifest and its own checksum.
#[derive(Serialize, Deserialize)]
struct Sealed {
    manifest: Manifest,
    checksum: String,
}

/// Why a file is not a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Damaged, or something else.
    Damaged(String),
    /// Of a newer version.
    Newer(u32),
}

impl Manifest {
    /// The content of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let sealed = Sealed {
            checksum: self.checksum(),
            manifest: self.clone(),
        };
        // Maps with text as keys, texts and numbers: nothing that JSON cannot express.
        let mut text = serde_json::to_vec_pretty(&sealed).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Reads the file, whose every byte but blanks between its parts is covered by its checksum.
    pub(super) fn decode(text: &[u8]) -> Result<Self, Unreadable> {
        let damaged = |error: serde_json::Error| Unreadable::Damaged(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
        let format = value
            .pointer("/manifest/format")
            .and_then(serde_json::Value::as_u64);
        match format.and_then(|format| u32::try_from(format).ok()) {
            Some(format) if format > FORMAT => return Err(Unreadable::Newer(format)),
            Some(_) => {}
            None => return Err(Unreadable::Damaged("it names no format".to_owned())),
        }
        let sealed: Sealed = serde_json::from_slice(text).map_err(damaged)?;
        if sealed.manifest.checksum() != sealed.checksum {
            return Err(Unreadable::Damaged(
                "it does not match its checksum".to_owned(),
            ));
        }
        Ok(sealed.manifest)
    }

    /// Checksum of the manifest in its shortest form, which also tells one backup from another.
    pub(super) fn checksum(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        hexadecimal(hash::checksum(&text, 0))
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl FileCopy {
    /// Where the file lies below `directory`; `None` for a name that no backup has.
    pub(super) fn below(&self, directory: &Path) -> Option<PathBuf> {
        is_ours(&self.name).then(|| directory.join(&self.name))
    }
}

/// Whether a backup has files of such a name: the catalogue, commands, and plain names in the directories of shards.
pub(super) fn is_ours(name: &str) -> bool {
    let parts: Vec<&str> = Path::new(name)
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    // Only what is written as it is understood: no `..`, no root, no doubled separator.
    parts.join("/") == name
        && match parts.as_slice() {
            [file] => matches!(
                *file,
                "catalog.db" | "catalog.db-wal" | "commands.db" | "commands.db-wal"
            ),
            [generation, shard, file] => {
                number_after(generation, 'g') && number_after(shard, 's') && is_of_shard(file)
            }
            _ => false,
        }
}

fn number_after(name: &str, letter: char) -> bool {
    name.strip_prefix(letter)
        .is_some_and(|number| number.parse::<u32>().is_ok_and(|n| n.to_string() == number))
}

/// Whether a shard keeps a file of that name for good. Quarantined files are for a person and stay where
/// they are; what is half made or half removed is nothing, but for a compacted database that may count already.
pub(super) fn is_of_shard(name: &str) -> bool {
    let Some((stem, ending)) = name.split_once('.') else {
        return name == crate::shard::mark::MARK;
    };
    let number = stem.strip_prefix("state-").unwrap_or(stem);
    let is_state = number.len() < stem.len();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        && (matches!(ending, "db" | "db-wal") || (matches!(ending, "idx" | "db.new") && !is_state))
}

/// A checksum as text.
pub(super) fn hexadecimal(checksum: u64) -> String {
    format!("{checksum:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            node_id: "0123".to_owned(),
            begun_at: 5,
            made_at: 6,
            online: true,
            shards: vec![ShardCopy {
                generation: 1,
                shard: 0,
                last_sequence: 9,
                last_accepted_at: Some(4),
            }],
            files: vec![FileCopy {
                name: "g1/s0/1.db".to_owned(),
                bytes: 4096,
                checksum: hexadecimal(7),
            }],
            left_out: Vec::new(),
        }
    }

    #[test]
    fn what_was_written_is_read_back_and_any_flipped_bit_that_means_something_is_found() {
        let manifest = manifest();
        let text = manifest.encode();
        assert_eq!(Manifest::decode(&text).unwrap(), manifest);
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            let read = Manifest::decode(&damaged);
            assert!(read.is_err() || read == Ok(manifest.clone()), "byte {at}");
        }
        for length in 0..text.len() - 1 {
            assert!(Manifest::decode(&text[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_newer_one_is_told_from_a_damaged_one() {
        let newer = br#"{"manifest":{"format":2,"what":["is","new"]},"checksum":"x"}"#;
        assert_eq!(Manifest::decode(newer), Err(Unreadable::Newer(2)));
        for other in [b"{}".as_slice(), b"SQLite format 3\0", b"[]", b""] {
            assert!(matches!(
                Manifest::decode(other),
                Err(Unreadable::Damaged(_))
            ));
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        for ours in [
            "catalog.db",
            "g1/s0/1.db",
            "g1001/s63/17.db-wal",
            "g1/s0/1.idx",
            "g1/s0/9.db.new",
            "g1/s0/state-3.db",
            "g1/s0/state-3.db-wal",
            "g1/s0/mark",
        ] {
            assert!(is_ours(ours), "{ours}");
        }
        for foreign in [
            "",
            "/etc/passwd",
            "../catalog.db",
            "g1/../catalog.db",
            "g1/s0/../../catalog.db",
            "g1//s0/1.db",
            "./catalog.db",
            "g1/s0/1.db-shm",
            "g1/s0/1.db.gone",
            "g1/s0/1.idx.tmp",
            "g1/s0/1.db.quarantined.1",
            "g1/s0/state-1.idx",
            "g1/s0/9.db.new-wal",
            "g1/s0/state-.db",
            "g01/s0/1.db",
            "LOCK",
            "reserve",
            "manifest.json",
        ] {
            assert!(!is_ours(foreign), "{foreign}");
        }
    }
}
