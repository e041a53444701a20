//! How fast a backup goes: it takes a share of the disk and leaves the rest to the store, whose syncs wait for
//! whatever else the volume does.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After each step a pause as long as the step: the store has the disk for half of the time, however slow it is.
const PAUSE_FACTOR: u32 = 1;

/// Longest pause, so that a step that was slow once does not hold the backup up.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The pace of one backup, and whether it may go on.
pub(super) struct Pace<'a> {
    /// Why it has to end; asked after every step.
    stop: &'a (dyn Fn() -> Option<Stop> + Sync),
    pauses: bool,
    copied: &'a AtomicU64,
}

/// Why a backup ends before it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The store stops.
    Stopping,
    /// The store's volume lacks room, which the segments that are waited for might give back.
    Low,
}

impl<'a> Pace<'a> {
    /// Beside a running store.
    pub(super) fn beside(
        stop: &'a (dyn Fn() -> Option<Stop> + Sync),
        copied: &'a AtomicU64,
    ) -> Self {
        Self {
            stop,
            pauses: true,
            copied,
        }
    }

    /// Where nobody waits.
    pub(super) fn alone(copied: &'a AtomicU64) -> Self {
        Self {
            stop: &|| None,
            pauses: false,
            copied,
        }
    }

    /// Does a step, then lets others have the disk.
    pub(super) fn step<T>(&self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.stopped().is_some() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let begun = Instant::now();
        let done = step()?;
        if self.pauses {
            std::thread::sleep(begun.elapsed().saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX));
        }
        Ok(done)
    }

    /// Why it has to end.
    pub(super) fn stopped(&self) -> Option<Stop> {
        (self.stop)()
    }

    /// So many bytes more are in the backup.
    pub(super) fn copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }
}
