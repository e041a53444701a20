//! Storing events in the shards that they belong to. A batch is split by shard, queued to each and awaited
//! together: the syncs run side by side. Where only one shard takes new events nothing is split.
//!
//! Which shards take new events changes while requests are under way. A request holds on to those that it
//! began with until all of it is queued; a writer whose queue nobody holds any more has had everything that
//! will ever lie in its shard.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use wayhold_model::shard_map::shard_of;
use wayhold_model::{Position, Sequence};

use crate::error::AppendError;
use crate::queue::Queue;
use crate::shard::core::Shard;
use crate::shard::writer::{Queued, Request};
use crate::store::Inner;
use crate::window::Reservations;

/// What the queue charges an event for beside its bytes.
const EVENT_OVERHEAD: usize = 256;

/// The shards that take new events, by number; at least one.
pub(crate) struct Takers(pub(crate) Vec<Taker>);

/// A shard that takes new events, and the way to its writer.
pub(crate) struct Taker {
    pub(crate) shard: Arc<Shard>,
    pub(crate) queue: Queue,
}

/// Where the events of a batch lie now.
pub(crate) enum Stored {
    /// One after the other, from here on.
    From(Position),
    /// Each in its shard.
    Each(Vec<Position>),
    /// In some shards the commit failed; what belongs there has no position.
    Some(Vec<Option<Position>>, AppendError),
}

impl Stored {
    /// The position of the n-th event that was to be stored; `None` where it was not.
    pub(crate) fn position(&self, at: usize) -> Option<Position> {
        match self {
            Self::From(first) => Some(Position {
                sequence: Sequence(first.sequence.0 + at as u64),
                ..*first
            }),
            Self::Each(positions) => positions.get(at).copied(),
            Self::Some(positions, _) => *positions.get(at)?,
        }
    }
}

/// The events of a batch that belong to one shard.
struct Part {
    shard: usize,
    events: Vec<Queued>,
    /// Their places in the batch.
    places: Vec<usize>,
}

impl Inner {
    /// Queues new events and waits for their commit. An error: nothing was stored.
    pub(crate) async fn store(
        &self,
        events: Vec<Queued>,
        reservations: Reservations,
    ) -> Result<Stored, AppendError> {
        let takers = self.takers.load_full();
        let [only] = takers.0.as_slice() else {
            // Boxed, so that requests of a store with one shard do not carry the room for it.
            return Box::pin(self.spread(takers, events, reservations)).await;
        };
        self.ready_in(&only.shard)?;
        let room = only.queue.room(weight(&events)).await?;
        // Whatever became of the store while this waited for ids and room.
        self.ready()?;
        self.ready_in(&only.shard)?;
        let stored = send(&only.queue, events, reservations, room)?;
        let shard = Arc::clone(&only.shard);
        drop(takers);
        let first = stored.await.map_err(|_| AppendError::Stopping)??;
        Ok(Stored::From(shard.position(first)))
    }

    /// Splits a batch. Nothing is queued before every shard that it needs has room and can write, so that
    /// what is refused for a reason known beforehand is refused as a whole.
    async fn spread(
        &self,
        takers: Arc<Takers>,
        events: Vec<Queued>,
        reservations: Reservations,
    ) -> Result<Stored, AppendError> {
        let count = events.len();
        let can_write = |at: usize| {
            let taker = takers.0.get(at);
            taker.is_some_and(|taker| taker.shard.condition.unavailable().is_none())
        };
        let parts = split(events, takers.0.len(), can_write);
        let mut rooms = Vec::with_capacity(parts.len());
        // In ascending order of shards, as everybody does, so that two batches never wait for each other.
        for part in &parts {
            let taker = takers.of(part)?;
            self.ready_in(&taker.shard)?;
            rooms.push(taker.queue.room(weight(&part.events)).await?);
        }
        self.ready()?;
        for part in &parts {
            self.ready_in(&takers.of(part)?.shard)?;
        }
        let ids = parts.iter().map(|part| {
            let given = part.events.iter().filter(|event| event.new.identified);
            given.map(|event| event.id_hash).collect()
        });
        let reservations = reservations.divide(ids.collect());
        let mut waiting = Vec::with_capacity(parts.len());
        for ((part, room), reservations) in parts.into_iter().zip(rooms).zip(reservations) {
            let taker = takers.of(&part)?;
            let sent = send(&taker.queue, part.events, reservations, room);
            waiting.push((Arc::clone(&taker.shard), part.places, sent));
        }
        drop(takers);
        let mut positions = vec![None; count];
        let mut failure = None;
        for (shard, places, sent) in waiting {
            let stored = match sent {
                Ok(stored) => stored.await.unwrap_or(Err(AppendError::Stopping)),
                Err(error) => Err(error),
            };
            match stored {
                Ok(first) => {
                    for (sequence, place) in (first..).zip(places) {
                        if let Some(position) = positions.get_mut(place) {
                            *position = Some(shard.position(sequence));
                        }
                    }
                }
                Err(error) => failure = failure.or(Some(self.named(&shard, error))),
            }
        }
        match failure {
            None => Ok(Stored::Each(positions.into_iter().flatten().collect())),
            Some(failure) if positions.iter().all(Option::is_none) => Err(failure),
            Some(failure) => Ok(Stored::Some(positions, failure)),
        }
    }

    fn ready_in(&self, shard: &Shard) -> Result<(), AppendError> {
        match shard.condition.unavailable() {
            Some(reason) => Err(self.named(shard, AppendError::Unavailable { reason })),
            None => Ok(()),
        }
    }

    fn named(&self, shard: &Shard, error: AppendError) -> AppendError {
        match error {
            AppendError::Unavailable { reason } => AppendError::Unavailable {
                reason: self.shards.now().named(shard, reason),
            },
            other => other,
        }
    }
}

