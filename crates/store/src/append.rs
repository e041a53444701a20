//! Idempotent, durable acceptance: reserve ids, recognise duplicates, queue for the writer, wait for
//! the sync.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use wayhold_model::{Event, hash};

use crate::delivery::{NewEvent, Receipt};
use crate::error::AppendError;
use crate::shard::core::Shard;
use crate::shard::index_file::Identified;
use crate::shard::writer::{Queued, Request};
use crate::store::{Inner, Store};
use crate::window::{Candidates, Reservations};

/// What the queue charges an event for beside its bytes.
const EVENT_OVERHEAD: usize = 256;

impl Store {
    /// Stores all of a batch, or nothing, and returns once it is synced. Events that were accepted
    /// before are answered with their first receipt. The future may be dropped at any time: then the
    /// events are either absent or stored and delivered.
    ///
    /// # Errors
    /// Nothing was stored; each kind says what to do next.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, AppendError> {
        let inner = self.inner();
        inner.ready()?;
        let seed = inner.catalog.hash_seed();
        let queued: Vec<Queued> = events.into_iter().map(|new| prepare(new, seed)).collect();
        let repeats = repeats(&queued)?;
        let mut reservations = Reservations::new(&inner.window);
        let known = inner
            .recognise(&queued, &repeats, &mut reservations)
            .await?;

        let mut fresh = Vec::with_capacity(queued.len());
        let mut places = Vec::with_capacity(queued.len());
        for (index, event) in queued.into_iter().enumerate() {
            places.push(match (repeats.get(&index), known.get(&index)) {
                (Some(first), _) => Place::Repeats(*first),
                (None, Some(sequence)) => Place::Known(*sequence),
                (None, None) => {
                    fresh.push(event);
                    Place::Fresh(fresh.len() as u64 - 1)
                }
            });
        }
        let first = match fresh.is_empty() {
            true => 0,
            false => inner.store(fresh, reservations).await?,
        };
        Ok(receipts(inner, &places, first))
    }
}

/// What becomes of one event of a batch.
#[derive(Clone, Copy)]
enum Place {
    /// Stored now, as the n-th.
    Fresh(u64),
    /// Accepted before, under this sequence.
    Known(u64),
    /// The same as an earlier one of the batch.
    Repeats(usize),
}

fn receipts(inner: &Inner, places: &[Place], first: u64) -> Vec<Receipt> {
    let receipt = |place: &Place| {
        let (sequence, duplicate) = match place {
            Place::Fresh(at) => (first + at, false),
            Place::Known(sequence) => (*sequence, true),
            Place::Repeats(_) => (0, true),
        };
        Receipt {
            position: inner.shard().position(sequence),
            duplicate,
        }
    };
    let mut receipts: Vec<Receipt> = places.iter().map(receipt).collect();
    for (index, place) in places.iter().enumerate() {
        if let Place::Repeats(first) = place
            && let Some(position) = receipts.get(*first).map(|receipt| receipt.position)
            && let Some(receipt) = receipts.get_mut(index)
        {
            receipt.position = position;
        }
    }
    receipts
}

fn prepare(new: NewEvent, seed: u64) -> Queued {
    let event: &Event = &new.event;
    Queued {
        id_hash: hash::id_hash(event, seed),
        fingerprint: hash::fingerprint(event, seed),
        key_hash: event.key().map(|key| hash::key_hash(key, seed)),
        new,
    }
}

/// Indices of events that repeat an earlier one of the batch, with that one's index.
fn repeats(queued: &[Queued]) -> Result<HashMap<usize, usize>, AppendError> {
    let mut repeats = HashMap::new();
    if queued.len() < 2 {
        return Ok(repeats);
    }
    let mut seen: HashMap<u128, usize> = HashMap::with_capacity(queued.len());
    for (index, event) in queued
        .iter()
        .enumerate()
        .filter(|(_, event)| event.new.identified)
    {
        match seen.entry(event.id_hash) {
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(index);
            }
            std::collections::hash_map::Entry::Occupied(first) => {
                let first = *first.get();
                if queued
                    .get(first)
                    .is_some_and(|other| other.fingerprint != event.fingerprint)
                {
                    return Err(AppendError::ConflictInBatch { index, first });
                }
                repeats.insert(index, first);
            }
        }
    }
    Ok(repeats)
}

