//! The mark: how far the shard's writer is known to have synced. A preallocated file with two slots
//! that take turns, each with its own checksum, so that a torn write leaves the other one whole.
//!
//! It is overwritten after each commit without a sync of its own and synced at intervals, at sealing
//! and at stop: on disk it may lag behind the truth and is never ahead of it. Rows above it are
//! *unproven*, because SQLite's recovery does not sync what it reads.

use std::io;
use std::path::{Path, PathBuf};

use wayhold_model::hash;

use crate::disk::{Disk, Overwrite, quarantine};
use crate::shards::Owner;

/// Name of the file in the shard's directory.
pub(crate) const MARK: &str = "mark";

/// Most segments a mark speaks of: the active one and the closed ones that may lack an index file.
pub(crate) const SEGMENTS_MAX: usize = crate::options::UNINDEXED_MAX + 1;

/// Ends with the version of the format, a digit. Version 2 says whose the mark is.
const MAGIC: u64 = u64::from_le_bytes(*b"WAYMARK2");
const FILE_BYTES: usize = 2 * SLOT_STRIDE;
const MAGIC_1: u64 = u64::from_le_bytes(*b"WAYMARK1");
const FORMAT: u32 = 2;
/// Slots lie in different pages, so that no single torn write reaches both.
const SLOT_STRIDE: usize = 4096;
const OWNER_WORDS: usize = 2;
const SLOT_BYTES: usize = 8 * (4 + 3 * SEGMENTS_MAX + OWNER_WORDS + 1);
const SLOT_BYTES_1: usize = 8 * (4 + 3 * SEGMENTS_MAX + 1);

/// How far one segment is known to be synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The segment's number; 0 for none.
    pub(crate) segment: u64,
    /// Its last synced sequence.
    pub(crate) last: u64,
    /// Length of its WAL then.
    pub(crate) wal_bytes: u64,
}

/// Why a mark cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MarkError {
    #[error("cannot be read or made: {0}")]
    Io(#[from] io::Error),
    #[error("has format {found}, this binary knows up to {known}")]
    Newer { found: u32, known: u32 },
}

/// Content of the mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Whether the last run stopped cleanly.
    pub(crate) clean: bool,
    /// The newest reach first, then closed segments that may lack an index file.
    pub(crate) reaches: [Reach; SEGMENTS_MAX],
}

/// The open file.
pub(crate) struct MarkFile {
    file: Box<dyn Overwrite>,
    turn: u64,
    owner: Owner,
}

/// What a mark was found to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It was not there.
    Absent,
    /// It was made and never written.
    Blank,
    /// Neither slot is whole: nothing is proven.
    Damaged,
    /// It is whole and belongs to this other shard or node: nothing is proven.
    Foreign(Owner),
    Whole(Mark),
}

impl Found {
    /// The mark, where it is ours and whole.
    pub(crate) fn mark(self) -> Option<Mark> {
        match self {
            Self::Whole(mark) => Some(mark),
            Self::Absent | Self::Blank | Self::Damaged | Self::Foreign(_) => None,
        }
    }

    /// Why it proves nothing, where that is not as it should be.
    pub(crate) fn trouble(self) -> Option<&'static str> {
        match self {
            Self::Absent => Some("is missing"),
            Self::Damaged => Some("is damaged: neither of its slots is whole"),
            Self::Foreign(_) => Some("belongs to another shard or node"),
            Self::Blank | Self::Whole(_) => None,
        }
    }
}

impl Mark {
    /// What is known of one segment.
    pub(crate) fn reach(&self, segment: u64) -> Option<Reach> {
        self.reaches
            .iter()
            .copied()
            .find(|reach| reach.segment == segment && segment != 0)
    }

    /// The newest segment that had a synced row.
    pub(crate) fn newest(&self) -> u64 {
        self.reaches
            .iter()
            .map(|reach| reach.segment)
            .max()
            .unwrap_or(0)
    }
}

