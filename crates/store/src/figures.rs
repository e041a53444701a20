//! What the store says of itself: health, figures, findings of recovery, and where an event stands.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::{DestinationSet, Position, StoredEvent, Timestamp};

/// An event found by identity or position. Its trace outlives its content: once everything of its segment
/// is resolved and the retention is over, only the index file remembers it, for the window.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it lies or lay.
    pub position: Position,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Whom it owed a delivery to.
    pub destinations: Arc<DestinationSet>,
    /// The event, while it is held.
    pub event: Option<Arc<StoredEvent>>,
}

/// Whether the store can durably accept, and what is not as it should be.
#[derive(Clone, Debug)]
pub struct Health {
    /// Why nothing can be accepted now, where that is so.
    pub unavailable: Option<String>,
    /// What a person should know: damaged tails, quarantined files, skipped rows, replaced files.
    pub degraded: Vec<String>,
}

/// What opening found.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Whether the last run ended without a clean stop.
    pub unclean: bool,
    /// Rows above the mark that were copied and synced before anything else.
    pub unproven: u64,
    /// Segments that were found, and events pending in them for any lane.
    pub segments: u64,
    /// One sentence per finding that a person should know.
    pub findings: Vec<String>,
    /// How long opening took.
    pub took: Duration,
}

/// Sizes and counts for metrics and status.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Shards that take new events.
    pub shards: u64,
    /// Segments that take or wait to take rows: the active one and the prepared one.
    pub segments_active: u64,
    /// Closed segments with something unresolved.
    pub segments_closed: u64,
    /// Those of them that were compacted from others.
    pub segments_compacted: u64,
    /// Resolved segments that are kept for replay.
    pub segments_retained: u64,
    /// Bytes of the files of active and closed segments, WALs included.
    pub segment_bytes: u64,
    /// Bytes of the files of retained segments, WALs included.
    pub retained_bytes: u64,
    /// Compactions since the start.
    pub compactions: u64,
    /// Bytes that they gave back.
    pub compacted_bytes: u64,
    /// Bytes of index files.
    pub index_bytes: u64,
    /// Bytes of state and catalogue.
    pub state_bytes: u64,
    /// Bytes of the reserve file.
    pub reserve_bytes: u64,
    /// Free bytes of the volume.
    pub disk_free_bytes: u64,
    /// Bytes of events that wait for a commit.
    pub queued_bytes: u64,
    /// Commits since the start.
    pub groups: u64,
    /// Events in them.
    pub group_events: u64,
    /// Commit duration (write and sync), as counts per bucket of `COMMIT_BUCKETS`, then above.
    pub commit_buckets: [u64; COMMIT_BUCKETS.len() + 1],
    /// Their sum, in microseconds.
    pub commit_micros: u64,
    /// Events per commit, as counts per bucket of `GROUP_BUCKETS`, then above.
    pub group_buckets: [u64; GROUP_BUCKETS.len() + 1],
    /// Ids remembered.
    pub window_ids: u64,
    /// Age of the oldest id remembered.
    pub window_reach: Duration,
    /// Age of the first event of the oldest segment that holds something unresolved: no pending event is
    /// older, redriven ones aside.
    pub oldest_unresolved: Option<Duration>,
}

impl Figures {
    /// Those of two shards together. What the store has once is not summed: it is the store's to fill in.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            segments_active: self.segments_active + other.segments_active,
            segments_closed: self.segments_closed + other.segments_closed,
            segments_compacted: self.segments_compacted + other.segments_compacted,
            segments_retained: self.segments_retained + other.segments_retained,
            segment_bytes: self.segment_bytes + other.segment_bytes,
            retained_bytes: self.retained_bytes + other.retained_bytes,
            compactions: self.compactions + other.compactions,
            compacted_bytes: self.compacted_bytes + other.compacted_bytes,
            index_bytes: self.index_bytes + other.index_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            groups: self.groups + other.groups,
            group_events: self.group_events + other.group_events,
            commit_buckets: sums(self.commit_buckets, other.commit_buckets),
            commit_micros: self.commit_micros + other.commit_micros,
            group_buckets: sums(self.group_buckets, other.group_buckets),
            oldest_unresolved: self.oldest_unresolved.max(other.oldest_unresolved),
            ..Self::default()
        }
    }
}

fn sums<const N: usize>(first: [u64; N], second: [u64; N]) -> [u64; N] {
    let mut second = second.into_iter();
    first.map(|count| count + second.next().unwrap_or(0))
}

/// Upper bounds of `Figures::commit_buckets`, in microseconds.
pub const COMMIT_BUCKETS: [u64; 12] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_500_000,
];

/// Upper bounds of `Figures::group_buckets`, in events.
pub const GROUP_BUCKETS: [u64; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096];