impl Inner {
    fn shard(&self) -> &Arc<Shard> {
        self.shards.newest().first().expect("a store has a shard")
    }

    fn ready(&self) -> Result<(), AppendError> {
        if self.stopping.load(std::sync::atomic::Ordering::Acquire) {
            return Err(AppendError::Stopping);
        }
        if self.space.is_low() {
            return Err(AppendError::NoSpace);
        }
        match self.shard().condition.unavailable() {
            Some(reason) => Err(AppendError::Unavailable { reason }),
            None => Ok(()),
        }
    }

    /// Reserves the ids of a batch and returns the sequences of those that were accepted before, by
    /// index. Ids are reserved in ascending order, so that two batches never wait for each other.
    async fn recognise(
        &self,
        queued: &[Queued],
        repeats: &HashMap<usize, usize>,
        reservations: &mut Reservations,
    ) -> Result<HashMap<usize, u64>, AppendError> {
        let mut order: Vec<usize> = (0..queued.len())
            .filter(|index| !repeats.contains_key(index))
            .collect();
        order.retain(|index| queued.get(*index).is_some_and(|event| event.new.identified));
        order.sort_unstable_by_key(|index| queued.get(*index).map(|event| event.id_hash));
        let mut known = HashMap::new();
        for index in order {
            let Some(event) = queued.get(index) else {
                continue;
            };
            let candidates = reservations.reserve(event.id_hash).await;
            if candidates.is_empty() {
                continue;
            }
            let Some(first) = self.first_acceptance(event.id_hash, candidates).await? else {
                continue;
            };
            if first.fingerprint != Some(event.fingerprint) {
                let first = self.shard().position(first.sequence);
                return Err(AppendError::Conflict { index, first });
            }
            reservations.give_up_last();
            known.insert(index, first.sequence);
        }
        Ok(known)
    }

    /// Confirms a hit of the window. What is still in memory is asked here; an index file on a thread
    /// that may block.
    async fn first_acceptance(
        &self,
        id_hash: u128,
        candidates: Candidates,
    ) -> Result<Option<Identified>, AppendError> {
        let unavailable = |reason: String| AppendError::Unavailable { reason };
        if self.in_memory(&candidates) {
            return self
                .shard()
                .confirm(id_hash, &candidates)
                .map_err(|error| unavailable(error.to_string()));
        }
        let shard = Arc::clone(self.shard());
        tokio::task::spawn_blocking(move || shard.confirm(id_hash, &candidates))
            .await
            .map_err(|error| unavailable(error.to_string()))?
            .map_err(|error| unavailable(error.to_string()))
    }

    fn in_memory(&self, candidates: &Candidates) -> bool {
        let newest = self
            .shard()
            .newest
            .load(std::sync::atomic::Ordering::Acquire);
        candidates
            .iter()
            .filter_map(|low| crate::window::widen(*low, newest))
            .filter_map(|sequence| self.shard().segment_of(sequence))
            .all(|(segment, _)| !segment.is_indexed())
    }

    /// Queues new events and waits for their commit; returns the sequence of the first.
    async fn store(
        &self,
        events: Vec<Queued>,
        reservations: Reservations,
    ) -> Result<u64, AppendError> {
        let bytes: usize = events
            .iter()
            .map(|event| event.new.event.size() + EVENT_OVERHEAD)
            .sum();
        let queue = self.queues.first().expect("a store has a shard");
        let room = queue.room(bytes).await?;
        // Whatever became of the store while this waited for ids and room.
        self.ready()?;
        let (answer, stored) = oneshot::channel();
        let request = Request {
            events,
            reservations,
            answer,
            room,
            bytes,
        };
        queue.append(request)?;
        stored.await.map_err(|_| AppendError::Stopping)?
    }
}
