//! How much of what was accepted is not resolved, per destination and altogether: events, bytes, age.
//! Asked for many times a second, so it reads counts and never events: of each segment how many events it
//! holds and how many deliveries each lane has in it, and of progress how many of those are resolved.
//!
//! Bytes are those of the segments' files, shared equally by a segment's events: exact where the events of
//! a segment are alike, and never more than the files hold. A start finds the same numbers, since nothing
//! is added up over time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use wayhold_model::{DestinationId, Generation, LaneId, Sequence, ShardId, Timestamp};

use crate::catalog::DestinationRecord;
use crate::shard::core::Shard;
use crate::shard::segment::Segment;
use crate::store::Store;

/// Rows looked at in one hold of an active segment's index, to which the writer adds: few enough to be
/// no burden to it.
const RECENT_ROWS_MAX: usize = 1_024;

/// How long the oldest event of a lane is taken for its oldest after it was resolved, where finding the next
/// one reads an index file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A backlog at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Events with an unresolved delivery. Altogether an event counts once, or, where some of its segment
    /// are resolved for one destination and others for another, at most once for each.
    pub events: u64,
    /// Bytes that they occupy on disk.
    pub bytes: u64,
    /// When the oldest of them was accepted, where ages were asked for.
    pub oldest: Option<Timestamp>,
    /// How many have been resolved. Only differences between two readings mean something.
    pub resolved: i64,
}

/// Every backlog at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlogs {
    /// Of all destinations together, the retired ones too.
    pub whole: Pending,
    /// Of each destination.
    pub destinations: Vec<(DestinationId, Pending)>,
}

/// Measures backlogs; keep it, because it remembers how far each lane is resolved.
pub struct BacklogMeter {
    store: Store,
    ages: bool,
    oldest: HashMap<(Generation, ShardId, LaneId), Oldest>,
}

/// The earliest unresolved delivery of a lane in a shard when last looked at. It never moves back.
#[derive(Clone, Copy)]
struct Oldest {
    sequence: u64,
    accepted_at: u64,
    /// When an index file was last read for it.
    read: Option<Instant>,
}

/// What one segment holds.
struct Share {
    rows: u64,
    bytes: u64,
    /// Unresolved deliveries of all lanes.
    unresolved: u64,
}

impl BacklogMeter {
    pub(crate) fn new(store: Store, ages: bool) -> Self {
        Self {
            store,
            ages,
            oldest: HashMap::new(),
        }
    }

    /// Counts what is pending. Blocking; costs some nanoseconds for each lane and 64 pending events. With
    /// ages it reads an index file for each lane whose oldest event was resolved, at most once a second.
    pub fn measure(&mut self) -> Backlogs {
        let store = self.store.clone();
        let records = store.catalog().destinations();
        let mut all = Backlogs {
            whole: Pending::default(),
            destinations: records
                .iter()
                .map(|record| (record.id, Pending::default()))
                .collect(),
        };
        for shard in store.inner().shards.map().all() {
            self.add(shard, &records, &mut all);
        }
        let oldest = all.destinations.iter().filter_map(|(_, one)| one.oldest);
        all.whole.oldest = oldest.min();
        all
    }

    fn add(&mut self, shard: &Shard, records: &[DestinationRecord], all: &mut Backlogs) {
        let load =
            |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        // Before the segments: what is committed meanwhile counts as pending and not as resolved.
        let committed = load(&shard.commits.events);
        let segments = shard.segments();
        let mut shares: Vec<Share> = segments
            .iter()
            .map(|segment| Share {
                rows: segment.rows() as u64,
                bytes: load(&segment.bytes),
                unresolved: 0,
            })
            .collect();
        let mut events = 0;
        for (record, (_, pending)) in records.iter().zip(&mut all.destinations) {
            let stretches = segments.iter();
            let stretches = stretches.map(|segment| segment.stretch(record.id, record.lane));
            let stretches: Vec<_> = stretches.collect();
            let (unresolved, totals) = shard.progress.view(record.lane, |view| {
                let unresolved = stretches.iter().map(|stretch| {
                    let stretch = stretch.as_ref();
                    stretch.map_or(0, |stretch| view.unresolved_of(stretch))
                });
                (unresolved.collect::<Vec<u64>>(), view.totals())
            });
            let mut oldest = None;
            for ((segment, share), unresolved) in segments.iter().zip(&mut shares).zip(unresolved) {
                if unresolved == 0 {
                    continue;
                }
                share.unresolved += unresolved;
                pending.events += unresolved;
                pending.bytes += part(share.bytes, unresolved, share.rows);
                if self.ages {
                    oldest = oldest.or_else(|| self.oldest_in(shard, segment, record));
                }
            }
            pending.events += totals.redriving;
            events += totals.redriving;
            pending.oldest = pending.oldest.into_iter().chain(oldest).min();
            let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
            pending.resolved += ended.cast_signed();
        }
        for share in &shares {
            let unresolved = share.unresolved.min(share.rows);
            events += unresolved;
            all.whole.bytes += part(share.bytes, unresolved, share.rows);
        }
        all.whole.events += events;
        all.whole.resolved += committed.cast_signed() - events.cast_signed();
    }

    /// When the earliest unresolved delivery of a lane was accepted, where it lies in this segment, the
    /// first that holds one.
    fn oldest_in(
        &mut self,
        shard: &Shard,
        segment: &Segment,
        record: &DestinationRecord,
    ) -> Option<Timestamp> {
        let place = (shard.generation, shard.id, record.lane);
        let is_pending = |sequence: &u64| {
            let sequence = Sequence(*sequence);
            shard
                .progress
                .view(record.lane, |view| !view.is_resolved(sequence))
        };
        let known = self.oldest.get(&place).copied();
        if let Some(known) = known.filter(|known| is_pending(&known.sequence)) {
            return Some(Timestamp::from_micros(known.accepted_at));
        }
        let was_read = |known: &Oldest| known.read.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if let Some(known) = known.filter(|known| segment.is_indexed() && was_read(known)) {
            return Some(Timestamp::from_micros(known.accepted_at));
        }
        let disk = shard.disk.as_ref();
        let (first, _) = segment.span()?;
        let mut after = known
            .map_or(0, |known| known.sequence)
            .max(first.saturating_sub(1));
        let (max, read) = match segment.is_indexed() {
            // One reading gives them all.
            true => (usize::MAX, Some(Instant::now())),
            false => (RECENT_ROWS_MAX, None),
        };
        loop {
            let sequences = segment.lane_after(disk, record.id, after, max).ok()?;
            after = *sequences.last()?;
            let found = shard.progress.view(record.lane, |view| {
                let mut sequences = sequences.into_iter();
                sequences.find(|sequence| !view.is_resolved(Sequence(*sequence)))
            });
            if let Some(sequence) = found {
                let accepted_at = segment.identity_at(disk, sequence).ok()??.accepted_at;
                self.oldest.insert(
                    place,
                    Oldest {
                        sequence,
                        accepted_at,
                        read,
                    },
                );
                return Some(Timestamp::from_micros(accepted_at));
            }
        }
    }
}

/// The share of `some` of `all` events in so many bytes.
fn part(bytes: u64, some: u64, all: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(some.min(all)) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(bytes)
}
