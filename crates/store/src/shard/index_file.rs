//! The index file of a sealed segment (`<n>.idx`): identities, keys and lanes of its events. It
//! outlives the segment for the idempotency window, and is the authority on where the segment ends.
//!
//! ```text
//! header     magic "WAYIDX01", format, generation, shard, number, uuid, first and last sequence
//!            (format 3, of a compacted segment: of the range that it covers), newest acceptance, rows, then per section its length and checksum, then the header's
//! directory  per lane: destination u32, count u32
//! ids        per event, ascending: id hash u128, row u32 (top bit: the producer gave the id)
//! rows       per event, ascending: sequence - first u32, accepted_at u64, fingerprint u64
//! keys       per event with a key, ascending: key hash u64, sequence - first u32
//! lists      per lane, in the directory's order: sequence - first u32 each, ascending
//! resolved   once nothing is unresolved: magic "RESOLVED", when u64, checksum u64
//! ```
//! Opening reads header and directory alone, so that a start does not grow with the backlog. Looking an id up
//! takes one small read; a section is held against its checksum before the first part of it is believed.
//! All little-endian; checksums are XXH3-64 seeded with the segment's uuid. A fingerprint of zero says
//! that the id was made here.

mod by_id;
mod by_time;
mod bytes;
mod loaded;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use wayhold_model::{DestinationId, hash};

use super::recent::{Entry, Recent};
use crate::disk::Disk;
use by_id::{ID_BYTES, Ids, partition};
pub(crate) use by_time::Wanted;
use bytes::{long, word};
pub(crate) use loaded::{Loaded, SharedIndex};

const MAGIC: &[u8; 8] = b"WAYIDX01";
/// Newest version of the layout; a newer one is refused. A compacted segment has it: its first and last
/// sequence are those of the range that it covers, whichever of it it holds.
pub(crate) const FORMAT: u32 = 3;
/// The version of every other segment's; an older one is made again from its segment.
const PLAIN: u32 = 2;
const SECTIONS: usize = 5;
/// Places of sections.
const IDS: usize = 1;
const ROWS: usize = 2;
const SECTIONS_AT: usize = 8 + 4 * 3 + 8 + 16 + 8 * 4;
const HEADER_BYTES: usize = SECTIONS_AT + SECTIONS * 16 + 8;
const DIRECTORY_ENTRY_BYTES: usize = 4 + 4;
const ROW_BYTES: usize = 4 + 8 + 8;
const KEY_BYTES: usize = 8 + 4;
const NOTE_MAGIC: &[u8; 8] = b"RESOLVED";
const NOTE_BYTES: usize = 8 + 8 + 8;
/// What an event with a key takes, beside its obligations.
pub(crate) const EVENT_BYTES: usize = ID_BYTES + ROW_BYTES + KEY_BYTES;
/// What an obligation takes: its place in the list of its lane.
pub(crate) const OBLIGATION_BYTES: usize = 4;

/// Who a segment is; repeated in its database and its index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) generation: u32,
    pub(crate) shard: u16,
    pub(crate) number: u64,
    pub(crate) uuid: u128,
    /// First and last sequence of the segments that it was compacted from: what it does not hold of them was
    /// resolved. `None` for a segment that the writer wrote.
    pub(crate) covers: Option<(u64, u64)>,
}

impl Identity {
    /// Seed of every checksum in the segment's files.
    pub(crate) fn check_seed(&self) -> u64 {
        let [low, high] = [self.uuid, self.uuid >> 64]
            .map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0));
        low ^ high.rotate_left(32)
    }
}

/// An index file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum IndexError {
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    #[error("has format {0}, this binary knows up to {FORMAT}")]
    Newer(u32),
    #[error("has format {0}, which is older than {PLAIN}")]
    Older(u32),
}

