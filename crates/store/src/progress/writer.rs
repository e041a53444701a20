//! The thread that lets the file follow memory. It alone writes the file, and a file whose write or sync
//! failed is never written again: the next transaction is the first of a new file, made from memory and
//! from the letters of the old one.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;

use crate::connection::{ConnectionError, Fault};
use crate::disk;
use crate::progress::batch_rows;
use crate::progress::carry::{Carried, carry};
use crate::progress::file::StateFile;
use crate::progress::handle::{SETTLEMENTS_PER_FLUSH, Shared};
use crate::progress::memory::Batch;
use crate::progress::recovery;

/// Longest time that a settlement stays in memory only: what a kill may repeat.
const FLUSH_INTERVAL: Duration = Duration::from_millis(25);

/// Bytes of log after which it is moved into the file.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How long a disk that took nothing is left alone.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// How often a stop tries to write: with a disk that takes nothing it has to end all the same.
const STOP_TRIES: u32 = 8;

/// What the thread is woken for.
enum Wakeup {
    /// There is something to write.
    Changed,
    /// There is nothing to write, but something to clean.
    Idle,
    /// Write what there is and end.
    Stop,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    file: StateFile,
    number: u64,
    /// Why the file must not be written again.
    broken: Option<String>,
    /// Whether the file may hold free pages to give back.
    is_untidy: bool,
    /// Left alone until then.
    not_before: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, file: StateFile, number: u64) -> Self {
        Self {
            shared,
            file,
            number,
            broken: None,
            is_untidy: true,
            not_before: None,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let wakeup = self.sleep();
            #[cfg(test)]
            let shared = Arc::clone(&self.shared);
            #[cfg(test)]
            let _no_copy_is_made = shared.writing.lock();
            match wakeup {
                Wakeup::Changed => self.flush(),
                Wakeup::Idle => self.tidy(),
                Wakeup::Stop => break,
            }
        }
        for _ in 0..STOP_TRIES {
            self.flush();
            match self.not_before {
                None => break,
                Some(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
        failpoint!("stop.before-progress-checkpoint");
        if self.broken.is_none()
            && let Err(error) = self.file.checkpoint()
        {
            tracing::warn!(path = %self.file.path.display(), %error, "progress not checkpointed at stop");
        }
        self.shared.lock().has_stopped();
    }

    /// Waits for the next thing to do.
    fn sleep(&mut self) -> Wakeup {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if state.stopping {
                return Wakeup::Stop;
            }
            let now = Instant::now();
            let has_changes = state.changed > state.durable;
            let wait = match (self.not_before, state.first_change) {
                (Some(until), _) => until.saturating_duration_since(now),
                (None, Some(first)) if has_changes => {
                    if state.is_awaited() || state.memory.settlements() >= SETTLEMENTS_PER_FLUSH {
                        return Wakeup::Changed;
                    }
                    (first + FLUSH_INTERVAL).saturating_duration_since(now)
                }
                _ if self.is_untidy || state.memory.has_stale() => FLUSH_INTERVAL,
                _ => {
                    state = shared
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            if wait.is_zero() {
                self.not_before = None;
                return Wakeup::Changed;
            }
            let (guard, timeout) = shared
                .wake
                .wait_timeout(state, wait)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && !has_changes && self.not_before.is_none() {
                return Wakeup::Idle;
            }
        }
    }

    /// Writes what changed.
    fn flush(&mut self) {
        self.not_before = None;
        if self.broken.is_some() {
            return self.renew();
        }
        let (batch, through) = {
            let mut state = self.shared.lock();
            (state.memory.take(), state.changed)
        };
        failpoint!("progress.before-writing");
        match self.write(&batch) {
            Ok(()) => {
                failpoint!("progress.committed");
                let mut state = self.shared.lock();
                state.memory.written();
                state.is_durable(through);
                drop(state);
                self.is_untidy |= !batch.letters.is_empty() || !batch.stale.is_empty();
                self.checkpoint_if_long();
            }
            Err(error) => {
                self.shared.lock().memory.not_written();
                self.failed(&error);
            }
        }
    }

    fn write(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        #[cfg(test)]
        if let Some(error) = self.shared.faults.lock().unwrap().pop_front() {
            return Err(error);
        }
        self.file.write(batch)
    }

    /// Cleans a little: chunks below the floors, then free pages.
    fn tidy(&mut self) {
        if self.shared.lock().memory.has_stale() {
            return self.flush();
        }
        match self.file.return_free_pages() {
            Ok(more) => self.is_untidy = more,
            Err(error) => {
                self.is_untidy = false;
                self.failed(&error);
            }
        }
    }

    /// An error of our own checkpoint is seen; SQLite's automatic one would swallow it, and sync again as
    /// if nothing had been lost.
    fn checkpoint_if_long(&mut self) {
        let log = {
            let mut name = self.file.path.as_os_str().to_owned();
            name.push("-wal");
            name
        };
        let bytes = self.shared.options.disk.len(log.as_ref()).unwrap_or(0);
        if bytes > LOG_BYTES_MAX
            && let Err(error) = self.file.checkpoint_now()
        {
            self.failed(&error);
        }
    }

    /// Decides what to do after a failure: try again when there is space, or never write this file again.
    fn failed(&mut self, error: &rusqlite::Error) {
        let reason = format!("{}: {error}", self.file.path.display());
        if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) {
            // Somebody else holds the file; nothing was written.
            return self.leave_alone(format!("progress is locked by another process: {reason}"));
        }
        match Fault::of(error) {
            Fault::NoSpace => self.wait_for_space(reason),
            Fault::Io | Fault::Corrupt | Fault::Other => {
                tracing::error!(path = %self.file.path.display(), %error, "progress moves to a new file");
                self.broken = Some(reason);
                self.renew();
            }
        }
    }

    fn wait_for_space(&mut self, reason: String) {
        (self.shared.options.on_no_space)();
        self.leave_alone(format!("progress waits for disk space: {reason}"));
    }

    fn leave_alone(&mut self, trouble: String) {
        self.not_before = Some(Instant::now() + RETRY_INTERVAL);
        let mut state = self.shared.lock();
        if state.trouble.is_none() {
            tracing::warn!(%trouble, "progress is in memory only");
        }
        state.trouble = Some(trouble);
    }

    /// Makes a new file of everything that memory knows and the letters of the old one, and goes on with
    /// it once it is synced.
    fn renew(&mut self) {
        let options = self.shared.options.clone();
        self.number += 1;
        let path = recovery::path_of(&options.directory, self.number);
        let (batch, through) = {
            let mut state = self.shared.lock();
            state.memory.mark_all();
            (state.memory.take(), state.changed)
        };
        let mut carried = Carried::default();
        let made = StateFile::create(
            &path,
            options.vfs.as_deref(),
            options.seed_and_owner(),
            |new| {
                carried = carry(self.file.reader(), new)?;
                batch_rows::fill(new, &batch, options.hash_seed)
            },
        );
        let synced = made.and_then(|file| {
            options
                .disk
                .sync_directory(&options.directory)
                .map_err(ConnectionError::Make)?;
            Ok(file)
        });
        match synced {
            Ok(file) => {
                let old = std::mem::replace(&mut self.file, file);
                let reason = self.broken.take().unwrap_or_default();
                {
                    let mut state = self.shared.lock();
                    state.memory.written();
                    state.file = self.number;
                    state.is_durable(through);
                }
                self.retire(old, &carried, &reason);
            }
            Err(error) => {
                self.shared.lock().memory.not_written();
                // What there is of the new file was never referred to.
                if let Err(error) = disk::unlink_database(options.disk.as_ref(), &path) {
                    tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished file");
                }
                let reason = format!("{}: {error}", path.display());
                match error.fault() {
                    Fault::NoSpace => self.wait_for_space(reason),
                    Fault::Io | Fault::Corrupt | Fault::Other => {
                        self.leave_alone(format!("progress cannot be written: {reason}"));
                    }
                }
            }
        }
    }

    /// Removes the old file, or keeps it aside where something of it could not be carried over.
    fn retire(&self, old: StateFile, carried: &Carried, reason: &str) {
        let path = old.path.clone();
        drop(old);
        let disk = self.shared.options.disk.as_ref();
        let fate = if carried.whole {
            disk::unlink_database(disk, &path).map(|()| "removed".to_owned())
        } else {
            disk::quarantine_database(disk, &path).map(|aside| {
                format!(
                    "kept as {}; some dead letters could not be read",
                    aside.display()
                )
            })
        };
        let fate = fate.unwrap_or_else(|error| format!("left in place: {error}"));
        self.shared.lock().note(format!(
            "progress was moved to {} after a failed write ({reason}); the old file was {fate}",
            self.file.path.display(),
        ));
    }
}
