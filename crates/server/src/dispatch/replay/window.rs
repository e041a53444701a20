//! What a replay has read and not resolved, and whose turn it is: of each key one delivery at a time, in the order
//! in which they were read. Nothing but values.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use wayhold_model::{Position, StoredEvent, Timestamp};

/// Deliveries of a replay that are not resolved.
#[derive(Debug, Default)]
pub(super) struct Window {
    open: BTreeMap<Position, Open>,
    /// Of each key what is open, the one whose turn it is first.
    keys: HashMap<u64, VecDeque<Position>>,
    /// May be sent now.
    ready: BTreeSet<Position>,
    /// Failed, and when they may be sent again.
    due: BTreeSet<(Timestamp, Position)>,
    bytes: usize,
}

#[derive(Debug)]
struct Open {
    event: Arc<StoredEvent>,
    tries: Tries,
}

/// What was tried of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tries {
    /// Attempts that count.
    pub(super) attempts: u32,
    /// Attempts since the last one that counts, which the receiver put off.
    pub(super) put_off: u32,
    /// When it was read.
    pub(super) since: Timestamp,
}

/// A delivery whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) event: Arc<StoredEvent>,
    pub(super) tries: Tries,
}

impl Window {
    /// Takes what was read, behind everything of its key.
    pub(super) fn offer(&mut self, event: Arc<StoredEvent>, now: Timestamp) {
        let position = event.position;
        let is_next = match event.key_hash {
            None => true,
            Some(key) => {
                let waiting = self.keys.entry(key).or_default();
                waiting.push_back(position);
                waiting.len() == 1
            }
        };
        if is_next {
            self.ready.insert(position);
        }
        self.bytes += event.event.size();
        let tries = Tries {
            attempts: 0,
            put_off: 0,
            since: now,
        };
        self.open.insert(position, Open { event, tries });
    }

    /// What failed may be sent again once its time has come.
    pub(super) fn wake(&mut self, now: Timestamp) {
        while let Some(&(at, position)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            self.ready.insert(position);
        }
    }

    /// Whose turn it is, if anybody's: it is on its way from now on.
    pub(super) fn next(&mut self) -> Option<Turn> {
        let position = self.ready.pop_first()?;
        let Open { event, tries } = self.open.get(&position)?;
        Some(Turn {
            event: Arc::clone(event),
            tries: *tries,
        })
    }

    /// It was not sent after all.
    pub(super) fn give_back(&mut self, turn: &Turn) {
        self.ready.insert(turn.event.position);
    }

    /// It failed, and is to be sent again at `at`; what comes after it of its key waits.
    pub(super) fn failed(&mut self, position: Position, tries: Tries, at: Timestamp) {
        if let Some(open) = self.open.get_mut(&position) {
            open.tries = tries;
            self.due.insert((at, position));
        }
    }

    /// It needs nothing more; the next one of its key has its turn.
    pub(super) fn resolved(&mut self, position: Position) {
        let Some(Open { event, .. }) = self.open.remove(&position) else {
            return;
        };
        self.bytes -= event.event.size();
        let Some(key) = event.key_hash else { return };
        let Some(waiting) = self.keys.get_mut(&key) else {
            return;
        };
        waiting.retain(|other| *other != position);
        match waiting.front() {
            Some(next) => {
                self.ready.insert(*next);
            }
            None => {
                self.keys.remove(&key);
            }
        }
    }

    /// Whether anybody's turn it is.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next that failed may be sent again.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Bytes of their events.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where they lie, ascending.
    pub(super) fn positions(&self) -> Vec<Position> {
        self.open.keys().copied().collect()
    }

    /// When the oldest of them was accepted.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let accepted = self.open.values().map(|open| open.event.accepted_at);
        accepted.min()
    }
}

#[cfg(test)]
mod tests {
    use wayhold_model::{DestinationSet, Event, EventParts, Generation, Sequence, ShardId};

