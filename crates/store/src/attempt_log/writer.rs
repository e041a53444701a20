//! The thread that writes the record, and lets the oldest of it go.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use wayhold_model::Timestamp;

use super::file::{self, RecordFile};
use super::{AttemptEntry, Shared};
use crate::disk;

/// How long entries gather: what a kill takes of the record, and how seldom the disk is asked to sync.
const GATHER: Duration = Duration::from_secs(1);

/// A file ends at this size, so that what is let go is a small part.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A file ends after this share of the time that the record is kept: it goes as a whole, so that what is kept
/// longer is at most that.
const FILES_PER_TIME: u32 = 8;

/// Bytes of log after which it is moved into its file.
const LOG_BYTES_MAX: u64 = 4 << 20;

pub(super) struct Writer {
    shared: Arc<Shared>,
    file: Option<Open>,
}

struct Open {
    file: RecordFile,
    number: u64,
    begun: Timestamp,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, file: None }
    }

    pub(super) fn run(mut self) {
        self.let_go();
        loop {
            let (entries, asked, is_last) = self.gather();
            if !entries.is_empty() {
                self.write(&entries);
            }
            self.let_go();
            {
                let mut state = self.shared.lock();
                state.done = asked;
                self.shared.wake.notify_all();
            }
            if is_last {
                self.close();
                return;
            }
        }
    }

    /// Waits for entries; what there is, which wish that fulfils, and whether it is the last.
    fn gather(&self) -> (Vec<AttemptEntry>, u64, bool) {
        let shared = &self.shared;
        let state = shared.lock();
        let is_idle = |state: &mut super::State| !state.stopping && state.asked == state.done;
        let (mut state, _) = shared
            .wake
            .wait_timeout_while(state, GATHER, is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        let entries = std::mem::take(&mut state.waiting);
        (entries, state.asked, state.stopping)
    }

    fn write(&mut self, entries: &[AttemptEntry]) {
        let written = match self.open() {
            Ok(open) => open.file.write(entries).map_err(|error| error.to_string()),
            Err(reason) => Err(reason),
        };
        let count = entries.len() as u64;
        match written {
            Ok(()) => self.shared.lock().figures.written += count,
            Err(reason) => {
                // A file whose write failed is not written again.
                self.file = None;
                let mut state = self.shared.lock();
                if state.figures.dropped == 0 {
                    tracing::warn!(reason, "attempts are not recorded");
                }
                state.figures.dropped += count;
            }
        }
        let Some(open) = &self.file else { return };
        let path = file::path_of(&self.shared.directory, open.number);
        let log = self.shared.disk.len(&path.with_extension("db-wal"));
        if log.unwrap_or(0) > LOG_BYTES_MAX && open.file.checkpoint().is_err() {
            self.file = None;
        }
    }

    /// The file that is written now; a new one where there is none, or the last one is large or old enough.
    fn open(&mut self) -> Result<&mut Open, String> {
        let (shared, now) = (Arc::clone(&self.shared), self.shared.clock.now());
        let disk = shared.disk.as_ref();
        let is_over = |open: &Open| {
            let path = file::path_of(&shared.directory, open.number);
            let part = u64::from(FILES_PER_TIME);
            let size = FILE_BYTES_MAX.min(shared.options.bytes / part);
            now.since(open.begun) >= shared.options.time / FILES_PER_TIME
                || file::bytes(disk, &path) >= size
        };
        if self.file.as_ref().is_some_and(is_over) {
            self.close();
        }
        if self.file.is_none() {
            let number = shared.lock().files.last().map_or(1, |(last, _)| last + 1);
            let path = file::path_of(&shared.directory, number);
            let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            // Whatever becomes of it, the number is taken.
            shared.lock().files.push((number, now));
            let file = RecordFile::create(&path, now).map_err(|error| told(&error))?;
            disk.sync_directory(&shared.directory)
                .map_err(|error| told(&error))?;
            self.file = Some(Open {
                file,
                number,
                begun: now,
            });
        }
        self.file.as_mut().ok_or_else(|| "no file".to_owned())
    }

    fn close(&mut self) {
        if let Some(open) = self.file.take()
            && let Err(error) = open.file.checkpoint()
        {
            tracing::warn!(%error, "a part of the record of attempts stays in its log");
        }
    }

    /// Unlinks files that nobody wants any more, and counts the others.
    fn let_go(&mut self) {
        let (shared, now) = (Arc::clone(&self.shared), self.shared.clock.now());
        let disk = shared.disk.as_ref();
        let files = shared.lock().files.clone();
        let path = |number: u64| file::path_of(&shared.directory, number);
        let sized: Vec<_> = files
            .iter()
            .map(|(number, _)| file::bytes(disk, &path(*number)))
            .collect();
        let mut bytes: u64 = sized.iter().sum();
        let mut kept = Vec::new();
        for (index, ((number, begun), size)) in files.iter().zip(sized).enumerate() {
            let is_written = self
                .file
                .as_ref()
                .is_some_and(|open| open.number == *number);
            // The youngest of a file is older than the beginning of the next one.
            let next = files.get(index + 1).map(|(_, begun)| *begun);
            let is_old = next.is_some_and(|next| now.since(next) >= shared.options.time);
            let is_over = !is_written && (is_old || bytes > shared.options.bytes);
            if is_over && disk::unlink_database(disk, &path(*number)).is_ok() {
                bytes = bytes.saturating_sub(size);
            } else {
                kept.push((*number, *begun));
            }
        }
        let mut state = shared.lock();
        state.figures.bytes = bytes;
        state.figures.since = kept.first().map(|(_, begun)| *begun);
        state.files = kept;
    }
}
