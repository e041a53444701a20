//! What a shard counts: the accounting identity per lane, and sizes for metrics and status.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use wayhold_model::{DestinationId, LaneId, Sequence};

use super::core::{Held, Shard};
use super::segment::Segment;
use crate::delivery::LaneTotals;
use crate::figures::Figures;
use crate::progress::{LaneView, Stretch, Totals};

impl Shard {
    /// Counts of one lane from three sources that know nothing of each other: index files count what
    /// was accepted, bitmaps what is pending, settlements how it ended.
    pub(crate) fn totals(&self, lane: LaneId, destination: DestinationId) -> LaneTotals {
        let (settled, accepted) = self.accepted(lane, destination);
        LaneTotals {
            accepted,
            pending: self.pending(lane, destination),
            delivered: settled.delivered,
            dead: settled.dead,
            expired: settled.expired,
            discarded: settled.discarded,
            redriven: settled.redriven,
        }
    }

    /// Unresolved deliveries of a lane, redrives included.
    pub(crate) fn pending(&self, lane: LaneId, destination: DestinationId) -> u64 {
        let stretches: Vec<Stretch> = self
            .segments()
            .iter()
            .filter_map(|segment| segment.stretch(destination, lane))
            .collect();
        self.progress.view(lane, |view| {
            let unresolved = stretches.iter().map(|stretch| view.unresolved_of(stretch));
            unresolved.sum::<u64>() + view.totals().redriving
        })
    }

    /// Counts of settlements, and the obligations of a lane: those of segments that were found resolved and
    /// those of the others. A segment is recorded as resolved, which takes a sync, before it leaves the
    /// list; holding the list meanwhile counts it once.
    fn accepted(&self, lane: LaneId, destination: DestinationId) -> (Totals, u64) {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let numbers = segments.iter().map(|segment| segment.number());
        let (settled, counted) = self.progress.totals_and_counted(lane, numbers);
        let held = segments
            .iter()
            .filter(|segment| !counted.contains(&segment.number()))
            .map(|segment| segment.count(destination));
        (settled, settled.accepted_base + held.sum::<u64>())
    }

    /// After progress was lost and dead letters were saved from the damaged file: those whose event lies
    /// in no segment any more still count as accepted.
    pub(crate) fn restore_base(&self, saved: &[(LaneId, Sequence)]) {
        for (lane, sequence) in saved {
            let is_held = self
                .segment_of(sequence.0)
                .is_some_and(|(_, held)| held == Held::Whole);
            if !is_held {
                self.progress.add_accepted_base(*lane, 1);
            }
        }
    }

    /// Sizes and counts.
    pub(crate) fn figures(&self) -> Figures {
        let segments = self.segments();
        let retained = self.retained();
        let known = self.known();
        let now = self.clock.now().as_micros();
        let closed = segments
            .iter()
            .filter(|segment| segment.is_closed())
            .count() as u64;
        let state = self
            .disk
            .list(&self.dir)
            .unwrap_or_default()
            .into_iter()
            .filter(|name| name.to_string_lossy().starts_with("state"));
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        Figures {
            // The active one and the prepared one.
            segments_active: segments.len() as u64 - closed + 1,
            segments_closed: closed,
            segments_compacted: segments.iter().filter(|one| one.is_compacted()).count() as u64,
            segments_retained: retained.len() as u64,
            segment_bytes: segments.iter().map(|segment| load(&segment.bytes)).sum(),
            retained_bytes: retained.iter().map(|segment| load(&segment.bytes)).sum(),
            compactions: load(&self.compactions),
            compacted_bytes: load(&self.compacted_bytes),
            index_bytes: known.iter().map(|segment| segment.index_bytes()).sum(),
            state_bytes: state
                .map(|name| self.disk.len(&self.dir.join(name)).unwrap_or(0))
                .sum(),
            groups: load(&self.commits.groups),
            group_events: load(&self.commits.events),
            commit_buckets: self.commits.by_duration.each_ref().map(load),
            commit_micros: load(&self.commits.micros),
            group_buckets: self.commits.by_size.each_ref().map(load),
            oldest_unresolved: self.oldest_unresolved(&segments, now),
            ..Figures::default()
        }
    }

    /// Whether anything of a segment is unresolved, by the counts: reads nothing.
    pub(crate) fn has_unresolved(&self, segment: &Segment) -> bool {
        self.any_lane(segment, |view, stretch| view.unresolved_of(stretch) > 0)
    }

    /// Whether anything of a segment is held, unresolved or referred to by a dead letter, by the counts:
    /// reads nothing.
    pub(crate) fn has_held(&self, segment: &Segment) -> bool {
        self.any_lane(segment, |view, stretch| view.held_of(stretch) > 0)
    }

    /// How many deliveries of a segment are held, of all lanes together: reads nothing.
    pub(crate) fn held_in(&self, segment: &Segment) -> u64 {
        let destinations = segment.counts().into_iter();
        let held = destinations.map(|(destination, count)| {
            // Whoever it is, nobody has delivered it.
            let Some(lane) = self.lane_of(destination) else {
                return count;
            };
            let stretch = segment.stretch(destination, lane);
            stretch.map_or(0, |stretch| {
                self.progress.view(lane, |view| view.held_of(&stretch))
            })
        });
        held.sum()
    }

    /// Whether it is so for what any lane has in the segment.
    fn any_lane(&self, segment: &Segment, is_so: impl Fn(LaneView<'_>, &Stretch) -> bool) -> bool {
        let mut destinations = segment.counts().into_keys();
        destinations.any(|destination| {
            // Whoever it is, nobody has delivered it.
            let Some(lane) = self.lane_of(destination) else {
                return true;
            };
            let stretch = segment.stretch(destination, lane);
            stretch.is_some_and(|stretch| self.progress.view(lane, |view| is_so(view, &stretch)))
        })
    }

    /// Age of the first event of the first segment that has something unresolved.
    fn oldest_unresolved(&self, segments: &[Arc<Segment>], now: u64) -> Option<Duration> {
        let segment = segments.iter().find(|one| self.has_unresolved(one))?;
        let oldest = segment.oldest(self.disk.as_ref()).ok()??;
        Some(Duration::from_micros(now.saturating_sub(oldest)))
    }
}
