//! The record of attempts: what became of each one that a destination is asked to keep a record of, for as long as
//! it is wanted. It is for people and proves nothing to the store: nothing waits for it, and a kill may take the
//! last second of it.
//!
//! Entries gather in memory and are written by one thread, once a second, as one synced transaction: there is no
//! sync per delivery. Files are append-only; the oldest is unlinked once nothing in it is young enough, or all
//! together are too large. A file whose write failed is not written again.

mod file;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wayhold_model::{
    Clock, DestinationId, FailureClass, OutcomeKind, Position, Receipt, Timestamp,
};

use crate::disk::{Disk, SystemDisk};

/// The directory of the files, within the data directory.
pub const DIRECTORY: &str = "attempts";

/// Most entries that wait to be written: two seconds of the fastest destination there is. What comes beyond is
/// not recorded, and counted.
const WAITING_MAX: usize = 131_072;

/// One attempt that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptEntry {
    /// The event.
    pub position: Position,
    /// Whom it was sent to.
    pub destination: DestinationId,
    /// Number of the attempt, from 1. Attempts that do not count have the number of the next one.
    pub number: u32,
    /// When it ended.
    pub at: Timestamp,
    /// How long it took, to the microsecond.
    pub duration: Duration,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// What was in the way; `None` of a delivery.
    pub class: Option<FailureClass>,
    /// The receiver's own number, where it gave one.
    pub status: Option<i32>,
    /// What the receiver calls what it took, where it said.
    pub receipt: Option<Receipt>,
    /// The replay that it was made for; `None` for the event's own delivery.
    pub replay: Option<u64>,
}

/// How much of the record there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordFigures {
    /// Bytes on disk.
    pub bytes: u64,
    /// Entries written by this run.
    pub written: u64,
    /// Entries that were not recorded in this run, since more came than the disk took, or it failed.
    pub dropped: u64,
    /// When the oldest file was begun; `None` where there is none.
    pub since: Option<Timestamp>,
}

/// How the record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// How long.
    pub time: Duration,
    /// Most bytes of it on disk, the oldest going first. A file goes as a whole, so there may be less.
    pub bytes: u64,
}

impl RecordFigures {
    /// Bytes that the record will hold once it reaches back as far as it may, if things go on as they went since
    /// its oldest file was begun; `None` where that is too short a time to tell.
    pub fn expected(&self, options: RecordOptions, now: Timestamp) -> Option<u64> {
        let reached = now.since(self.since?);
        if reached < FORECAST_AFTER {
            return None;
        }
        let share = options.time.as_secs_f64() / reached.as_secs_f64();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a forecast of bytes"
        )]
        let whole = (self.bytes as f64 * share.max(1.0)) as u64;
        Some(whole.min(options.bytes))
    }
}

/// Shortest stretch from which a forecast is made.
const FORECAST_AFTER: Duration = Duration::from_secs(60);

/// The record; a cheap handle. The writer ends with `stop`.
#[derive(Clone, Debug)]
pub struct AttemptLog(Option<Arc<Shared>>);

struct Shared {
    directory: PathBuf,
    options: RecordOptions,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    wake: Condvar,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<AttemptEntry>,
    figures: RecordFigures,
    /// Files there are, the oldest first, and when they were begun.
    files: Vec<(u64, Timestamp)>,
    /// How often it was asked that what waits be written, and up to which of these that was done.
    asked: u64,
    done: u64,
    stopping: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptLog {
    /// One that keeps nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Keeps the record in the data directory `dir`. Blocking.
    ///
    /// # Errors
    /// The directory cannot be made or read, or no thread can be started; a server goes on without a record.
    pub fn open(
        dir: &Path,
        options: RecordOptions,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let directory = dir.join(DIRECTORY);
        disk.create_directory(&directory)?;
        let numbers = file::numbers(disk.as_ref(), &directory)?.into_iter();
        // One that cannot be read goes before all others.
        let begun = |number| {
            let begun = file::begun(&file::path_of(&directory, number));
            (number, begun.unwrap_or(Timestamp::EPOCH))
        };
        let files = numbers.map(begun).collect();
        let shared = Arc::new(Shared {
            directory,
            options,
            disk,
            clock,
            state: Mutex::new(State {
                files,
                ..State::default()
            }),
            wake: Condvar::new(),
            thread: Mutex::default(),
        });
        let writer = writer::Writer::new(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("attempts".to_owned())
            .spawn(move || writer.run())?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Self(Some(shared)))
    }

    /// Takes entries, and empties `entries`. Never waits for the disk.
    pub fn add(&self, entries: &mut Vec<AttemptEntry>) {
        let Some(shared) = &self.0 else {
            return entries.clear();
        };
        let mut state = shared.lock();
        let room = WAITING_MAX.saturating_sub(state.waiting.len());
        let beyond = entries.len().saturating_sub(room);
        entries.truncate(room);
        state.figures.dropped += beyond as u64;
        state.waiting.append(entries);
    }

    /// The recorded attempts of an event, in the order in which they ended. Blocking.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of(&self, position: Position) -> Result<Vec<AttemptEntry>, String> {
        let Some(shared) = &self.0 else {
            return Ok(Vec::new());
        };
        let (files, waiting) = {
            let state = shared.lock();
            let waiting = state.waiting.iter();
            let waiting: Vec<_> = waiting
                .filter(|entry| entry.position == position)
                .cloned()
                .collect();
            (state.files.clone(), waiting)
        };
        let mut found = Vec::new();
        for (number, _) in files {
            let path = file::path_of(&shared.directory, number);
            match file::read(&path, position) {
                Ok(entries) => found.extend(entries),
                // It has gone meanwhile.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        // What is being written now may be in both.
        for entry in waiting {
            if !found.contains(&entry) {
                found.push(entry);
            }
        }
        found.sort_by_key(|entry| entry.at);
        Ok(found)
    }

    /// How much there is.
    pub fn figures(&self) -> RecordFigures {
        self.0
            .as_ref()
            .map_or_else(RecordFigures::default, |shared| shared.lock().figures)
    }

    /// Writes what waits and returns once that was tried. Blocking.
    pub fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.lock();
        state.asked += 1;
        let mine = state.asked;
        shared.wake.notify_all();
        while state.done < mine && !state.stopping {
            state = shared
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes what waits and ends the writer. Blocking; entries that come later are lost.
    pub fn stop(&self) {
        let Some(shared) = &self.0 else { return };
        shared.lock().stopping = true;
        shared.wake.notify_all();
        let thread = {
            let mut thread = shared.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.take()
        };
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that records attempts panicked");
        }
    }
}

#[cfg(test)]
mod tests;
