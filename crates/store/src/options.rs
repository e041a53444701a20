//! Every limit of the store, with its reason.

use std::time::Duration;

/// Bounds and timings of a store. `Options::default()` is what production runs with; tests run the
/// same suites at tiny limits too.
#[derive(Clone, Debug)]
pub struct Options {
    /// A segment ends when its WAL has this many bytes: it bounds recovery at open and what one
    /// blocked delivery can hold on disk.
    pub segment_bytes: u64,
    /// A segment ends at this many rows: it bounds the index file and the memory of the unindexed.
    pub segment_rows: u32,
    /// A segment with a row ends at this age, so that little traffic is cleaned as well.
    pub segment_age: Duration,
    /// One commit holds at most this many bytes of events (a larger single request still fits): a
    /// longer group only raises latency, not throughput.
    pub group_bytes: usize,
    /// Events that wait for a commit may weigh this much; further requests wait at the door.
    pub queue_bytes: usize,
    /// Committed events kept in memory, so that a healthy lane never reads the disk.
    pub tail_bytes: usize,
    /// How long an id is remembered for idempotent acceptance.
    pub window: Duration,
    /// At most this many ids are remembered: 20 bytes each, allocated at open.
    pub window_ids: usize,
    /// Accepting stops while the volume has fewer free bytes; `None` is 512 MiB or two segments and the
    /// reserve, whichever is more.
    pub min_free: Option<u64>,
    /// Size of the reserve file, released when the disk is full so that progress can still be written.
    pub reserve_bytes: u64,
    /// A closed segment that is still unresolved after this long is checkpointed.
    pub checkpoint_after: Duration,
    /// How often the mark is synced: it bounds the tail that is copied after a power cut.
    pub mark_sync: Duration,
    /// Page size of segment files, in bytes.
    pub page_size: u32,
    /// SQLite VFS by name, for fault injection; `None` is the operating system's.
    pub vfs: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * MIB,
            segment_rows: 65_536,
            segment_age: Duration::from_secs(600),
            group_bytes: 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            tail_bytes: 32 * 1024 * 1024,
            window: Duration::from_secs(24 * 3600),
            window_ids: 2_000_000,
            min_free: None,
            reserve_bytes: 32 * MIB,
            checkpoint_after: Duration::from_secs(30),
            mark_sync: Duration::from_millis(100),
            page_size: 4096,
            vfs: None,
        }
    }
}

impl Options {
    /// Free bytes of the volume below which accepting stops.
    pub fn min_free_bytes(&self) -> u64 {
        self.min_free.unwrap_or_else(|| {
            (512 * MIB).max(
                self.segment_bytes
                    .saturating_mul(2)
                    .saturating_add(self.reserve_bytes),
            )
        })
    }
}

const MIB: u64 = 1024 * 1024;

/// Closed segments that may lack their index file; more would make recovery after a crash long.
pub(crate) const UNINDEXED_MAX: usize = 2;

/// Closed segments that may wait for their checkpoint before accepting slows down.
pub(crate) const CHECKPOINTS_WAITING_MAX: usize = 8;

/// Open read connections to closed segments: lanes mostly read the same ones, and each costs a file
/// descriptor and a page cache.
pub(crate) const READERS_OPEN_MAX: usize = 16;

/// Most bytes of events that one read of a lane returns.
pub(crate) const READ_BYTES_MAX: usize = 8 * 1024 * 1024;
