//! Every limit of the store, with its reason.

use std::time::Duration;

/// Bounds and timings of a store. `Options::default()` is what production runs with; tests run the
/// same suites at tiny limits too.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many shards a new data directory gets, 1 to `SHARDS_MAX`. A directory keeps the number that it
    /// was made with.
    pub shards: u16,
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
    /// Events that wait for a commit may weigh this much, shared equally by the shards; further requests
    /// wait at the door.
    pub queue_bytes: usize,
    /// Committed events kept in memory, so that a healthy lane never reads the disk; shared equally by
    /// the shards.
    pub tail_bytes: usize,
    /// How long an id is remembered for idempotent acceptance.
    pub window: Duration,
    /// Ids that are remembered, the newest: 5.4 bytes of memory each, at most `WINDOW_IDS_MAX`.
    pub window_ids: usize,
    /// A segment of which everything is resolved is kept for replay this long; zero keeps none.
    pub retention: Duration,
    /// At most this many bytes of such segments are kept, the newest, WALs included; zero keeps none.
    /// Sooner still they go where the volume has less than `min_free`, before anything is refused.
    pub retention_bytes: u64,
    /// Accepting stops while the volume has fewer free bytes; `None` is 512 MiB or two segments of each
    /// shard that takes events and the reserve, whichever is more.
    pub min_free: Option<u64>,
    /// Size of the reserve file, released when the disk is full so that progress can still be written.
    pub reserve_bytes: u64,
    /// A closed segment that is still unresolved after this long is checkpointed.
    pub checkpoint_after: Duration,
    /// Bytes that are cut off the file of a resolved segment at once while it is removed: the piece of work
    /// of the volume that a sync of the writer may have to wait for. Small enough to take about as
    /// long as a sync.
    pub removal_step: u64,
    /// A compaction gives back at least this many bytes: less is not worth two syncs and another file.
    pub compaction_gain: u64,
    /// How often it is looked for segments to compact: disk is given back that much later.
    pub compaction_every: Duration,
    /// How often the mark is synced: it bounds the tail that is copied after a power cut.
    pub mark_sync: Duration,
    /// Page size of segment files, in bytes.
    pub page_size: u32,
    /// Pages of the log of commands after which it is moved into its file although changes wait: hundreds of commands.
    /// Nobody is answered meanwhile, so it is little enough to take no longer than a few groups.
    pub commands_log_pages: u32,
    /// Groups of changes that are synced between two such moves, so that few of all syncs are theirs where a disk takes
    /// long for one and groups are large.
    pub commands_log_groups: u32,
    /// Open read connections to closed segments, shared equally by the shards: lanes mostly read the same
    /// segments, and each connection costs a file descriptor and a page cache.
    pub readers_open: usize,
    /// SQLite VFS by name, for fault injection; `None` is the operating system's.
    pub vfs: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shards: 1,
            segment_bytes: 64 * MIB,
            segment_rows: 65_536,
            segment_age: Duration::from_secs(600),
            group_bytes: 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            tail_bytes: 16 * 1024 * 1024,
            window: Duration::from_secs(24 * 3600),
            window_ids: 2_000_000,
            retention: Duration::from_secs(24 * 3600),
            retention_bytes: 4096 * MIB,
            min_free: None,
            reserve_bytes: 32 * MIB,
            checkpoint_after: Duration::from_secs(30),
            removal_step: 2 * MIB,
            compaction_gain: 4 * MIB,
            compaction_every: Duration::from_millis(500),
            mark_sync: Duration::from_millis(100),
            page_size: 4096,
            commands_log_pages: 512,
            commands_log_groups: 8,
            readers_open: 16,
            vfs: None,
        }
    }
}

impl Options {
    /// Free bytes of the volume below which accepting stops in a new data directory.
    pub fn min_free_bytes(&self) -> u64 {
        self.min_free_of(self.shards)
    }

    /// The same where so many shards take events.
    pub(crate) fn min_free_of(&self, shards: u16) -> u64 {
        self.min_free.unwrap_or_else(|| {
            let segments = 2 * u64::from(shards);
            (512 * MIB).max(
                self.segment_bytes
                    .saturating_mul(segments)
                    .saturating_add(self.reserve_bytes),
            )
        })
    }

    /// The options of one shard of so many: what is bounded for the whole store is shared equally.
    pub(crate) fn share(&self, shards: u16) -> Self {
        let shards = usize::from(shards.max(1));
        Self {
            queue_bytes: self.queue_bytes.div_ceil(shards),
            tail_bytes: self.tail_bytes / shards,
            readers_open: (self.readers_open / shards).max(READERS_OPEN_MIN),
            ..self.clone()
        }
    }
}

/// Most ids that a window may be asked to remember: more take over 20 GB of memory, and a start that reads
/// all their index files takes many minutes.
pub const WINDOW_IDS_MAX: usize = 4_000_000_000;

const MIB: u64 = 1024 * 1024;

/// Closed segments that may lack their index file; more would make recovery after a crash long.
pub(crate) const UNINDEXED_MAX: usize = 2;

/// Closed segments that may wait for their checkpoint before accepting slows down.
pub(crate) const CHECKPOINTS_WAITING_MAX: usize = 8;

/// Segments are compacted where at most one of so many of their bytes is still needed: a compaction gives back
/// three times what it writes, so that all of them together write a third of what was accepted at most.
pub(crate) const COMPACTION_LIVE_MAX: u64 = 4;

/// Segments that are compacted together at most: each is locked against its removal meanwhile.
pub(crate) const COMPACTION_SOURCES_MAX: usize = 256;

/// With room for fewer segments of full size above `min_free`, what is resolved of a segment is no longer kept for
/// replay: later there would be no room to compact.
pub(crate) const COMPACTION_SHORT_SEGMENTS: u64 = 4;

/// Open read connections that a shard may have however many shards there are: one for what is read in
/// turn and one for what is fetched again.
const READERS_OPEN_MIN: usize = 2;

/// Most bytes of events that one read of a lane returns; a lane holds two such reads.
pub(crate) const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Threads that fill the idempotency window at open: they wait for memory, and beyond a few for each other.
pub(crate) const RESTORING_THREADS_MAX: usize = 4;
