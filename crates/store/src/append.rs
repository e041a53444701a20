//! Idempotent, durable acceptance: reserve ids, recognise duplicates, store the rest (`spread`), answer
//! with receipts. Ids are reserved for the whole store before anything is queued, so that two requests
//! with one id cannot both be stored, whatever shards their keys belong to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wayhold_model::{Event, Generation, Position, Sequence, ShardId, hash};

use crate::delivery::{NewEvent, Receipt};
use crate::error::AppendError;
use crate::known::Known;
use crate::shard::writer::Queued;
use crate::spread::Stored;
use crate::store::{Inner, Store};
use crate::window::{Candidates, Reservations};

impl Store {
    /// Stores all of a batch, or nothing, and returns once it is synced. Events that were accepted
    /// before are answered with their first receipt. The future may be dropped at any time: then each
    /// event is either absent or stored and delivered.
    ///
    /// # Errors
    /// Nothing was stored, but for `Partly`; each kind says what to do next.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, AppendError> {
        let inner = self.inner();
        inner.running()?;
        let seed = inner.catalog.hash_seed();
        let queued: Vec<Queued> = events.into_iter().map(|new| prepare(new, seed)).collect();
        let mut places = vec![Place::Fresh; queued.len()];
        let mut reservations = Reservations::new(&inner.window);
        failpoint!("accept.before-reserving");
        inner
            .recognise(&queued, &mut places, &mut reservations)
            .await?;
        let fresh = fresh(queued, &places);
        let stored = match fresh.is_empty() {
            true => Stored::Each(Vec::new()),
            false => {
                inner.ready()?;
                inner.store(fresh, reservations).await?
            }
        };
        failpoint!("accept.stored");
        let receipts = receipts(&places, &stored);
        match stored {
            Stored::From(_) | Stored::Each(_) => Ok(receipts),
            Stored::Some(_, cause) => Err(AppendError::Partly {
                receipts: receipts
                    .into_iter()
                    .map(|receipt| Some(receipt).filter(|one| one.position != NOWHERE))
                    .collect(),
                cause: Box::new(cause),
            }),
        }
    }
}

impl Store {
    /// The first receipt of an event that was accepted before, or `None`: for an event that may not be
    /// stored if it is new. Waits where it is being stored.
    ///
    /// # Errors
    /// As of `append`, as far as they concern identity.
    pub async fn recall(&self, event: NewEvent) -> Result<Option<Receipt>, AppendError> {
        let inner = self.inner();
        inner.running()?;
        if !event.identified {
            return Ok(None);
        }
        let queued = prepare(event, inner.catalog.hash_seed());
        let mut reservations = Reservations::new(&inner.window);
        let place = inner.recognise_one(&queued, 0, &mut reservations).await?;
        Ok(match place {
            Place::Known(position) => Some(Receipt {
                position,
                duplicate: true,
            }),
            Place::Fresh | Place::Repeats(_) => None,
        })
    }
}

/// What becomes of one event of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Stored now.
    Fresh,
    /// Accepted before.
    Known(Position),
    /// The same as an earlier one of the batch.
    Repeats(usize),
}

/// Those that are stored now; nearly always all.
fn fresh(queued: Vec<Queued>, places: &[Place]) -> Vec<Queued> {
    let is_fresh = |place: &Place| *place == Place::Fresh;
    if places.iter().all(is_fresh) {
        return queued;
    }
    let stored = queued.into_iter().zip(places);
    stored
        .filter(|(_, place)| is_fresh(place))
        .map(|(event, _)| event)
        .collect()
}

/// Where no event lies: generations count from 1.
const NOWHERE: Position = Position {
    generation: Generation(0),
    shard: ShardId(0),
    sequence: Sequence(0),
};