impl Takers {
    /// Tells the writers to commit what is queued and to end.
    pub(crate) fn stop(&self) {
        for taker in &self.0 {
            taker.queue.stop();
        }
    }

    fn of(&self, part: &Part) -> Result<&Taker, AppendError> {
        // The map names no shard beyond the last.
        self.0.get(part.shard).ok_or(AppendError::Stopping)
    }
}

/// Groups events by the shard of their key, ascending. Those without a key may lie anywhere and lie
/// together, with the first that has one, so that a batch is not torn for nothing; in a shard that can
/// write, where there is one.
fn split(events: Vec<Queued>, shards: usize, can_write: impl Fn(usize) -> bool) -> Vec<Part> {
    let count = u16::try_from(shards).unwrap_or(u16::MAX);
    let at = |hash: u64| usize::from(shard_of(hash, count).0);
    let keyed = events.iter().find_map(|event| event.key_hash);
    let chosen = keyed.or_else(|| events.first().map(|event| high_half(event.id_hash)));
    let preferred = at(chosen.unwrap_or_default());
    let others = (0..shards).map(|step| (preferred + step) % shards);
    let keyless = others
        .into_iter()
        .find(|at| can_write(*at))
        .unwrap_or(preferred);
    let mut parts: Vec<Option<Part>> = Vec::new();
    parts.resize_with(shards, || None);
    for (place, event) in events.into_iter().enumerate() {
        let shard = event.key_hash.map_or(keyless, at);
        if let Some(part) = parts.get_mut(shard) {
            let part = part.get_or_insert_with(|| Part {
                shard,
                events: Vec::new(),
                places: Vec::new(),
            });
            part.events.push(event);
            part.places.push(place);
        }
    }
    parts.into_iter().flatten().collect()
}

fn high_half(hash: u128) -> u64 {
    u64::try_from(hash >> 64).unwrap_or(u64::MAX)
}

fn weight(events: &[Queued]) -> usize {
    let weights = events
        .iter()
        .map(|event| event.new.event.size() + EVENT_OVERHEAD);
    weights.sum()
}

/// Hands events to a writer; what is returned tells the sequence of the first.
fn send(
    queue: &Queue,
    events: Vec<Queued>,
    reservations: Reservations,
    room: OwnedSemaphorePermit,
) -> Result<oneshot::Receiver<Result<u64, AppendError>>, AppendError> {
    let bytes = weight(&events);
    let (answer, stored) = oneshot::channel();
    failpoint!("accept.before-queueing");
    queue.append(Request {
        events,
        reservations,
        answer,
        room,
        bytes,
    })?;
    failpoint!("accept.queued");
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use wayhold_model::{DestinationSet, Event, EventParts, hash};

    use super::*;
    use crate::delivery::NewEvent;

    fn queued(id: u32, key: Option<u8>) -> Queued {
        let (id, key) = (id.to_string(), key.map(|key| key.to_string()));
        let parts = EventParts {
            id: &id,
            source: "/s",
            kind: "t",
            key: key.as_deref().unwrap_or_default(),
            ..EventParts::default()
        };
        let event = Event::new(&parts).unwrap();
        Queued {
            id_hash: hash::id_hash(&event, 1),
            fingerprint: 0,
            key_hash: key.map(|key| hash::key_hash(&key, 1)),
            new: NewEvent {
                event: Arc::new(event),
                destinations: Arc::new(DestinationSet::new([])),
                identified: true,
                set_aside: None,
            },
        }
    }

    proptest! {
        #[test]
        fn every_event_is_in_one_part_in_order_and_a_key_always_in_the_same(
            keys in prop::collection::vec(prop::option::of(0_u8..9), 1..60),
            shards in 1_usize..9,
            stuck in prop::collection::vec(any::<bool>(), 9),
        ) {
            let batch = |_| (0..).zip(&keys).map(|(id, key)| queued(id, *key)).collect();
            let [first, second]: [Vec<Queued>; 2] = [0, 1].map(batch);
            let parts = split(first, shards, |at| !stuck[at]);
            let again = split(second.into_iter().rev().collect(), shards, |_| true);
            let mut seen = vec![0; keys.len()];
            let mut keyless = None;
            for part in &parts {
                prop_assert!(part.shard < shards && part.events.len() == part.places.len());
                prop_assert!(part.places.is_sorted());
                for (event, place) in part.events.iter().zip(&part.places) {
                    seen[*place] += 1;
                    prop_assert_eq!(event.new.event.id(), place.to_string());
                    let other = again.iter().find(|other| {
                        other.events.iter().any(|one| one.new.event.id() == event.new.event.id())
                    });
                    match event.key_hash {
                        Some(_) => prop_assert_eq!(other.unwrap().shard, part.shard),
                        None => {
                            prop_assert_eq!(*keyless.get_or_insert(part.shard), part.shard);
                            let all_stuck = stuck[..shards].iter().all(|stuck| *stuck);
                            prop_assert!(!stuck[part.shard] || all_stuck);
                        }
                    }
                }
            }
            prop_assert!(parts.is_sorted_by(|one, other| one.shard < other.shard));
            prop_assert!(seen.iter().all(|count| *count == 1));
        }
    }

    #[test]
    fn single_events_without_a_key_are_spread_over_all_shards() {
        let mut counts = [0; 4];
        for id in 0..400 {
            let parts = split(vec![queued(id, None)], 4, |_| true);
            counts[parts[0].shard] += 1;
        }
        assert!(
            counts.iter().all(|count| (60..140).contains(count)),
            "{counts:?}"
        );
    }
}