impl MarkFile {
    /// Opens the mark, or makes an empty one; what cannot be used is put aside first, under the name that is
    /// returned with it. Without a whole mark everything is unproven.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        owner: Owner,
    ) -> Result<(Self, Found, Option<PathBuf>), MarkError> {
        let (turn, found) = match disk.exists(path)? {
            false => (0, Found::Absent),
            true => look(&disk.read(path)?, owner)?,
        };
        let aside = match found {
            Found::Damaged | Found::Foreign(_) => Some(quarantine(disk, path)?),
            Found::Absent | Found::Blank | Found::Whole(_) => None,
        };
        if found == Found::Absent || aside.is_some() || disk.len(path)? < FILE_BYTES as u64 {
            disk.replace(path, &[0; FILE_BYTES])?;
        }
        let file = disk.overwrite(path)?;
        Ok((Self { file, turn, owner }, found, aside))
    }

    /// Overwrites the older slot; not synced.
    pub(crate) fn write(&mut self, mark: &Mark) -> io::Result<()> {
        self.turn += 1;
        let offset = (self.turn % 2) * SLOT_STRIDE as u64;
        self.file
            .write_at(&encode(self.turn, mark, self.owner), offset)
    }

    /// Syncs what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// What the bytes of a mark's file say to its owner.
pub(crate) fn read(bytes: &[u8], owner: Owner) -> Result<Found, MarkError> {
    Ok(look(bytes, owner)?.1)
}

/// Whose a mark is, where it says so.
pub(crate) fn owner(bytes: &[u8]) -> Option<Owner> {
    let slots = bytes.chunks(SLOT_STRIDE).filter_map(decode);
    slots.max_by_key(|slot| slot.turn)?.owner
}

fn look(bytes: &[u8], owner: Owner) -> Result<(u64, Found), MarkError> {
    let newest = bytes
        .chunks(SLOT_STRIDE)
        .filter_map(decode)
        .max_by_key(|slot| slot.turn);
    // One that was cut short has lost a slot, perhaps the newer one: it is named and proves nothing.
    if let Some(slot) = newest.filter(|_| bytes.len() >= FILE_BYTES) {
        return Ok(match slot.owner {
            Some(other) if other != owner => (0, Found::Foreign(other)),
            _ => (slot.turn, Found::Whole(slot.mark)),
        });
    }
    match bytes.chunks(SLOT_STRIDE).filter_map(version).max() {
        Some(found) if found > FORMAT => Err(MarkError::Newer {
            found,
            known: FORMAT,
        }),
        _ if bytes.len() == FILE_BYTES && bytes.iter().all(|byte| *byte == 0) => {
            Ok((0, Found::Blank))
        }
        _ => Ok((0, Found::Damaged)),
    }
}

/// The version that a slot begins with.
fn version(slot: &[u8]) -> Option<u32> {
    let name = MAGIC.to_le_bytes();
    let (_, name) = name.split_last()?;
    let digit = slot.strip_prefix(name)?.first()?;
    char::from(*digit).to_digit(10)
}

fn encode(turn: u64, mark: &Mark, owner: Owner) -> [u8; SLOT_BYTES] {
    let head = [
        MAGIC,
        turn,
        u64::from(mark.clean),
        mark.reaches.len() as u64,
    ];
    let reaches = mark
        .reaches
        .iter()
        .flat_map(|reach| [reach.segment, reach.last, reach.wal_bytes]);
    let place = u64::from(owner.generation) << 16 | u64::from(owner.shard);
    let words = head.into_iter().chain(reaches).chain([place, owner.node]);
    let mut slot = [0; SLOT_BYTES];
    for (bytes, word) in slot.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let (body, check) = slot.split_at_mut(SLOT_BYTES - 8);
    check.copy_from_slice(&hash::checksum(body, MAGIC).to_le_bytes());
    slot
}

/// A whole slot.
struct Slot {
    turn: u64,
    mark: Mark,
    /// `None` in version 1.
    owner: Option<Owner>,
}

/// A slot of either version; `None` where it is not whole.
fn decode(slot: &[u8]) -> Option<Slot> {
    decode_as(slot, MAGIC, SLOT_BYTES).or_else(|| decode_as(slot, MAGIC_1, SLOT_BYTES_1))
}

fn decode_as(slot: &[u8], magic: u64, bytes: usize) -> Option<Slot> {
    let (body, check) = slot.get(..bytes)?.split_at_checked(bytes - 8)?;
    if hash::checksum(body, magic).to_le_bytes() != check {
        return None;
    }
    let mut words = body
        .chunks(8)
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    if words.next()? != magic {
        return None;
    }
    let turn = words.next()?;
    let clean = words.next()? != 0;
    words.next()?;
    let mut mark = Mark {
        clean,
        ..Mark::default()
    };
    for reach in &mut mark.reaches {
        *reach = Reach {
            segment: words.next()?,
            last: words.next()?,
            wal_bytes: words.next()?,
        };
    }
    let owner = match (words.next(), words.next()) {
        (Some(place), Some(node)) => Some(Owner {
            generation: u32::try_from(place >> 16).ok()?,
            shard: u16::try_from(place & 0xffff).ok()?,
            node,
        }),
        _ => None,
    };
    Some(Slot { turn, mark, owner })
}

