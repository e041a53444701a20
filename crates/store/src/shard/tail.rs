//! The tail cache: the newest committed events in memory, bounded in bytes, so that a healthy lane
//! never reads the disk. Events enter it after their commit returned.
//!
//! What each destination is owed of them is listed apart: a lane reads its own and walks past nobody else's, so
//! that an event costs the same whether it is one of three destinations' or one of a thousand. And a lane is behind only
//! once something of its own was let go: one that gets an event an hour still finds it here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use wayhold_model::{DestinationId, StoredEvent};

/// The newest committed events of one shard, ascending by sequence.
pub(crate) struct Tail {
    inner: Mutex<Inner>,
    bytes_max: usize,
}

struct Inner {
    events: VecDeque<Arc<StoredEvent>>,
    /// How many events left `events` before its first.
    left: u64,
    /// What each destination is owed of `events`. One that was owed something once stays here: there are only so
    /// many destinations.
    owed: HashMap<DestinationId, Owed>,
    bytes: usize,
    /// Committed events below this sequence never were in `events`, or all of them were let go at once.
    begins_at: u64,
    /// The newest sequence that ever was.
    newest: u64,
}

/// What one destination is owed of the cached events.
struct Owed {
    /// Everything of it from this sequence on is cached.
    covers_from: u64,
    /// Ascending: sequence, and place since the shard was opened.
    entries: VecDeque<(u64, u64)>,
}

impl Tail {
    /// An empty cache of a shard whose next sequence is `next`.
    pub(crate) fn new(bytes_max: usize, next: u64) -> Self {
        let inner = Inner {
            events: VecDeque::new(),
            left: 0,
            owed: HashMap::new(),
            bytes: 0,
            begins_at: next,
            newest: next.saturating_sub(1),
        };
        Self {
            inner: Mutex::new(inner),
            bytes_max,
        }
    }

    /// Adds a committed group, in order.
    pub(crate) fn push(&self, group: impl Iterator<Item = Arc<StoredEvent>>) {
        let mut dropped = Vec::new();
        let mut inner = self.lock();
        for event in group {
            inner.add(event);
        }
        while inner.bytes > self.bytes_max
            && let Some(oldest) = inner.drop_oldest()
        {
            dropped.push(oldest);
        }
        // Freed outside the lock: dropping a megabyte of events takes longer than adding one.
        drop(inner);
        drop(dropped);
    }

    /// Lets go of everything: it is read from the disk from now on.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.begins_at = inner.newest + 1;
        inner.bytes = 0;
        inner.left += inner.events.len() as u64;
        inner.owed.clear();
        let dropped = std::mem::take(&mut inner.events);
        drop(inner);
        drop(dropped);
    }

    /// Calls `take` with every event above `after` that a destination is owed, in order, until it returns
    /// false. Returns the newest sequence, `after` where there is nothing above it: up to there everything was
    /// shown, unless `take` ended it. `None` when some of them are no longer cached: then nothing was shown.
    pub(crate) fn each_after(
        &self,
        destination: DestinationId,
        after: u64,
        mut take: impl FnMut(&Arc<StoredEvent>) -> bool,
    ) -> Option<u64> {
        let inner = self.lock();
        let owed = inner.owed.get(&destination);
        let covers_from = owed.map_or(inner.begins_at, |owed| owed.covers_from);
        if after.saturating_add(1) < covers_from {
            return None;
        }
        let newest = inner.newest.max(after);
        let Some(Owed { entries, .. }) = owed else {
            return Some(newest);
        };
        let start = entries.partition_point(|(sequence, _)| *sequence <= after);
        for (_, place) in entries.range(start..) {
            let at = usize::try_from(place - inner.left).ok();
            if let Some(event) = at.and_then(|at| inner.events.get(at))
                && !take(event)
            {
                break;
            }
        }
        Some(newest)
    }

    /// One event, if it is cached.
    pub(crate) fn get(&self, sequence: u64) -> Option<Arc<StoredEvent>> {
        let inner = self.lock();
        let index = inner
            .events
            .binary_search_by_key(&sequence, |event| event.position.sequence.0)
            .ok()?;
        inner.events.get(index).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, event: Arc<StoredEvent>) {
        let entry = (
            event.position.sequence.0,
            self.left + self.events.len() as u64,
        );
        for destination in event.destinations.ids() {
            let owed = self.owed.entry(*destination).or_insert_with(|| Owed {
                covers_from: self.begins_at,
                entries: VecDeque::new(),
            });
            owed.entries.push_back(entry);
        }
        self.newest = entry.0;
        self.bytes += weight(&event);
        self.events.push_back(event);
    }

    fn drop_oldest(&mut self) -> Option<Arc<StoredEvent>> {
        let oldest = self.events.pop_front()?;
        // It is the first of each list that it is in.
        for destination in oldest.destinations.ids() {
            if let Some(owed) = self.owed.get_mut(destination) {
                owed.entries.pop_front();
                owed.covers_from = oldest.position.sequence.0 + 1;
            }
        }
        self.left += 1;
        self.bytes -= weight(&oldest);
        Some(oldest)
    }
}

