//! The handle of a shard's progress: changes are made in memory and return at once; who needs them on
//! disk waits for that.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rusqlite::Connection;
use wayhold_model::{
    DestinationId, Generation, LaneId, Position, Sequence, ShardId, StoredEvent, Timestamp,
};

use crate::connection::ConnectionError;
use crate::delivery::{AttemptRecord, DeadLetter, DeliveryState, Resolution, SetAside};
use crate::disk::Disk;
use crate::error::OpenError;
use crate::progress::batch_rows;
use crate::progress::chunk::Touched;
use crate::progress::dead_letters::LetterError;
use crate::progress::durability::{NotDurable, State};
use crate::progress::file::StateFile;
use crate::progress::letter::LetterNumbers;
use crate::progress::letter_rows::{self, Events, LetterContext, LetterRow};
use crate::progress::memory::{
    Compaction, LaneView, LeftOut, Memory, ResolvedSegment, Retry, Totals,
};
use crate::progress::recovery;
use crate::progress::writer::Writer;
use crate::retire::PendingFate;
use crate::shards::{Name, Owner};

/// Settlements that are written without waiting for the interval: a transaction of this many is as
/// cheap per settlement as it gets.
pub(super) const SETTLEMENTS_PER_FLUSH: usize = 4_096;

/// How progress is kept.
#[derive(Clone)]
pub(crate) struct ProgressOptions {
    /// The shard's directory.
    pub(crate) directory: PathBuf,
    /// The shard.
    pub(crate) generation: Generation,
    /// The shard's number.
    pub(crate) shard: ShardId,
    /// Seed of checksums and key hashes.
    pub(crate) hash_seed: u64,
    /// File access.
    pub(crate) disk: Arc<dyn Disk>,
    /// SQLite VFS by name; `None` is the system's.
    pub(crate) vfs: Option<String>,
    /// Numbers the dead letters of all shards.
    pub(crate) letters: Arc<LetterNumbers>,
    /// Called before a write is repeated that was refused for lack of space; releases the reserve.
    pub(crate) on_no_space: Arc<dyn Fn() + Send + Sync>,
}

impl ProgressOptions {
    /// What a state file is held against: the seed of its checksums and whose it is.
    pub(super) fn seed_and_owner(&self) -> (u64, Owner) {
        let owner = Owner::new(self.generation, self.shard, self.hash_seed);
        (self.hash_seed, owner)
    }
}

/// What opening found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opened {
    /// One sentence per finding that a person should know.
    pub(crate) findings: Vec<String>,
    /// Whether there was nothing of an earlier run. With segments beside it, progress was lost.
    pub(crate) is_fresh: bool,
    /// Deliveries whose dead letters were saved from a damaged file. Where their events lie in no
    /// segment any more, tell `add_accepted_base`.
    pub(crate) saved: Vec<(LaneId, Sequence)>,
}

/// Progress of one shard; a cheap handle. The file is written until the last handle is dropped, or
/// `stop`.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(super) shared: Arc<Shared>,
    thread: Arc<WriterThread>,
}