/// Receipts in the order of the batch; `NOWHERE` for what was not stored.
fn receipts(places: &[Place], stored: &Stored) -> Vec<Receipt> {
    let mut receipts: Vec<Receipt> = Vec::with_capacity(places.len());
    let mut fresh = 0..;
    for place in places {
        let (position, duplicate) = match place {
            Place::Fresh => (fresh.next().and_then(|at| stored.position(at)), false),
            Place::Known(position) => (Some(*position), true),
            // What is repeated comes earlier.
            Place::Repeats(earlier) => (receipts.get(*earlier).map(|one| one.position), true),
        };
        receipts.push(Receipt {
            position: position.unwrap_or(NOWHERE),
            duplicate,
        });
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

/// Ids that producers gave, ascending, each with the indices of its events in order.
fn in_order(queued: &[Queued]) -> Vec<(u128, usize)> {
    let given =
        |(index, event): (usize, &Queued)| event.new.identified.then_some((event.id_hash, index));
    let mut order: Vec<(u128, usize)> = queued.iter().enumerate().filter_map(given).collect();
    order.sort_unstable();
    order
}

/// Notes the events that repeat an earlier one of the batch.
fn note_repeats(
    queued: &[Queued],
    order: &[(u128, usize)],
    places: &mut [Place],
) -> Result<(), AppendError> {
    let fingerprint = |index: usize| queued.get(index).map(|event| event.fingerprint);
    let mut conflict: Option<(usize, usize)> = None;
    for same in order.chunk_by(|(one, _), (other, _)| one == other) {
        let Some(((_, first), repeats)) = same.split_first() else {
            continue;
        };
        for (_, index) in repeats {
            if fingerprint(*index) != fingerprint(*first) {
                conflict = conflict.into_iter().chain([(*index, *first)]).min();
            }
            if let Some(place) = places.get_mut(*index) {
                *place = Place::Repeats(*first);
            }
        }
    }
    match conflict {
        Some((index, first)) => Err(AppendError::ConflictInBatch { index, first }),
        None => Ok(()),
    }
}

impl Inner {
    /// Whether requests are answered at all.
    fn running(&self) -> Result<(), AppendError> {
        match self.stopping.load(Ordering::Acquire) {
            true => Err(AppendError::Stopping),
            false => Ok(()),
        }
    }

    /// Whether any shard may take events; whether those that are needed can is asked when they are known.
    pub(crate) fn ready(&self) -> Result<(), AppendError> {
        self.running()?;
        match self.space.is_low() {
            true => Err(AppendError::NoSpace {
                retry_after: self.space.wait(),
            }),
            false => Ok(()),
        }
    }

    /// Reserves the ids of a batch and notes the events that were accepted before. Ids are reserved in
    /// ascending order, so that two batches never wait for each other.
    async fn recognise(
        self: &Arc<Self>,
        queued: &[Queued],
        places: &mut [Place],
        reservations: &mut Reservations,
    ) -> Result<(), AppendError> {
        if let ([event], [place]) = (queued, &mut *places) {
            if event.new.identified {
                *place = self.recognise_one(event, 0, reservations).await?;
            }
            return Ok(());
        }
        let order = in_order(queued);
        note_repeats(queued, &order, places)?;
        for (_, index) in order {
            if let (Some(event), Some(place @ Place::Fresh)) =
                (queued.get(index), places.get_mut(index))
            {
                *place = self.recognise_one(event, index, reservations).await?;
            }
        }
        Ok(())
    }

    async fn recognise_one(
        self: &Arc<Self>,
        event: &Queued,
        index: usize,
        reservations: &mut Reservations,
    ) -> Result<Place, AppendError> {
        let candidates = reservations.reserve(event.id_hash).await;
        if candidates.is_empty() {
            return Ok(Place::Fresh);
        }
        let Some(known) = self.first_acceptance(event.id_hash, candidates).await? else {
            return Ok(Place::Fresh);
        };
        if known.fingerprint != Some(event.fingerprint) {
            let first = known.position;
            return Err(AppendError::Conflict { index, first });
        }
        reservations.give_up_last();
        Ok(Place::Known(known.position))
    }

    /// Confirms what the window says. What is still in memory is asked here; an index file on a thread that
    /// may block.
    async fn first_acceptance(
        self: &Arc<Self>,
        id_hash: u128,
        candidates: Candidates,
    ) -> Result<Option<Known>, AppendError> {
        let unavailable = |reason: String| AppendError::Unavailable { reason };
        if self.is_in_memory(&candidates) {
            return self
                .confirm(id_hash, &candidates)
                .map_err(|error| unavailable(error.to_string()));
        }
        let inner = Arc::clone(self);
        tokio::task::spawn_blocking(move || inner.confirm(id_hash, &candidates))
            .await
            .map_err(|error| unavailable(error.to_string()))?
            .map_err(|error| unavailable(error.to_string()))
    }
}
