//! One segment of a shard and its index. While it is unindexed its index is in memory (`Recent`);
//! afterwards in its index file. Its rows are `segment_file`'s.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use wayhold_model::{DestinationId, DestinationSet, LaneId, Sequence};

use super::index_file::{Identified, Identity, IndexError, IndexFile, SharedIndex, Wanted};
use super::recent::Recent;
use super::row::Row;
use crate::disk::{Disk, with_suffix};
use crate::progress::{LeftOut, Stretch};

/// One segment of a shard.
pub(crate) struct Segment {
    pub(crate) identity: Identity,
    pub(crate) path: PathBuf,
    pub(crate) index_path: PathBuf,
    index: RwLock<Index>,
    /// The index file's content while somebody reads it; the last reader frees it.
    loaded: Mutex<std::sync::Weak<super::index_file::Loaded>>,
    /// When it was closed, in microseconds since the epoch; 0 while it is active.
    pub(crate) closed_at: AtomicU64,
    /// Whether its WAL was moved into its database.
    pub(crate) checkpointed: AtomicBool,
    /// Bytes of its files, as of the last commit or checkpoint, or since it is resolved.
    pub(crate) bytes: AtomicU64,
    /// Held by who changes its files: writes the index, moves the WAL, removes them.
    pub(crate) files: Mutex<()>,
    /// When its first event was accepted, once somebody asked.
    oldest: OnceLock<u64>,
    /// When it was found resolved, in microseconds since the epoch; 0 before.
    resolved_at: AtomicU64,
    /// The newest chapter of the idempotency window that names it; 0 while none did.
    pub(crate) chapter: AtomicU64,
    /// `DROPPED` once its database goes; until then, how many need it to stay.
    pins: AtomicU32,
    /// Of a compacted one: how many deliveries it left out, as progress has it recorded.
    left_out: OnceLock<LeftOut>,
    /// Whether a compacted segment has taken its place.
    replaced: AtomicBool,
    /// When something of it was last resolved, as far as this run knows, in microseconds since the epoch.
    pub(crate) touched_at: AtomicU64,
    /// Whether it can be compacted: its rows were found whole, or nobody has looked.
    pub(crate) is_fit: AtomicBool,
}

/// Its database goes, or is gone.
const DROPPED: u32 = 1 << 31;

enum Index {
    Memory(Recent),
    File(Arc<IndexFile>),
}

impl Segment {
    /// A segment without an index file.
    pub(crate) fn unindexed(dir: &Path, identity: Identity, recent: Recent) -> Self {
        Self::with_index(dir, identity, Index::Memory(recent))
    }

    /// A sealed segment.
    pub(crate) fn indexed(dir: &Path, file: IndexFile) -> Self {
        let resolved_at = file.resolved_at;
        let segment = Self::with_index(dir, file.identity, Index::File(Arc::new(file)));
        segment.resolved_at.store(resolved_at, Ordering::Release);
        segment
    }