/// What handles and writer share.
pub(super) struct Shared {
    pub(super) options: ProgressOptions,
    state: Mutex<State>,
    /// Wakes the writer.
    pub(super) wake: Condvar,
    /// Reads letters; with the number of the file that it reads.
    reader: Mutex<Option<(u64, Connection)>>,
    /// Errors that the next writes answer with.
    #[cfg(test)]
    pub(super) faults: Mutex<std::collections::VecDeque<rusqlite::Error>>,
    /// Held while the file is written, so that a copy of it is of one moment.
    #[cfg(test)]
    pub(super) writing: Mutex<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress")
            .field("directory", &self.options.directory)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WriterThread {
    shared: Arc<Shared>,
    handle: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Progress {
    /// Opens or makes the progress of a shard and starts its writer. Blocking.
    pub(crate) fn open(options: ProgressOptions) -> Result<(Self, Opened), OpenError> {
        let mut recovered = recovery::recover(&options)?;
        recovered.memory.number_with(Arc::clone(&options.letters));
        let opened = Opened {
            findings: recovered.findings.clone(),
            is_fresh: recovered.is_fresh,
            saved: recovered
                .saved
                .letters
                .iter()
                .map(|letter| (letter.lane, letter.sequence))
                .collect(),
        };
        let directory = options.directory.clone();
        let name = format!("{}-progress", Name(options.generation, options.shard));
        let shared = Arc::new(Shared {
            options,
            state: Mutex::new(State::new(
                recovered.memory,
                recovered.number,
                recovered.findings,
            )),
            wake: Condvar::new(),
            reader: Mutex::new(None),
            #[cfg(test)]
            faults: Mutex::default(),
            #[cfg(test)]
            writing: Mutex::default(),
        });
        let writer = Writer::new(Arc::clone(&shared), recovered.file, recovered.number);
        let handle = std::thread::Builder::new()
            .name(name)
            .spawn(move || writer.run())
            .map_err(|error| OpenError::Unusable {
                path: directory,
                reason: error.to_string(),
            })?;
        let thread = Arc::new(WriterThread {
            shared: Arc::clone(&shared),
            handle: Mutex::new(Some(handle)),
        });
        Ok((Self { shared, thread }, opened))
    }

    /// Reads a lane at one moment, under the lock: keep it short.
    pub(crate) fn view<T>(&self, lane: LaneId, read: impl FnOnce(LaneView<'_>) -> T) -> T {
        read(self.shared.lock().memory.view(lane))
    }

    /// Whether a delivery is resolved.
    #[cfg(test)]
    pub(crate) fn is_resolved(&self, lane: LaneId, sequence: Sequence) -> bool {
        self.view(lane, |view| view.is_resolved(sequence))
    }

    /// Attempts and due time of a delivery that was tried and is not resolved.
    #[cfg(test)]
    pub(crate) fn retry_of(&self, lane: LaneId, sequence: Sequence) -> Option<Retry> {
        self.view(lane, |view| view.retry_of(sequence))
    }

    /// How many of these deliveries are not resolved.
    #[cfg(test)]
    pub(crate) fn count_unresolved(&self, lane: LaneId, sequences: &[Sequence]) -> u64 {
        self.view(lane, |view| view.count_unresolved(sequences))
    }

    /// Counts of a lane.
    #[cfg(test)]
    pub(crate) fn totals(&self, lane: LaneId) -> Totals {
        self.view(lane, |view| view.totals())
    }

    /// Counts of a lane and, at the same moment, which of these segments are counted in them already
    /// although they may still be held.
    pub(crate) fn totals_and_counted(
        &self,
        lane: LaneId,
        segments: impl Iterator<Item = u64>,
    ) -> (Totals, BTreeSet<u64>) {
        let state = self.shared.lock();
        let counted = segments.filter(|segment| state.memory.is_counted(*segment));
        let counted = counted.collect();
        (state.memory.view(lane).totals(), counted)
    }

    /// The highest sequence that progress names.
    pub(crate) fn highest(&self) -> Sequence {
        Sequence(self.shared.lock().memory.highest())
    }

    /// Records deliveries as confirmed.
    pub(crate) fn deliver(&self, lane: LaneId, sequences: impl IntoIterator<Item = Sequence>) {
        failpoint!("settle.before-recording");
        self.change(|memory| memory.deliver(lane, sequences.into_iter()));
        failpoint!("settle.recorded");
    }

    /// Records how a delivery was resolved. One that was resolved before changes nothing.
    pub(crate) fn settle(
        &self,
        lane: LaneId,
        destination: DestinationId,
        event: &Arc<StoredEvent>,
        resolution: Resolution,
    ) {
        let sequence = event.position.sequence;
        self.change(|memory| match resolution {
            Resolution::Delivered => memory.deliver(lane, std::iter::once(sequence)),
            Resolution::Expired => memory.expire(lane, sequence),
            Resolution::DeadLettered(last) => {
                failpoint!("letter.before-recording");
                memory.dead_letter(lane, destination, event, last);
            }
        });
    }

    /// Keeps a delivery that a replay gave up as a dead letter of the replay's lane.
    pub(crate) fn give_up_replayed(
        &self,
        lane: LaneId,
        destination: DestinationId,
        event: &Arc<StoredEvent>,
        last: AttemptRecord,
    ) {
        self.change(|memory| memory.dead_letter_of_replay(lane, destination, event, last));
    }

    /// Sets deliveries aside as dead letters that refer to their events; how many were not resolved before.
    pub(crate) fn set_aside(
        &self,
        deliveries: &[(LaneId, DestinationId, Sequence)],
        why: SetAside,
        at: Timestamp,
    ) -> u64 {
        self.change(|memory| {
            let set_aside = deliveries.iter().filter(|(lane, destination, sequence)| {
                let letter = memory.set_aside(*lane, *destination, *sequence, why, at);
                letter.is_some()
            });
            set_aside.count() as u64
        })
    }

    /// Ends deliveries by an operator's will; how many were not resolved before.
    pub(crate) fn discard_pending(&self, deliveries: &[(LaneId, DestinationId, Sequence)]) -> u64 {
        self.change(|memory| {
            let discarded = deliveries
                .iter()
                .filter(|(lane, _, sequence)| memory.discard_pending(*lane, *sequence));
            discarded.count() as u64
        })
    }

    /// Ends the redrives of a lane without an attempt; how many were under way.
    pub(crate) fn end_redrives(&self, lane: LaneId, fate: PendingFate) -> u64 {
        self.change(|memory| {
            let letters = memory.redriving_of(lane);
            for letter in &letters {
                match fate {
                    PendingFate::DeadLetter => memory.give_up_redrive(*letter),
                    PendingFate::Discard => memory.discard_redrive(*letter),
                }
            }
            letters.len() as u64
        })
    }

    /// Records that an attempt failed and when the next may start.
    pub(crate) fn record_failure(
        &self,
        lane: LaneId,
        sequence: Sequence,
        attempt: AttemptRecord,
        retry_at: Timestamp,
    ) {
        self.change(|memory| memory.fail(lane, sequence, attempt, retry_at));
    }

    /// Records that an attempt failed that does not count, and when the next may start.
    pub(crate) fn record_put_off(
        &self,
        lane: LaneId,
        sequence: Sequence,
        attempt: AttemptRecord,
        retry_at: Timestamp,
    ) {
        self.change(|memory| memory.put_off(lane, sequence, attempt, retry_at));
    }

    /// Records that an attempt is about to begin; wait for `durable` before it does.
    pub(crate) fn record_start(&self, lane: LaneId, sequence: Sequence, number: u32) {
        self.change(|memory| memory.start(lane, sequence, number));
    }

    /// Above the number of every dead letter that any shard ever had.
    pub(crate) fn next_letter(&self) -> u64 {
        self.shared.options.letters.next()
    }

    /// Whether a dead letter of this shard is under redrive.
    pub(crate) fn is_redriving(&self, letter: u64) -> bool {
        self.shared.lock().memory.is_redriving(letter)
    }

    /// Ends a redrive. One that is not under way changes nothing.
    pub(crate) fn settle_letter(&self, letter: u64, resolution: Resolution) {
        failpoint!("redrive.before-settling");
        self.change(|memory| memory.settle_letter(letter, resolution));
    }

    /// Takes over that every sequence of the lane below `floor` is resolved.
    pub(crate) fn raise_floor(&self, lane: LaneId, floor: Sequence) {
        self.change(|memory| memory.raise_floor(lane, floor));
    }

    /// Records that a segment is resolved, with what it had accepted per lane, and waits until that and
    /// everything before is synced: then its database is not needed any more. Otherwise keep it and ask
    /// again; nothing is counted twice. Blocking, though not for ever: a disk that takes nothing must not
    /// hold up a stop.
    pub(crate) fn resolve_segment(
        &self,
        resolved: ResolvedSegment,
        accepted: &[(LaneId, u64)],
    ) -> Result<(), NotDurable> {
        self.change(|memory| memory.resolve_segment(resolved, accepted));
        self.durable_soon()
    }

    /// Records a segment that was found resolved without progress knowing it; does not wait.
    pub(crate) fn take_over_segment(&self, resolved: ResolvedSegment, known: &[(LaneId, u64)]) {
        self.change(|memory| memory.resolve_segment(resolved, known));
    }

    /// Forgets a resolved segment whose database is gone.
    pub(crate) fn forget_segment(&self, segment: u64) {
        self.change(|memory| memory.forget_segment(segment));
    }

    /// Records that a compacted segment takes the place of its sources, and tells how much it left out. Does not
    /// wait: the sources' databases go only once that is durable.
    pub(crate) fn compact(&self, compaction: &Compaction) -> LeftOut {
        self.change(|memory| memory.compact(compaction))
    }

    /// How much a compacted segment left out; `None` where its compaction is not recorded.
    pub(crate) fn left_out(&self, segment: u64) -> Option<LeftOut> {
        self.shared.lock().memory.left_out(segment)
    }

    /// The highest number of a compacted segment that is recorded; 0 where none is.
    pub(crate) fn newest_compacted(&self) -> u64 {
        self.shared.lock().memory.newest_compacted()
    }

    /// Segments that are resolved and not forgotten.
    pub(crate) fn resolved_segments(&self) -> Vec<ResolvedSegment> {
        self.shared.lock().memory.resolved_segments()
    }

    /// Opens the state file for a copy of it, which is of one moment; also where it lies.
    pub(crate) fn reader_for_copy(
        &self,
    ) -> Result<(PathBuf, Connection), (PathBuf, ConnectionError)> {
        let number = self.shared.lock().file;
        let options = &self.shared.options;
        let path = recovery::path_of(&options.directory, number);
        match StateFile::open_reader(&path, options.vfs.as_deref()) {
            Ok(connection) => Ok((path, connection)),
            Err(error) => Err((path, error)),
        }
    }

    /// Where something was resolved since this was last asked, as far as it was handed to the file.
    pub(crate) fn take_touched(&self) -> Touched {
        self.shared.lock().memory.take_touched()
    }

    /// Adds obligations whose events lie in no segment any more, after progress was lost.
    pub(crate) fn add_accepted_base(&self, lane: LaneId, count: u64) {
        self.change(|memory| memory.add_accepted_base(lane, count));
    }

    /// Letters of a lane that are under redrive, for start-up; `events` gives the events that they refer
    /// to. Blocking.
    pub(crate) fn redriving(
        &self,
        destination: DestinationId,
        events: &Events<'_>,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        let context = self.letter_context();
        let rows = self.read_letters(|c| letter_rows::read_redriving(c, destination, context))?;
        Ok(self.undamaged(rows, events))
    }

    /// Where one delivery stands; attempts and letters are read from the file. Blocking.
    pub(crate) fn delivery_state(
        &self,
        lane: LaneId,
        sequence: Sequence,
    ) -> Result<DeliveryState, LetterError> {
        let (is_resolved, retry) = self.view(lane, |view| {
            (view.is_resolved(sequence), view.retry_of(sequence))
        });
        if is_resolved {
            let letter = self.read_letters(|c| letter_rows::find(c, lane, sequence))?;
            return Ok(
                letter.map_or(DeliveryState::Resolved, |(letter, redriving)| {
                    DeliveryState::Dead { letter, redriving }
                }),
            );
        }
        let Some(Retry {
            attempts,
            retry_at: Some(at),
        }) = retry
        else {
            return Ok(DeliveryState::Pending);
        };
        let history = self.read_letters(|c| batch_rows::read_history(c, lane, sequence))?;
        Ok(match history.into_iter().last() {
            Some(last) => DeliveryState::Retrying { attempts, at, last },
            None => DeliveryState::Pending,
        })
    }

    /// What a person should know: why the file does not follow, and what happened in this run.
    pub(crate) fn health(&self) -> Vec<String> {
        let state = self.shared.lock();
        state.trouble.iter().chain(&state.notes).cloned().collect()
    }

    /// Writes and syncs everything and ends the writer. Blocking; later changes stay in memory.
    pub(crate) fn stop(&self) {
        self.thread.stop();
    }

    /// Makes a change in memory; the writer sees to the rest.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        let mut state = self.shared.lock();
        let value = change(&mut state.memory);
        state.changed += 1;
        let is_first = state.first_change.is_none();
        if is_first {
            state.first_change = Some(Instant::now());
        }
        if is_first || state.memory.settlements() >= SETTLEMENTS_PER_FLUSH {
            self.shared.wake.notify_one();
        }
        value
    }

    pub(super) fn letter_context(&self) -> LetterContext {
        LetterContext {
            place: Position {
                generation: self.shared.options.generation,
                shard: self.shared.options.shard,
                sequence: Sequence(0),
            },
            hash_seed: self.shared.options.hash_seed,
        }
    }

    /// The letters whose event is there and sound; health names the others.
    pub(super) fn undamaged(&self, rows: Vec<LetterRow>, events: &Events<'_>) -> Vec<DeadLetter> {
        let sound = rows.into_iter().filter_map(|row| {
            let (id, redriving) = (row.id, row.redriving);
            let letter = row.whole(events);
            if letter.is_none() {
                if redriving {
                    // It could never end.
                    self.change(|memory| memory.give_up_redrive(id));
                }
                self.shared.lock().note(format!(
                    "the event in dead letter {id} is damaged on disk; it can only be discarded"
                ));
            }
            letter
        });
        sound.collect()
    }

    /// Why the file does not follow at the moment.
    pub(super) fn trouble(&self) -> Option<String> {
        self.shared.lock().trouble.clone()
    }

    /// Reads the file beside its writer, after what memory knows was written (or, where the disk takes
    /// nothing, as it is).
    pub(super) fn read_letters<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LetterError> {
        if self.trouble().is_none() {
            let _as_fresh_as_can_be = self.durable_soon();
        }
        let unavailable = |error: &dyn std::fmt::Display| LetterError::Unavailable {
            reason: error.to_string(),
        };
        let number = self.shared.lock().file;
        let options = &self.shared.options;
        let mut reader = self
            .shared
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if reader.as_ref().is_none_or(|(of, _)| *of != number) {
            let path = recovery::path_of(&options.directory, number);
            let connection = StateFile::open_reader(&path, options.vfs.as_deref())
                .map_err(|error| unavailable(&error))?;
            *reader = Some((number, connection));
        }
        let Some((_, connection)) = reader.as_ref() else {
            return Err(unavailable(&NotDurable));
        };
        let result = read(connection);
        if result.is_err() {
            // A connection that failed once is not asked again.
            *reader = None;
        }
        result.map_err(|error| unavailable(&error))
    }

    /// Lets the next write answer with an error.
    #[cfg(test)]
    pub(super) fn inject(&self, error: rusqlite::Error) {
        self.shared.faults.lock().unwrap().push_back(error);
    }

    #[cfg(test)]
    pub(super) fn clear_faults(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// Copies the files as a kill at this moment would leave them.
    #[cfg(test)]
    pub(super) fn copy_files(&self, to: &std::path::Path) {
        let _nothing_is_written = self.shared.writing.lock().unwrap();
        for entry in std::fs::read_dir(&self.shared.options.directory).unwrap() {
            let entry = entry.unwrap();
            if !entry.file_name().to_string_lossy().ends_with("-shm") {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriterThread {
    fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
        let handle = self
            .handle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if handle.is_some_and(|handle| handle.join().is_err()) {
            tracing::error!("the progress writer panicked");
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.stop();
    }
}
