//! The mark: how far the shard's writer is known to have synced. A preallocated file with two slots
//! that take turns, each with its own checksum, so that a torn write leaves the other one whole.
//!
//! It is overwritten after each commit without a sync of its own and synced at intervals, at sealing
//! and at stop: on disk it may lag behind the truth and is never ahead of it. Rows above it are
//! *unproven*, because SQLite's recovery does not sync what it reads.

use std::io;
use std::path::Path;

use wayhold_model::hash;

use crate::disk::{Disk, Overwrite};

/// Name of the file in the shard's directory.
pub(crate) const MARK: &str = "mark";

/// Most segments a mark speaks of: the active one and the closed ones that may lack an index file.
pub(crate) const SEGMENTS_MAX: usize = crate::options::UNINDEXED_MAX + 1;

/// Ends with the version of the format, a digit.
const MAGIC: u64 = u64::from_le_bytes(*b"WAYMARK1");
const FORMAT: u32 = 1;
/// Slots lie in different pages, so that no single torn write reaches both.
const SLOT_STRIDE: usize = 4096;
const SLOT_BYTES: usize = 8 * (4 + 3 * SEGMENTS_MAX + 1);

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
    /// Opens the mark, or makes an empty one. The content is `None` where neither slot is whole: then
    /// everything is unproven.
    pub(crate) fn open(disk: &dyn Disk, path: &Path) -> Result<(Self, Option<Mark>), MarkError> {
        if !disk.exists(path)? || disk.len(path)? < 2 * SLOT_STRIDE as u64 {
            disk.replace(path, &[0; 2 * SLOT_STRIDE])?;
        }
        let newest = newest_slot(&disk.read(path)?)?;
        let (turn, mark) = newest.map_or((0, None), |(turn, mark)| (turn, Some(mark)));
        Ok((
            Self {
                file: disk.overwrite(path)?,
                turn,
            },
            mark,
        ))
    }

    /// Overwrites the older slot; not synced.
    pub(crate) fn write(&mut self, mark: &Mark) -> io::Result<()> {
        self.turn += 1;
        let offset = (self.turn % 2) * SLOT_STRIDE as u64;
        self.file.write_at(&encode(self.turn, mark), offset)
    }

    /// Syncs what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// The content of a mark's file; `None` where neither slot is whole.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<Mark>, MarkError> {
    Ok(newest_slot(bytes)?.map(|(_, mark)| mark))
}

fn newest_slot(bytes: &[u8]) -> Result<Option<(u64, Mark)>, MarkError> {
    let newest = bytes
        .chunks(SLOT_STRIDE)
        .filter_map(|slot| decode(slot.get(..SLOT_BYTES)?))
        .max_by_key(|(turn, _)| *turn);
    let newer = bytes.chunks(SLOT_STRIDE).filter_map(version).max();
    match (newest, newer) {
        (None, Some(found)) if found > FORMAT => Err(MarkError::Newer {
            found,
            known: FORMAT,
        }),
        (newest, _) => Ok(newest),
    }
}

/// The version that a slot begins with.
fn version(slot: &[u8]) -> Option<u32> {
    let name = MAGIC.to_le_bytes();
    let (digit, name) = name.split_last()?;
    let found = slot.strip_prefix(name)?.first()?;
    let found = char::from(*found).to_digit(10)?;
    debug_assert_eq!(char::from(*digit).to_digit(10), Some(FORMAT));
    Some(found)
}

fn encode(turn: u64, mark: &Mark) -> [u8; SLOT_BYTES] {
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
    let mut slot = [0; SLOT_BYTES];
    for (bytes, word) in slot.chunks_mut(8).zip(head.into_iter().chain(reaches)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let (body, check) = slot.split_at_mut(SLOT_BYTES - 8);
    check.copy_from_slice(&hash::checksum(body, MAGIC).to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<(u64, Mark)> {
    let (body, check) = slot.split_at_checked(SLOT_BYTES - 8)?;
    if hash::checksum(body, MAGIC).to_le_bytes() != check {
        return None;
    }
    let mut words = body
        .chunks(8)
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    if words.next()? != MAGIC {
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
    Some((turn, mark))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_newest_whole_slot_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let (mut file, content) = MarkFile::open(&SystemDisk, &path).unwrap();
        assert_eq!(content, None);
        for last in 1..=5 {
            file.write(&mark(last)).unwrap();
            assert_eq!(
                MarkFile::open(&SystemDisk, &path).unwrap().1,
                Some(mark(last))
            );
        }
    }

    #[test]
    fn a_torn_or_flipped_slot_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let (mut file, _) = MarkFile::open(&SystemDisk, &path).unwrap();
        file.write(&mark(1)).unwrap();
        file.write(&mark(2)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for offset in 0..SLOT_BYTES {
            let mut damaged = whole.clone();
            damaged[offset] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(
                MarkFile::open(&SystemDisk, &path).unwrap().1,
                Some(mark(1)),
                "byte {offset}"
            );
        }
    }

    #[test]
    fn a_newer_mark_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mut newer = vec![0; 2 * SLOT_STRIDE];
        newer[..8].copy_from_slice(b"WAYMARK3");
        std::fs::write(&path, &newer).unwrap();
        let refused = MarkFile::open(&SystemDisk, &path).err().unwrap();
        assert!(
            matches!(refused, MarkError::Newer { found: 3, known: 1 }),
            "{refused}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), newer);
    }

    #[test]
    fn a_mark_with_no_whole_slot_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(MarkFile::open(&SystemDisk, &path).unwrap().1, None);
    }
}