    fn with_index(dir: &Path, identity: Identity, index: Index) -> Self {
        Self {
            identity,
            path: database_path(dir, identity.number),
            index_path: index_path(dir, identity.number),
            index: RwLock::new(index),
            loaded: Mutex::default(),
            closed_at: AtomicU64::new(0),
            checkpointed: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            files: Mutex::default(),
            oldest: OnceLock::new(),
            resolved_at: AtomicU64::new(0),
            chapter: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            left_out: OnceLock::new(),
            replaced: AtomicBool::new(false),
            touched_at: AtomicU64::new(0),
            is_fit: AtomicBool::new(true),
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.identity.number
    }

    /// Adds committed rows to the index in memory.
    pub(crate) fn committed(&self, rows: &[Row]) {
        if let Index::Memory(recent) =
            &mut *self.index.write().unwrap_or_else(PoisonError::into_inner)
        {
            for row in rows {
                recent.push(row);
            }
        }
    }

    /// First and last sequence, of a compacted one those that it covers; `None` while it is empty.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        match &*self.read() {
            Index::Memory(recent) => {
                let entries = recent.entries();
                let (first, last) = (entries.first()?.sequence, entries.last()?.sequence);
                Some(self.identity.covers.unwrap_or((first, last)))
            }
            Index::File(file) => (file.rows > 0).then_some((file.first, file.last)),
        }
    }

    /// Where it stands among the segments of its shard, which are in order of their sequences. One that is
    /// empty takes what comes next.
    pub(crate) fn place(&self) -> (u64, u64) {
        let first = self.span().map_or(u64::MAX, |(first, _)| first);
        (first, self.number())
    }

    /// Whether it holds what was left of other segments, and not what the writer wrote.
    pub(crate) fn is_compacted(&self) -> bool {
        self.identity.covers.is_some()
    }

    /// Whether it holds the event of a sequence, or held it: a compacted one leaves out what was resolved of
    /// what it covers. Then this reads the disk.
    pub(crate) fn holds(&self, disk: &dyn Disk, sequence: u64) -> Result<bool, IndexError> {
        let spans = |(first, last)| (first..=last).contains(&sequence);
        if !self.span().is_some_and(spans) {
            return Ok(false);
        }
        if !self.is_compacted() {
            return Ok(true);
        }
        match self.index_file() {
            Some(file) => file.holds(disk, sequence),
            None => Ok(true),
        }
    }

    /// Whether its index file is written.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(&*self.read(), Index::File(_))
    }

    /// Obligations per destination.
    pub(crate) fn counts(&self) -> BTreeMap<DestinationId, u64> {
        match &*self.read() {
            Index::Memory(recent) => recent.counts().clone(),
            Index::File(file) => file.counts.clone(),
        }
    }

    /// Obligations to one destination.
    pub(crate) fn count(&self, destination: DestinationId) -> u64 {
        let index = self.read();
        let counts = match &*index {
            Index::Memory(recent) => recent.counts(),
            Index::File(file) => &file.counts,
        };
        counts.get(&destination).copied().unwrap_or(0)
    }

    /// What a lane has in it, by the lane's destination; `None` where that is nothing.
    pub(crate) fn stretch(&self, destination: DestinationId, lane: LaneId) -> Option<Stretch> {
        let (first, last) = self.span()?;
        let count = self.count(destination);
        let left_out = || self.left_out.get()?.get(&lane).copied();
        (count > 0).then(|| Stretch {
            first: Sequence(first),
            last: Sequence(last),
            count,
            left_out: left_out().unwrap_or(0),
        })
    }

    /// Takes over what progress has recorded of a compacted one.
    pub(crate) fn take_left_out(&self, left_out: LeftOut) {
        // It never changes: again is no difference.
        drop(self.left_out.set(left_out));
    }

    /// A compacted segment has taken its place: its database goes once nobody needs it.
    pub(crate) fn replace_by_compacted(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Whether a compacted segment has taken its place.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether somebody needs its database where it is.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) & !DROPPED != 0
    }

    /// Bytes of its index file.
    pub(crate) fn index_bytes(&self) -> u64 {
        match &*self.read() {
            Index::Memory(_) => 0,
            Index::File(file) => file.bytes,
        }
    }

    /// Writes the index file and lets go of the index in memory.
    pub(crate) fn write_index(&self, disk: &dyn Disk) -> std::io::Result<()> {
        let _changing = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody adds to a closed segment, so the lock need not be held while the disk works.
        let recent = match &*self.read() {
            Index::Memory(recent) => recent.clone(),
            Index::File(_) => return Ok(()),
        };
        let file = IndexFile::write(disk, &self.index_path, self.identity, &recent)?;
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Index::File(Arc::new(file));
        Ok(())
    }

    /// Puts an index file in the place of one that is damaged; the caller holds `files`.
    pub(crate) fn replace_index(&self, disk: &dyn Disk, recent: &Recent) -> std::io::Result<()> {
        let file = IndexFile::write(disk, &self.index_path, self.identity, recent)?;
        if let Some(at) = self.resolved_at() {
            file.note_resolved(disk, at)?;
        }
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Index::File(Arc::new(file));
        Ok(())
    }

    /// Everything of it is resolved, since `at` in microseconds since the epoch. Also noted in its index
    /// file, where that can be written; the caller holds `files`.
    pub(crate) fn note_resolved(&self, disk: &dyn Disk, at: u64) -> std::io::Result<()> {
        self.resolved_at.store(at.max(1), Ordering::Release);
        match &*self.read() {
            Index::File(file) => file.note_resolved(disk, at.max(1)),
            Index::Memory(_) => Ok(()),
        }
    }

    /// When everything of it was found resolved, in microseconds since the epoch.
    pub(crate) fn resolved_at(&self) -> Option<u64> {
        Some(self.resolved_at.load(Ordering::Acquire)).filter(|at| *at != 0)
    }

    /// At most `max` sequences of one lane above `after`.
    pub(crate) fn lane_after(
        &self,
        disk: &dyn Disk,
        destination: DestinationId,
        after: u64,
        max: usize,
    ) -> Result<Vec<u64>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.lane_after(destination, after).take(max).collect());
        }
        Ok(self
            .load(disk)?
            .lane_after(destination, after)
            .take(max)
            .collect())
    }

    /// Sequences of one key in `(after, through]` that owe a delivery to this destination.
    pub(crate) fn key_after(
        &self,
        disk: &dyn Disk,
        destination: DestinationId,
        key_hash: u64,
        (after, through): (u64, u64),
    ) -> Result<Vec<u64>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            let owes = |sequence: &u64| {
                recent
                    .entry(*sequence)
                    .is_some_and(|entry| entry.destinations.contains(destination))
            };
            return Ok(recent
                .key_after(key_hash, after, through)
                .filter(owes)
                .collect());
        }
        let index = self.load(disk)?;
        let owes = |sequence: &u64| index.owes(destination, *sequence);
        Ok(index
            .key_after(key_hash, after, through)
            .filter(owes)
            .collect())
    }

    /// Sequences by when their events were accepted, ascending.
    pub(crate) fn wanted(&self, disk: &dyn Disk, wanted: &Wanted) -> Result<Vec<u64>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.wanted(wanted));
        }
        Ok(self.load(disk)?.wanted(wanted))
    }

    /// When its newest event was accepted, in microseconds since the epoch.
    pub(crate) fn newest(&self) -> u64 {
        match &*self.read() {
            Index::Memory(recent) => recent.entries().last().map_or(0, |entry| entry.accepted_at),
            Index::File(file) => file.newest,
        }
    }

    /// When its first event was accepted, in microseconds since the epoch; reads the index file once.
    pub(crate) fn oldest(&self, disk: &dyn Disk) -> Result<Option<u64>, IndexError> {
        if let Some(oldest) = self.oldest.get() {
            return Ok(Some(*oldest));
        }
        let oldest = match self.index_file() {
            Some(file) => file.first_row(disk)?,
            None => self.first_in_memory(),
        };
        Ok(oldest.map(|first| *self.oldest.get_or_init(|| first.accepted_at)))
    }

    fn first_in_memory(&self) -> Option<Identified> {
        match &*self.read() {
            Index::Memory(recent) => recent.entries().first().map(Identified::from),
            Index::File(_) => None,
        }
    }

    /// How many events it holds.
    pub(crate) fn rows(&self) -> usize {
        match &*self.read() {
            Index::Memory(recent) => recent.entries().len(),
            Index::File(file) => file.rows,
        }
    }

    /// What is known of one sequence.
    pub(crate) fn identity_at(
        &self,
        disk: &dyn Disk,
        sequence: u64,
    ) -> Result<Option<Identified>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.entry(sequence).map(Identified::from));
        }
        Ok(self.load(disk)?.identity_at(sequence))
    }

    /// Hands all id hashes to `take`, ascending where they come from a file, each with the row of its event
    /// counted from 0.
    pub(crate) fn with_ids(
        &self,
        disk: &dyn Disk,
        take: impl FnOnce(&mut dyn Iterator<Item = (u128, usize)>),
    ) -> Result<(), IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            let entries = recent.entries().iter().enumerate();
            take(&mut entries.map(|(row, entry)| (entry.id_hash, row)));
            return Ok(());
        }
        if let Some(file) = self.index_file() {
            take(&mut file.ids(disk)?.rows());
        }
        Ok(())
    }

    /// The newest event of one id; of several, one whose producer gave the id. From a file in one small
    /// read.
    pub(crate) fn find(
        &self,
        disk: &dyn Disk,
        id_hash: u128,
    ) -> Result<Option<Identified>, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.find(id_hash).map(Identified::from));
        }
        match self.index_file() {
            Some(file) => file.find(disk, id_hash),
            None => Ok(None),
        }
    }

    /// Whom the event of one sequence owes a delivery to.
    pub(crate) fn destinations_of(
        &self,
        disk: &dyn Disk,
        sequence: u64,
    ) -> Result<DestinationSet, IndexError> {
        if let Index::Memory(recent) = &*self.read() {
            return Ok(recent.entry(sequence).map_or_else(
                || DestinationSet::new([]),
                |entry| entry.destinations.as_ref().clone(),
            ));
        }
        Ok(self.load(disk)?.destinations_of(sequence))
    }

    /// The index file's content, shared by everybody who reads it at the moment.
    pub(crate) fn load(&self, disk: &dyn Disk) -> Result<SharedIndex, IndexError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = loaded.upgrade() {
            return Ok(index);
        }
        let file = match &*self.read() {
            Index::File(file) => Arc::clone(file),
            Index::Memory(_) => return Err(IndexError::Damaged("it is not written yet")),
        };
        let index = Arc::new(file.load(disk)?);
        *loaded = Arc::downgrade(&index);
        Ok(index)
    }

    /// Takes the sizes of its files; those of its WAL apart.
    pub(crate) fn measure(&self, disk: &dyn Disk) -> u64 {
        let bytes = |path: &Path| disk.len(path).unwrap_or(0);
        let wal = bytes(&with_suffix(&self.path, "-wal"));
        self.bytes.store(bytes(&self.path) + wal, Ordering::Relaxed);
        wal
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at.load(Ordering::Acquire) != 0
    }

    /// Decides that its database goes: nobody may open it from now on. `false` while somebody has it pinned:
    /// later.
    pub(crate) fn try_drop(&self) -> bool {
        let decided = self
            .pins
            .compare_exchange(0, DROPPED, Ordering::AcqRel, Ordering::Acquire);
        decided.is_ok() || self.is_dropped()
    }

    /// Whether its database goes, or is gone, because nobody needs it any more.
    pub(crate) fn is_dropped(&self) -> bool {
        self.pins.load(Ordering::Acquire) & DROPPED != 0
    }

    /// Keeps its database where it is until the pin is dropped; `None` where it goes already.
    pub(crate) fn pin(self: &Arc<Self>) -> Option<Pin> {
        let pinned = self
            .pins
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |pins| {
                (pins & DROPPED == 0).then_some(pins + 1)
            });
        pinned.is_ok().then(|| Pin(Arc::clone(self)))
    }

    /// Apart from its lock, which is not held while the disk works: the writer adds under it.
    fn index_file(&self) -> Option<Arc<IndexFile>> {
        match &*self.read() {
            Index::File(file) => Some(Arc::clone(file)),
            Index::Memory(_) => None,
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A segment whose database stays where it is as long as this lives.
pub(crate) struct Pin(Arc<Segment>);

impl std::ops::Deref for Pin {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

/// `<n>.db`
pub(crate) fn database_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.db"))
}

/// `<n>.idx`
pub(crate) fn index_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.idx"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn what_is_pinned_is_not_dropped_and_what_is_dropped_is_not_pinned() {
        let identity = Identity {
            generation: 1,
            shard: 0,
            number: 1,
            uuid: 5,
            covers: None,
        };
        let dir = Path::new("/absent");
        let segment = Arc::new(Segment::unindexed(dir, identity, Recent::default()));
        let (one, other) = (segment.pin(), segment.pin());
        drop(one);
        assert!(!segment.try_drop() && !segment.is_dropped());
        drop(other);
        assert!(segment.try_drop() && segment.is_dropped());
        assert!(segment.pin().is_none());
        assert!(segment.try_drop(), "again is no error");
    }

    #[test]
    fn two_who_seal_a_segment_at_once_leave_one_whole_index_file() {
        let dir = tempfile::tempdir().unwrap();
        for number in 1..=200 {
            let identity = Identity {
                generation: 1,
                shard: 0,
                number,
                uuid: 5,
                covers: None,
            };
            let segment = Segment::unindexed(dir.path(), identity, Recent::default());
            std::thread::scope(|scope| {
                let seal = || segment.write_index(&SystemDisk);
                let both = [scope.spawn(seal), scope.spawn(seal)];
                for sealed in both {
                    sealed.join().unwrap().unwrap();
                }
            });
            IndexFile::open(&SystemDisk, &segment.index_path).unwrap();
        }
    }
}