#[cfg(test)]
mod tests {
    use wayhold_model::{Generation, ShardId};

    use super::*;
    use crate::disk::SystemDisk;

    fn mark(last: u64) -> Mark {
        let mut mark = Mark::default();
        mark.reaches[0] = Reach {
            segment: 3,
            last,
            wal_bytes: 4152,
        };
        mark
    }

    fn owner() -> Owner {
        Owner::new(Generation(1), ShardId(2), 42)
    }

    fn open(path: &Path) -> (MarkFile, Found) {
        let (file, found, _) = MarkFile::open(&SystemDisk, path, owner()).unwrap();
        (file, found)
    }

    fn found(bytes: &[u8]) -> Found {
        read(bytes, owner()).unwrap()
    }

    #[test]
    fn the_newest_whole_slot_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let (mut file, content) = open(&path);
        assert_eq!(content, Found::Absent);
        assert_eq!(open(&path).1, Found::Blank);
        for last in 1..=5 {
            file.write(&mark(last)).unwrap();
            assert_eq!(open(&path).1, Found::Whole(mark(last)));
        }
    }

    #[test]
    fn a_torn_or_flipped_slot_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let (mut file, _) = open(&path);
        file.write(&mark(1)).unwrap();
        file.write(&mark(2)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for offset in 0..SLOT_BYTES {
            let mut damaged = whole.clone();
            damaged[offset] ^= 0x40;
            assert_eq!(found(&damaged), Found::Whole(mark(1)), "byte {offset}");
        }
    }

    #[test]
    fn a_mark_of_format_1_is_read_and_the_next_one_says_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut slot = encode(7, &mark(3), owner());
        slot[..8].copy_from_slice(&MAGIC_1.to_le_bytes());
        let check = hash::checksum(&slot[..SLOT_BYTES_1 - 8], MAGIC_1);
        slot[SLOT_BYTES_1 - 8..SLOT_BYTES_1].copy_from_slice(&check.to_le_bytes());
        let mut older = vec![0; FILE_BYTES];
        older[SLOT_STRIDE..SLOT_STRIDE + SLOT_BYTES_1].copy_from_slice(&slot[..SLOT_BYTES_1]);
        std::fs::write(&path, &older).unwrap();
        let (mut file, content) = open(&path);
        assert_eq!(content, Found::Whole(mark(3)));
        file.write(&mark(4)).unwrap();
        assert_eq!(open(&path).1, Found::Whole(mark(4)));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(super::owner(&bytes), Some(owner()));
    }

    #[test]
    fn a_mark_of_another_shard_or_node_proves_nothing_and_is_put_aside() {
        for other in [
            Owner::new(Generation(2), ShardId(2), 42),
            Owner::new(Generation(1), ShardId(3), 42),
            Owner::new(Generation(1), ShardId(2), 43),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("mark");
            let (mut file, _, _) = MarkFile::open(&SystemDisk, &path, other).unwrap();
            file.write(&mark(9)).unwrap();
            let (_, found, aside) = MarkFile::open(&SystemDisk, &path, owner()).unwrap();
            assert_eq!(found, Found::Foreign(other));
            let kept = std::fs::read(aside.unwrap()).unwrap();
            assert_eq!(super::owner(&kept), Some(other));
            assert_eq!(open(&path).1, Found::Blank);
        }
    }

    #[test]
    fn a_newer_mark_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut newer = vec![0; FILE_BYTES];
        newer[..8].copy_from_slice(b"WAYMARK3");
        std::fs::write(&path, &newer).unwrap();
        let refused = MarkFile::open(&SystemDisk, &path, owner()).err().unwrap();
        assert!(
            matches!(refused, MarkError::Newer { found: 3, known: 2 }),
            "{refused}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), newer);
    }

    #[test]
    fn a_mark_with_no_whole_slot_proves_nothing_and_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        std::fs::write(&path, b"short").unwrap();
        let (_, found, aside) = MarkFile::open(&SystemDisk, &path, owner()).unwrap();
        assert_eq!(found, Found::Damaged);
        assert_eq!(std::fs::read(aside.unwrap()).unwrap(), b"short");
    }
}
