//! What a replay has done away from its loop, and what comes of it: it counts first, then loads what was open, then
//! reads on as there is room, and records how far it is.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;
use wayhold_model::StoredEvent;
use wayhold_store::catalog::{REPLAY_UNRESOLVED_MAX, ReplayProgress, ReplayState, SelectedSize};
use wayhold_store::{Scan, ScanOrder};

use super::errand::{self, Batch, Done};
use super::{OPEN_BYTES_MAX, REPEATS_MAX, ReplayLane, SAVE_EVERY};
use crate::dispatch::pace::READ_AGAIN_AFTER;

impl ReplayLane {
    pub(super) fn send_errands(&mut self) {
        if Instant::now() < self.again_at {
            return;
        }
        if self.record.state != ReplayState::Cancelled && self.stop_by.is_none() {
            self.prepare();
        }
        let is_due = self.unsaved >= REPEATS_MAX / 2 || self.saved_at.elapsed() >= SAVE_EVERY;
        if self.is_dirty && is_due && !self.is_saving {
            self.is_saving = true;
            self.is_dirty = false;
            self.saved_at = Instant::now();
            let (store, id, resolved) = (self.store.clone(), self.record.id, self.unsaved);
            let progress = self.progress_now();
            self.errands
                .spawn_blocking(move || errand::save(&store, id, &progress, resolved));
        }
        if self.is_done() && !self.is_putting && !self.is_saving {
            self.finish();
        }
    }

    /// Counts first, then loads what was open, then reads on as there is room.
    fn prepare(&mut self) {
        if self.is_preparing {
            return;
        }
        let store = self.store.clone();
        let takes = Arc::clone(&self.takes);
        let range = self.record.range;
        if self.size.is_none() {
            let stopping = Arc::clone(&self.stopping);
            self.errands
                .spawn_blocking(move || errand::count_until(&store, range, &takes, &stopping));
        } else if !self.is_loaded {
            let open = self.record.progress.open.clone();
            self.errands
                .spawn_blocking(move || errand::load(&store, &open));
        } else if let Some(scan) = self.next_scan() {
            let room = REPLAY_UNRESOLVED_MAX.saturating_sub(self.window.len());
            let room = (room, OPEN_BYTES_MAX.saturating_sub(self.window.bytes()));
            let destination = self.record.destination;
            self.errands
                .spawn_blocking(move || errand::read(&store, scan, &takes, destination, room));
        } else {
            return;
        }
        self.is_preparing = true;
    }

    /// The scan, where there is room for much more.
    fn next_scan(&mut self) -> Option<Scan> {
        let has_room = self.window.len() <= REPLAY_UNRESOLVED_MAX / 2
            && self.window.bytes() <= OPEN_BYTES_MAX / 2;
        match self.has_read_all || !has_room || self.record.state != ReplayState::Running {
            true => None,
            false => self.scan.take(),
        }
    }

    pub(super) fn take(&mut self, done: Done) {
        match done {
            Done::Counted(counted) => {
                self.is_preparing = false;
                match counted {
                    Ok(Some(size)) => self.take_size(size),
                    Ok(None) => {}
                    Err(error) => self.failed(&error),
                }
            }
            Done::Loaded(loaded) => {
                self.is_preparing = false;
                match loaded {
                    Ok((events, missing)) => self.take_loaded(events, missing),
                    Err(error) => self.failed(&error),
                }
            }
            Done::Read(scan, batch) => {
                self.is_preparing = false;
                match batch {
                    Ok(batch) => self.take_batch(&scan, batch),
                    Err(error) => self.failed(&error),
                }
                self.scan = Some(scan);
            }
            Done::Saved(saved) => {
                self.is_saving = false;
                match saved {
                    Ok(resolved) => self.unsaved = self.unsaved.saturating_sub(resolved),
                    Err(error) => {
                        self.is_dirty = true;
                        self.failed(&error);
                    }
                }
            }
            Done::Put(put) => {
                self.is_putting = false;
                match put {
                    Ok(_) => self.take_state(),
                    Err(error) => self.failed(&error),
                }
            }
        }
    }

    fn failed(&mut self, error: &dyn std::fmt::Display) {
        warn!(replay = self.record.id, %error, "replay waits");
        self.last_error = Some(error.to_string());
        self.again_at = Instant::now() + READ_AGAIN_AFTER;
    }

    fn take_size(&mut self, size: SelectedSize) {
        let (store, id) = (self.store.clone(), self.record.id);
        self.size = Some(size);
        self.is_saving = true;
        self.errands
            .spawn_blocking(move || errand::save_size(&store, id, &size));
    }

    fn take_loaded(&mut self, events: Vec<Arc<StoredEvent>>, missing: u64) {
        let now = self.now();
        for event in events {
            self.window.offer(event, now);
        }
        self.progress.counts.missing += missing;
        self.is_dirty |= missing > 0;
        self.is_loaded = true;
        let place = self.progress.place.clone();
        let range = self.record.range;
        self.scan = Some(self.store.scan(ScanOrder::OldestFirst, range, place));
    }

    pub(super) fn take_batch(&mut self, scan: &Scan, batch: Batch) {
        let now = self.now();
        for event in batch.events {
            self.window.offer(event, now);
        }
        self.progress.place = scan.place().cloned();
        self.progress.counts.skipped += batch.skipped;
        self.read_until = batch.last_at.unwrap_or(self.read_until);
        self.has_read_all = batch.is_over;
        self.is_dirty = true;
    }

    /// What is recorded of how far it is.
    pub(super) fn progress_now(&self) -> ReplayProgress {
        if !self.is_loaded {
            return self.progress.clone();
        }
        let oldest = self.window.oldest();
        ReplayProgress {
            open: self.window.positions(),
            needs_from: oldest.map_or(self.read_until, |oldest| oldest.min(self.read_until)),
            ..self.progress.clone()
        }
    }

    fn is_done(&self) -> bool {
        self.has_read_all
            && self.window.len() == 0
            && self.flight.is_empty()
            && !self.record.state.has_ended()
    }

    /// What was counted and is not there any more is missing; what was not there yet when it was counted was
    /// selected too.
    fn finish(&mut self) {
        let Some(size) = &mut self.size else { return };
        let resolved = self.progress.counts.resolved();
        size.events = size.events.max(resolved);
        self.progress.counts.missing += size.events - resolved;
        let size = *size;
        self.is_putting = true;
        let (store, id) = (self.store.clone(), self.record.id);
        let progress = self.progress_now();
        self.errands
            .spawn_blocking(move || errand::finish(&store, id, &size, &progress));
    }
}