/// The part of an index file that is always in memory: who it is, where it ends, how much it holds.
#[derive(Clone, Debug)]
pub(crate) struct IndexFile {
    path: PathBuf,
    pub(crate) identity: Identity,
    /// Sequence of the first event, or of the first that it covers.
    pub(crate) first: u64,
    /// Sequence of the last event, or of the last that it covers: rows above it in the database were never
    /// acknowledged.
    pub(crate) last: u64,
    pub(crate) rows: usize,
    /// Obligations per destination.
    pub(crate) counts: BTreeMap<DestinationId, u64>,
    /// Bytes of header and sections.
    pub(crate) bytes: u64,
    /// When its last event was accepted, in microseconds since the epoch.
    pub(crate) newest: u64,
    /// When everything was found resolved, in microseconds since the epoch; 0 where the file does not say
    /// that. Progress says it first; this is for the case that progress is lost.
    pub(crate) resolved_at: u64,
    /// Length and checksum of each section.
    sections: [(usize, u64); SECTIONS],
    /// Which sections were held against their checksums since the file was opened or written.
    checked: Arc<[AtomicBool; SECTIONS]>,
}

impl IndexFile {
    /// Writes the index of a sealed segment: temporary name, sync, rename, directory sync.
    pub(crate) fn write(
        disk: &dyn Disk,
        path: &Path,
        identity: Identity,
        recent: &Recent,
    ) -> std::io::Result<Self> {
        let (sections, bytes) = encode(identity, recent);
        failpoint!("index.before-writing");
        disk.replace(path, &bytes)?;
        failpoint!("index.written");
        let entries = recent.entries();
        let (first, last) = span(identity, entries);
        Ok(Self {
            path: path.to_owned(),
            identity,
            first,
            last,
            rows: entries.len(),
            counts: recent.counts().clone(),
            bytes: bytes.len() as u64,
            newest: entries.last().map_or(0, |entry| entry.accepted_at),
            resolved_at: 0,
            sections,
            checked: Arc::default(),
        })
    }

