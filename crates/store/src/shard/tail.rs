//! The tail cache: the newest committed events in memory, bounded in bytes, so that a healthy lane
//! never reads the disk. Events enter it after their commit returned.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use wayhold_model::StoredEvent;

/// The newest committed events of one shard, ascending by sequence.
pub(crate) struct Tail {
    inner: Mutex<Inner>,
    bytes_max: usize,
}

struct Inner {
    events: VecDeque<Arc<StoredEvent>>,
    bytes: usize,
    /// Every committed event of this sequence or above is in `events`.
    covers_from: u64,
}

impl Tail {
    /// An empty cache of a shard whose next sequence is `next`.
    pub(crate) fn new(bytes_max: usize, next: u64) -> Self {
        let inner = Inner {
            events: VecDeque::new(),
            bytes: 0,
            covers_from: next,
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
            inner.bytes += weight(&event);
            inner.events.push_back(event);
        }
        while inner.bytes > self.bytes_max
            && let Some(oldest) = inner.events.pop_front()
        {
            inner.bytes -= weight(&oldest);
            inner.covers_from = oldest.position.sequence.0 + 1;
            dropped.push(oldest);
        }
        // Freed outside the lock: dropping a megabyte of events takes longer than adding one.
        drop(inner);
        drop(dropped);
    }

    /// Lets go of everything: it is read from the disk from now on.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        if let Some(newest) = inner.events.back() {
            inner.covers_from = newest.position.sequence.0 + 1;
        }
        inner.bytes = 0;
        let dropped = std::mem::take(&mut inner.events);
        drop(inner);
        drop(dropped);
    }

    /// Calls `take` with every event above `after` in order until it returns false. `false` when some
    /// of them are no longer cached: then nothing was taken.
    pub(crate) fn each_after(
        &self,
        after: u64,
        mut take: impl FnMut(&Arc<StoredEvent>) -> bool,
    ) -> bool {
        let inner = self.lock();
        if after.saturating_add(1) < inner.covers_from {
            return false;
        }
        let start = inner
            .events
            .partition_point(|event| event.position.sequence.0 <= after);
        for event in inner.events.range(start..) {
            if !take(event) {
                break;
            }
        }
        true
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

/// Bytes an event holds in memory, its bookkeeping included.
fn weight(event: &StoredEvent) -> usize {
    /// `StoredEvent`, `Event`, two reference counts and the queue's slot.
    const OVERHEAD: usize = 256;
    event.event.size() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayhold_model::{
        DestinationSet, Event, EventParts, Generation, Position, Sequence, ShardId, Timestamp,
    };

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
            destinations: Arc::new(DestinationSet::new([])),
            key_hash: None,
            event: Arc::new(Event::new(&parts).unwrap()),
        })
    }

    fn after(tail: &Tail, after: u64) -> Option<Vec<u64>> {
        let mut seen = Vec::new();
        tail.each_after(after, |event| {
            seen.push(event.position.sequence.0);
            true
        })
        .then_some(seen)
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
        tail.push([18].map(event).into_iter());
        assert_eq!(after(&tail, 17), Some(vec![18]));
    }
}