/// Bytes an event holds in memory, its bookkeeping included.
fn weight(event: &StoredEvent) -> usize {
    /// `StoredEvent`, `Event`, two reference counts and the queue's slot.
    const OVERHEAD: usize = 256;
    /// An entry of a destination's list.
    const ENTRY: usize = size_of::<(u64, u64)>();
    event.event.size() + OVERHEAD + ENTRY * event.destinations.ids().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayhold_model::{
        DestinationSet, Event, EventParts, Generation, Position, Sequence, ShardId, Timestamp,
    };

    /// The event of an odd sequence is owed to destinations 1 and 3, of an even one to 2 and 3.
    fn event(sequence: u64) -> Arc<StoredEvent> {
        let parts = EventParts {
            id: "1",
            source: "/s",
            kind: "t",
            ..EventParts::default()
        };
        Arc::new(StoredEvent {
            position: Position {
                generation: Generation(1),
                shard: ShardId(0),
                sequence: Sequence(sequence),
            },
            accepted_at: Timestamp::EPOCH,
            destinations: Arc::new(DestinationSet::new([
                DestinationId(if sequence % 2 == 1 { 1 } else { 2 }),
                EVERYTHING,
            ])),
            key_hash: None,
            event: Arc::new(Event::new(&parts).unwrap()),
        })
    }

    #[test]
    fn an_event_that_is_too_large_to_be_kept_is_behind_its_own_destination_alone() {
        let tail = Tail::new(0, 10);
        tail.push([11].map(event).into_iter());
        let [odd, even] = [1, 2].map(DestinationId);
        assert_eq!(owed_after(&tail, odd, 10), None);
        assert_eq!(owed_after(&tail, even, 10), Some((vec![], 11)));
        tail.clear();
        assert_eq!(owed_after(&tail, even, 10), None);
        assert_eq!(owed_after(&tail, odd, 11), Some((vec![], 11)));
    }

    const EVERYTHING: DestinationId = DestinationId(3);

    fn after(tail: &Tail, after: u64) -> Option<Vec<u64>> {
        owed_after(tail, EVERYTHING, after).map(|(seen, _)| seen)
    }

    /// What a destination is owed, and up to where that is all.
    fn owed_after(tail: &Tail, destination: DestinationId, after: u64) -> Option<(Vec<u64>, u64)> {
        let mut seen = Vec::new();
        let newest = tail.each_after(destination, after, |event| {
            seen.push(event.position.sequence.0);
            true
        })?;
        Some((seen, newest))
    }

    #[test]
    fn each_destination_is_shown_its_own_and_told_how_far_that_reaches() {
        let tail = Tail::new(4 * weight(&event(1)), 10);
        let [odd, even, none] = [1, 2, 77].map(DestinationId);
        tail.push([10, 11, 12, 14].map(event).into_iter());
        assert_eq!(owed_after(&tail, odd, 9), Some((vec![11], 14)));
        assert_eq!(owed_after(&tail, even, 10), Some((vec![12, 14], 14)));
        assert_eq!(owed_after(&tail, none, 9), Some((vec![], 14)));
        assert_eq!(owed_after(&tail, even, 14), Some((vec![], 14)));
        assert_eq!(owed_after(&tail, even, 20), Some((vec![], 20)));
        // 10 and 11 are dropped for space.
        tail.push([15, 18].map(event).into_iter());
        assert_eq!(owed_after(&tail, odd, 10), None, "11 was its own");
        assert_eq!(owed_after(&tail, odd, 11), Some((vec![15], 18)));
        assert_eq!(owed_after(&tail, even, 9), None, "10 was");
        assert_eq!(owed_after(&tail, even, 10), Some((vec![12, 14, 18], 18)));
        // Whoever lost nothing is behind nothing, however long ago it read.
        assert_eq!(owed_after(&tail, none, 9), Some((vec![], 18)));
        assert_eq!(owed_after(&tail, none, 8), None, "from before the start");
        let first_two = |seen: &mut Vec<u64>, event: &StoredEvent| {
            seen.push(event.position.sequence.0);
            seen.len() < 2
        };
        let mut seen = Vec::new();
        let newest = tail.each_after(even, 11, |event| first_two(&mut seen, event));
        assert_eq!(newest, Some(18));
        assert_eq!(seen, [12, 14]);
        tail.clear();
        tail.push([20].map(event).into_iter());
        assert_eq!(owed_after(&tail, even, 18), Some((vec![20], 20)));
        assert_eq!(owed_after(&tail, even, 14), None);
    }

    #[test]
    fn a_reader_at_the_tail_is_served_and_one_behind_is_told() {
        let tail = Tail::new(3 * weight(&event(1)), 10);
        assert_eq!(after(&tail, 9), Some(vec![]));
        assert_eq!(after(&tail, 8), None);
        tail.push([11, 12, 15].map(event).into_iter());
        assert_eq!(after(&tail, 9), Some(vec![11, 12, 15]));
        assert_eq!(after(&tail, 12), Some(vec![15]));
        tail.push([16, 17].map(event).into_iter());
        assert_eq!(after(&tail, 10), None, "11 and 12 were dropped for space");
        assert_eq!(after(&tail, 12), Some(vec![15, 16, 17]));
        assert!(tail.get(16).is_some() && tail.get(12).is_none() && tail.get(14).is_none());
        tail.clear();
        assert_eq!((after(&tail, 16), after(&tail, 17)), (None, Some(vec![])));
        assert!(tail.lock().owed.is_empty());
        tail.push([18].map(event).into_iter());
        assert_eq!(after(&tail, 17), Some(vec![18]));
    }
}