    use super::*;

    fn at(n: u64) -> Timestamp {
        Timestamp::from_micros(n)
    }

    fn event(sequence: u64, key: Option<u64>) -> Arc<StoredEvent> {
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
            accepted_at: at(sequence),
            destinations: Arc::new(DestinationSet::new([])),
            key_hash: key,
            event: Arc::new(Event::new(&parts).unwrap()),
        })
    }

    fn window(events: &[(u64, Option<u64>)]) -> Window {
        let mut window = Window::default();
        for (sequence, key) in events {
            window.offer(event(*sequence, *key), at(0));
        }
        window
    }

    /// Sequences of all whose turn it is.
    fn turns(window: &mut Window) -> Vec<u64> {
        std::iter::from_fn(|| Some(window.next()?.event.position.sequence.0)).collect()
    }

    fn position(sequence: u64) -> Position {
        event(sequence, None).position
    }

    #[test]
    fn of_a_key_one_is_on_its_way_and_what_has_no_key_waits_for_nobody() {
        let mut window = window(&[
            (1, Some(7)),
            (2, Some(7)),
            (3, None),
            (4, None),
            (5, Some(8)),
        ]);
        assert_eq!(turns(&mut window), [1, 3, 4, 5]);
        window.resolved(position(3));
        assert_eq!(turns(&mut window), Vec::<u64>::new());
        window.resolved(position(1));
        assert_eq!(turns(&mut window), [2]);
        assert_eq!(window.positions(), [2, 4, 5].map(position));
        assert_eq!(window.oldest(), Some(at(2)));
    }

    #[test]
    fn what_failed_waits_for_its_time_with_its_key_behind_it_and_nobody_else() {
        let mut window = window(&[(1, Some(7)), (2, Some(7)), (3, Some(8))]);
        assert_eq!(turns(&mut window), [1, 3]);
        let tries = Tries {
            attempts: 1,
            put_off: 0,
            since: at(0),
        };
        window.failed(position(1), tries, at(50));
        window.resolved(position(3));
        window.wake(at(49));
        assert_eq!(
            (turns(&mut window), window.next_due()),
            (vec![], Some(at(50)))
        );
        window.wake(at(50));
        let turn = window.next().unwrap();
        assert_eq!((turn.event.position, turn.tries), (position(1), tries));
        window.give_back(&turn);
        assert!(window.has_ready());
        assert_eq!(turns(&mut window), [1]);
        window.resolved(position(1));
        assert_eq!(turns(&mut window), [2]);
        window.resolved(position(2));
        assert_eq!(
            (window.len(), window.bytes(), window.oldest()),
            (0, 0, None)
        );
    }

    #[test]
    fn every_key_sees_its_events_in_order_whatever_ends_first() {
        for seed in 0..200_u64 {
            let events: Vec<_> = (1..=60).map(|n| (n, Some(n * (seed + 3) % 5))).collect();
            let mut window = window(&events);
            let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut away: Vec<Position> = Vec::new();
            let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            while window.len() > 0 {
                while let Some(turn) = window.next() {
                    away.push(turn.event.position);
                }
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let which = usize::try_from(dice >> 33).unwrap() % away.len();
                let ended = away.swap_remove(which);
                let key = events[usize::try_from(ended.sequence.0).unwrap() - 1]
                    .1
                    .unwrap();
                if dice.is_multiple_of(3) {
                    let tries = Tries {
                        attempts: 1,
                        put_off: 0,
                        since: at(0),
                    };
                    window.failed(ended, tries, at(0));
                    window.wake(at(0));
                } else {
                    seen.entry(key).or_default().push(ended.sequence.0);
                    window.resolved(ended);
                }
            }
            assert!(
                seen.values().all(|sequences| sequences.is_sorted()),
                "{seen:?}"
            );
            assert_eq!(seen.values().map(Vec::len).sum::<usize>(), 60);
        }
    }
}