    /// Opens an index file: reads header and directory.
    pub(crate) fn open(disk: &dyn Disk, path: &Path) -> Result<Self, IndexError> {
        let length = disk.len(path)?;
        let header = Header::decode(&disk.read_range(path, 0, HEADER_BYTES)?)?;
        let sections = header.sections.iter().map(|(length, _)| *length as u64);
        let bytes = sections.fold(HEADER_BYTES as u64, u64::saturating_add);
        if !(bytes..=bytes.saturating_add(NOTE_BYTES as u64)).contains(&length) {
            return Err(IndexError::Damaged("its length does not match its header"));
        }
        let [(length, check), (ids, _), (rows, _), ..] = header.sections;
        if (ids / ID_BYTES, rows / ROW_BYTES) != (header.rows, header.rows) {
            return Err(IndexError::Damaged("its sections do not match its header"));
        }
        let directory = disk.read_range(path, HEADER_BYTES as u64, length)?;
        if hash::checksum(&directory, header.identity.check_seed()) != check {
            return Err(IndexError::Damaged(
                "its directory does not match its checksum",
            ));
        }
        let note = disk.read_range(path, bytes, NOTE_BYTES)?;
        let counts = directory
            .chunks_exact(DIRECTORY_ENTRY_BYTES)
            .map(|lane| (DestinationId(word(lane, 0)), u64::from(word(lane, 4))))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            identity: header.identity,
            first: header.first,
            last: header.last,
            rows: header.rows,
            counts,
            bytes,
            newest: header.newest,
            resolved_at: Note::decode(&note, header.identity).unwrap_or(0),
            sections: header.sections,
            checked: Arc::default(),
        })
    }

    /// Notes durably, behind the last section, that everything is resolved since `at`. What a crash leaves
    /// of it says nothing and harms nothing.
    pub(crate) fn note_resolved(&self, disk: &dyn Disk, at: u64) -> std::io::Result<()> {
        let file = disk.overwrite(&self.path)?;
        failpoint!("index.before-note");
        file.write_at(&Note::encode(at, self.identity), self.bytes)?;
        failpoint!("index.noted");
        file.sync()
    }

    /// The newest event of one id, if there is one.
    pub(crate) fn find(
        &self,
        disk: &dyn Disk,
        id_hash: u128,
    ) -> Result<Option<Identified>, IndexError> {
        let row = by_id::find(self.rows, id_hash, |first, count| {
            self.part(disk, IDS, first * ID_BYTES, count * ID_BYTES)
        })?;
        let Some(row) = row else { return Ok(None) };
        let row = self.part(disk, ROWS, row * ROW_BYTES, ROW_BYTES)?;
        Ok(Some(identified(self.first, &row)))
    }

    /// What is known of its first event.
    pub(crate) fn first_row(&self, disk: &dyn Disk) -> Result<Option<Identified>, IndexError> {
        if self.rows == 0 {
            return Ok(None);
        }
        let row = self.part(disk, ROWS, 0, ROW_BYTES)?;
        Ok(Some(identified(self.first, &row)))
    }

    /// Whether it names an event of this sequence, in a few small reads.
    pub(crate) fn holds(&self, disk: &dyn Disk, sequence: u64) -> Result<bool, IndexError> {
        let (mut low, mut high) = (0, self.rows);
        while low < high {
            let middle = low.midpoint(high);
            let row = self.part(disk, ROWS, middle * ROW_BYTES, ROW_BYTES)?;
            match identified(self.first, &row).sequence.cmp(&sequence) {
                std::cmp::Ordering::Equal => return Ok(true),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(false)
    }

    /// All ids, verified.
    pub(crate) fn ids(&self, disk: &dyn Disk) -> Result<Ids, IndexError> {
        Ok(Ids(self.section(disk, IDS)?))
    }

    /// `length` bytes of a section from `offset`. The first time the whole section is read and verified.
    fn part(
        &self,
        disk: &dyn Disk,
        section: usize,
        offset: usize,
        length: usize,
    ) -> Result<Vec<u8>, IndexError> {
        let is_checked = self
            .checked
            .get(section)
            .is_some_and(|checked| checked.load(Ordering::Relaxed));
        if is_checked {
            let at = self.offset(section) + offset as u64;
            return Ok(disk.read_range(&self.path, at, length)?);
        }
        let whole = self.section(disk, section)?;
        let part = whole.get(offset..offset + length);
        Ok(part.unwrap_or_default().to_vec())
    }

    /// A whole section, verified.
    fn section(&self, disk: &dyn Disk, section: usize) -> Result<Vec<u8>, IndexError> {
        let (length, check) = self.sections.get(section).copied().unwrap_or_default();
        let bytes = disk.read_range(&self.path, self.offset(section), length)?;
        if hash::checksum(&bytes, self.identity.check_seed()) != check {
            return Err(IndexError::Damaged("a section does not match its checksum"));
        }
        if let Some(checked) = self.checked.get(section) {
            checked.store(true, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    /// Where a section begins.
    fn offset(&self, section: usize) -> u64 {
        let before = self.sections.iter().take(section);
        before.fold(HEADER_BYTES as u64, |at, (length, _)| at + *length as u64)
    }

    /// Whether it is what these rows make: the same sections.
    pub(crate) fn says(&self, recent: &Recent) -> bool {
        encode(self.identity, recent).0 == self.sections
    }

    /// Reads and verifies the whole file again.
    pub(crate) fn load(&self, disk: &dyn Disk) -> Result<Loaded, IndexError> {
        let (header, loaded) = decode(&disk.read(&self.path)?)?;
        if header.identity != self.identity {
            return Err(IndexError::Damaged("it belongs to another segment"));
        }
        Ok(loaded)
    }
}

/// A row of a file whose first sequence is `first`.
fn identified(first: u64, row: &[u8]) -> Identified {
    Identified {
        sequence: first + u64::from(word(row, 0)),
        accepted_at: long(row, 4),
        fingerprint: Some(long(row, 12)).filter(|fingerprint| *fingerprint != 0),
    }
}

/// What an index knows of an event that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identified {
    pub(crate) sequence: u64,
    /// In microseconds since the epoch.
    pub(crate) accepted_at: u64,
    /// `None` where the id was made here.
    pub(crate) fingerprint: Option<u64>,
}

impl From<&Entry> for Identified {
    fn from(entry: &Entry) -> Self {
        Self {
            sequence: entry.sequence,
            accepted_at: entry.accepted_at,
            fingerprint: entry.fingerprint,
        }
    }
}

/// What stands behind the sections of a file whose events are all resolved.
struct Note;

impl Note {
    fn encode(at: u64, identity: Identity) -> Vec<u8> {
        let mut bytes = NOTE_MAGIC.to_vec();
        bytes.extend(at.to_le_bytes());
        let check = hash::checksum(&bytes, identity.check_seed());
        bytes.extend(check.to_le_bytes());
        bytes
    }

    /// When; `None` where this is no whole note.
    fn decode(note: &[u8], identity: Identity) -> Option<u64> {
        let at = long(note, NOTE_MAGIC.len());
        (note == Self::encode(at, identity)).then_some(at)
    }
}

struct Header {
    identity: Identity,
    first: u64,
    last: u64,
    newest: u64,
    rows: usize,
    /// Length and checksum of each section.
    sections: [(usize, u64); SECTIONS],
}

impl Header {
    fn decode(header: &[u8]) -> Result<Self, IndexError> {
        if header.len() < HEADER_BYTES {
            return Err(IndexError::Damaged("it is cut short"));
        }
        if header.get(..8) != Some(MAGIC) {
            return Err(IndexError::Damaged("it does not begin as an index file"));
        }
        let format = word(header, 8);
        if format > FORMAT {
            return Err(IndexError::Newer(format));
        }
        if format < PLAIN {
            return Err(IndexError::Older(format));
        }
        let identity = Identity {
            generation: word(header, 12),
            shard: u16::try_from(word(header, 16)).unwrap_or(u16::MAX),
            number: long(header, 20),
            uuid: u128::from(long(header, 28)) | u128::from(long(header, 36)) << 64,
            covers: (format == FORMAT).then(|| (long(header, 44), long(header, 52))),
        };
        let checked = header.get(..HEADER_BYTES - 8).unwrap_or_default();
        if hash::checksum(checked, identity.check_seed()) != long(header, HEADER_BYTES - 8) {
            return Err(IndexError::Damaged(
                "its header does not match its checksum",
            ));
        }
        let length = |at: usize| usize::try_from(long(header, at)).unwrap_or(usize::MAX);
        Ok(Self {
            identity,
            first: long(header, 44),
            last: long(header, 52),
            newest: long(header, 60),
            rows: length(68),
            sections: [0, 1, 2, 3, 4]
                .map(|index| SECTIONS_AT + index * 16)
                .map(|at| (length(at), long(header, at + 8))),
        })
    }
}

/// The first and last sequence that a file says.
fn span(identity: Identity, entries: &[Entry]) -> (u64, u64) {
    identity.covers.unwrap_or_else(|| {
        let [first, last] =
            [entries.first(), entries.last()].map(|entry| entry.map_or(0, |entry| entry.sequence));
        (first, last)
    })
}

/// The bytes of a file, and length and checksum of each of its sections.
fn encode(identity: Identity, recent: &Recent) -> ([(usize, u64); SECTIONS], Vec<u8>) {
    let entries = recent.entries();
    let (first, last) = span(identity, entries);
    // The writer ends a segment long before its sequences span 32 bits, and a compaction spans no more.
    let offset = |sequence: u64| {
        u32::try_from(sequence - first)
            .unwrap_or(u32::MAX)
            .to_le_bytes()
    };

    let mut rows = Vec::with_capacity(entries.len() * ROW_BYTES);
    let mut keyed = Vec::with_capacity(entries.len());
    let mut lanes: BTreeMap<DestinationId, Vec<u8>> = BTreeMap::new();
    for entry in entries {
        rows.extend(offset(entry.sequence));
        rows.extend(entry.accepted_at.to_le_bytes());
        rows.extend(entry.fingerprint.unwrap_or(0).to_le_bytes());
        keyed.extend(entry.key_hash.map(|key| (key, entry.sequence)));
        for id in entry.destinations.ids() {
            lanes.entry(*id).or_default().extend(offset(entry.sequence));
        }
    }
    keyed.sort_unstable();
    let keys: Vec<u8> = keyed
        .iter()
        .flat_map(|(key, sequence)| key.to_le_bytes().into_iter().chain(offset(*sequence)))
        .collect();
    let directory: Vec<u8> = lanes
        .iter()
        .flat_map(|(id, list)| {
            let count = u32::try_from(list.len() / 4).unwrap_or(u32::MAX);
            id.0.to_le_bytes().into_iter().chain(count.to_le_bytes())
        })
        .collect();
    let lists = lanes.into_values().flatten().collect();

    let seed = identity.check_seed();
    let sections: [Vec<u8>; SECTIONS] = [directory, by_id::encode(entries), rows, keys, lists];
    let known = sections
        .each_ref()
        .map(|section| (section.len(), hash::checksum(section, seed)));
    let mut bytes = Vec::with_capacity(HEADER_BYTES + sections.iter().map(Vec::len).sum::<usize>());
    bytes.extend(MAGIC);
    let format = identity.covers.map_or(PLAIN, |_| FORMAT);
    bytes.extend(format.to_le_bytes());
    bytes.extend(identity.generation.to_le_bytes());
    bytes.extend(u32::from(identity.shard).to_le_bytes());
    bytes.extend(identity.number.to_le_bytes());
    bytes.extend(identity.uuid.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    bytes.extend(last.to_le_bytes());
    bytes.extend(
        entries
            .last()
            .map_or(0, |entry| entry.accepted_at)
            .to_le_bytes(),
    );
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (length, check) in known {
        bytes.extend((length as u64).to_le_bytes());
        bytes.extend(check.to_le_bytes());
    }
    let check = hash::checksum(&bytes, seed);
    bytes.extend(check.to_le_bytes());
    for section in sections {
        bytes.extend(section);
    }
    (known, bytes)
}

fn decode(bytes: &[u8]) -> Result<(Header, Loaded), IndexError> {
    let header = Header::decode(bytes)?;
    let seed = header.identity.check_seed();
    let mut rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let mut sections = Vec::with_capacity(SECTIONS);
    for (length, check) in header.sections {
        let (section, after) = rest
            .split_at_checked(length)
            .ok_or(IndexError::Damaged("a section is cut short"))?;
        if hash::checksum(section, seed) != check {
            return Err(IndexError::Damaged("a section does not match its checksum"));
        }
        rest = after;
        sections.push(section);
    }
    let [directory, _, rows, keys, lists] = sections.as_slice() else {
        return Err(IndexError::Damaged("a section is missing"));
    };
    if rest.len() > NOTE_BYTES {
        return Err(IndexError::Damaged("it goes on after its last section"));
    }
    let lanes = split_lists(directory, lists)
        .ok_or(IndexError::Damaged("its lists do not match its directory"))?;
    let loaded = Loaded {
        first: header.first,
        rows: rows.to_vec(),
        keys: keys.to_vec(),
        lanes,
    };
    Ok((header, loaded))
}

fn split_lists(directory: &[u8], mut lists: &[u8]) -> Option<Vec<(DestinationId, Vec<u8>)>> {
    directory
        .chunks_exact(DIRECTORY_ENTRY_BYTES)
        .map(|lane| {
            let (list, after) = lists.split_at_checked((word(lane, 4) as usize).checked_mul(4)?)?;
            lists = after;
            Some((DestinationId(word(lane, 0)), list.to_vec()))
        })
        .collect()
}

#[cfg(test)]
mod tests;
