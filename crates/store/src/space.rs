//! Room on the volume: accepting stops before the disk is full, and a reserve file is given up when it
//! is, so that what was accepted can still be recorded as delivered.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::{info, warn};

use crate::disk::Disk;

/// Watches the volume of one data directory.
#[derive(Debug)]
pub(crate) struct Space {
    disk: Arc<dyn Disk>,
    reserve: PathBuf,
    reserve_bytes: u64,
    min_free: u64,
    free: AtomicU64,
    low: AtomicBool,
    reserved: AtomicBool,
}

impl Space {
    /// Looks at the volume and makes the reserve where there is room for it.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        reserve: PathBuf,
        reserve_bytes: u64,
        min_free: u64,
    ) -> Self {
        let space = Self {
            disk,
            reserve,
            reserve_bytes,
            min_free,
            free: AtomicU64::new(u64::MAX),
            low: AtomicBool::new(false),
            reserved: AtomicBool::new(false),
        };
        let held = space
            .disk
            .len(&space.reserve)
            .is_ok_and(|bytes| bytes >= reserve_bytes);
        space.reserved.store(held, Ordering::Relaxed);
        space.check();
        space
    }

    /// Whether accepting must wait for room.
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Free bytes of the volume when last looked at.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Bytes of the reserve file.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        if self.reserved.load(Ordering::Relaxed) {
            self.reserve_bytes
        } else {
            0
        }
    }

    /// Looks at the volume: stops or resumes accepting, and makes the reserve again once there is room.
    pub(crate) fn check(&self) {
        let free = match self.disk.space(&self.reserve.with_file_name("")) {
            Ok(space) => space.free,
            Err(error) => {
                warn!(%error, "the volume's free space cannot be read");
                return;
            }
        };
        self.free.store(free, Ordering::Relaxed);
        let low = free < self.min_free;
        if self.low.swap(low, Ordering::Relaxed) != low {
            if low {
                warn!(
                    free,
                    min_free = self.min_free,
                    "accepting stops: the disk has too little free space"
                );
            } else {
                info!(free, "accepting resumes: the disk has room again");
            }
        }
        if !low
            && !self.reserved.load(Ordering::Relaxed)
            && free >= self.min_free + self.reserve_bytes
        {
            match self.disk.preallocate(&self.reserve, self.reserve_bytes) {
                Ok(()) => self.reserved.store(true, Ordering::Relaxed),
                Err(error) => warn!(%error, "the reserve file cannot be made"),
            }
        }
    }

    /// A write was refused for lack of space: accepting stops and the reserve is given up.
    pub(crate) fn exhausted(&self) {
        self.low.store(true, Ordering::Relaxed);
        if self.reserved.swap(false, Ordering::Relaxed) {
            warn!(
                "the disk is full: the reserve file is given up so that progress can be recorded"
            );
            if let Err(error) = self.disk.unlink(&self.reserve) {
                warn!(%error, "the reserve file cannot be removed");
            }
        }
    }
}
