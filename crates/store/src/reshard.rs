//! Changing the number of shards while events are accepted and delivered: a new generation takes new events,
//! and the older ones drain where they lie. Nothing moves.
//!
//! In this order: the catalogue names the generation; its directories and files are made; the catalogue says
//! that they were; lanes and look-ups see it; requests that begin now go to it. Those that began before
//! finish in the old generation, whose writers end when nobody holds their queues any more: then each of its
//! shards is closed, its end is known, and lanes go on to the keys of the next one. After a crash at any
//! point the next start completes the generation, or finds that there is none.

use std::sync::{Arc, Weak};
use std::time::Duration;

use thiserror::Error;
use tracing::{error, info};
use wayhold_model::shard_map::SHARDS_MAX;
use wayhold_model::{Generation, Timestamp};

use crate::catalog::CatalogError;
use crate::drain::DrainRate;
use crate::error::OpenError;
use crate::leftovers::remove_generation;
use crate::shards::{Map, Shared};
use crate::spread::Takers;
use crate::store::{Inner, Store};

/// Most shards of all generations together: each costs files that are open, a thread, and a part of the time
/// of a start, until its generation is retired.
pub const SHARDS_HELD_MAX: usize = 4 * SHARDS_MAX as usize;

/// Why the number of shards was not changed.
#[derive(Debug, Error)]
pub enum ReshardError {
    /// It is not a number of shards that a generation may have.
    #[error("a generation has 1 to {SHARDS_MAX} shards")]
    Count,
    /// Older generations hold too many shards. Wait until some are retired.
    #[error(
        "{held} shards of all generations are held, and {wanted} more would be above {SHARDS_HELD_MAX}; \
         wait until an older generation is retired"
    )]
    TooMany {
        /// Shards of all generations.
        held: usize,
        /// Shards of the new one.
        wanted: usize,
    },
    /// So many shards ask for more free space than the volume has. Make room, or ask for fewer.
    #[error(
        "{wanted} shards need {needed} free bytes on the volume, which has {room}; make room, or ask for fewer"
    )]
    NoSpace {
        /// Shards of the new generation.
        wanted: u16,
        /// Free bytes below which they would accept nothing.
        needed: u64,
        /// Free bytes, and those of what is kept only while nobody needs the room.
        room: u64,
    },
    /// The catalogue did not take it: nothing was changed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The new generation's files could not be made; events go where they went before.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// The store stops.
    #[error("the store is stopping")]
    Stopping,
}

/// What becomes of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationState {
    /// It takes new events.
    Active,
    /// It takes none, and some of its deliveries are not resolved.
    Draining,
    /// Nothing of it is pending. Its files stay while something needs them: the retention, the idempotency
    /// window, dead letters.
    Drained,
}

impl GenerationState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Active, Self::Draining, Self::Drained];

    /// Name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

/// One generation at one moment.
#[derive(Clone, Debug)]
pub struct GenerationFigures {
    /// Its number.
    pub generation: Generation,
    /// How many shards it has.
    pub shards: u16,
    /// When it was named.
    pub since: Timestamp,
    /// What becomes of it.
    pub state: GenerationState,
    /// Deliveries that are not resolved.
    pub pending: u64,
    /// How long it takes to drain at the rate of the last minute; `None` where nothing drains.
    pub drained_in: Option<Duration>,
}

/// What changes of the number of shards have left to be seen to.
#[derive(Default)]
pub(crate) struct Changing {
    /// Takers of older generations, while requests that began with them are under way.
    closing: Vec<Weak<Takers>>,
    /// How fast older generations drain.
    rates: Vec<(Generation, DrainRate)>,
}

impl Changing {
    /// Ends writers that wait for requests which are under way.
    pub(crate) fn stop(&mut self) {
        for takers in self.closing.drain(..).filter_map(|one| one.upgrade()) {
            takers.stop();
        }
    }

    /// Looks at how much is pending in the generations that drain.
    pub(crate) fn note_rates(&mut self, map: &Map, at: Duration, pending: impl Fn(&Shared) -> u64) {
        let drains = |one: &&Arc<Shared>| !one.is_drained();
        let known = |number: Generation| {
            let mut draining = map.older().iter().filter(drains);
            draining.any(|one| one.generation == number)
        };
        self.rates.retain(|(number, _)| known(*number));
        for one in map.older().iter().filter(drains) {
            let number = one.generation;
            if !self.rates.iter().any(|(other, _)| *other == number) {
                self.rates.push((number, DrainRate::default()));
            }
            for (_, rate) in self.rates.iter_mut().filter(|(other, _)| *other == number) {
                rate.note(at, pending(one));
            }
        }
    }
}

impl Store {
    /// Makes new events go to `count` shards from now on. `None`: they do already. Blocking, for as long as
    /// making files takes; accepting and delivering go on meanwhile.
    ///
    /// # Errors
    /// Events go where they went before; each kind says what to do. Where the catalogue failed half way, the
    /// next start may bring the new number all the same.
    pub fn set_shards(
        &self,
        count: u16,
        by: &str,
        reason: Option<&str>,
    ) -> Result<Option<Generation>, ReshardError> {
        if !(1..=SHARDS_MAX).contains(&count) {
            return Err(ReshardError::Count);
        }
        let inner = self.inner();
        let mut changing = inner.changing();
        inner.ready_to_change()?;
        let map = inner.shards.map();
        if map.newest().len() == usize::from(count) {
            return Ok(None);
        }
        let (held, wanted) = (map.all().count(), usize::from(count));
        if held + wanted > SHARDS_HELD_MAX {
            return Err(ReshardError::TooMany { held, wanted });
        }
        let needed = inner.ground.options.min_free_of(count);
        let room = inner.space.room();
        if needed > inner.space.min_free() && needed > room {
            let wanted = count;
            return Err(ReshardError::NoSpace {
                wanted,
                needed,
                room,
            });
        }
        failpoint!("reshard.before-naming");
        let generation = inner.catalog.add_generation(count, by, reason)?;
        failpoint!("reshard.named");
        let time = map.newest().iter().map(|shard| shard.newest_at()).max();
        let begun = inner
            .ground
            .begin(generation, count, time.unwrap_or(Timestamp::EPOCH));
        let begun = begun.inspect_err(|_| inner.give_up(generation))?;
        failpoint!("reshard.files-made");
        if let Err(error) = inner.catalog.generation_is_made(generation) {
            begun.end();
            inner.give_up(generation);
            return Err(error.into());
        }
        failpoint!("reshard.made");
        inner.threads().extend(begun.threads);
        inner.space.ask_for(needed);
        inner.shards.replace(map.with(begun.shared));
        let older = inner.takers.swap(Arc::new(begun.takers));
        changing.closing.retain(|one| one.strong_count() > 0);
        changing.closing.push(Arc::downgrade(&older));
        drop(older);
        failpoint!("reshard.switched");
        info!(%by, shards = count, generation = generation.0, "new events go to a new generation of shards");
        Ok(Some(generation))
    }

    /// Every generation that has files, oldest first. Blocking for a moment.
    pub fn generations(&self) -> Vec<GenerationFigures> {
        let inner = self.inner();
        let records = inner.catalog.generations();
        let map = inner.shards.map();
        let newest = map.generations().last().map(|one| one.generation);
        let figures = map.generations().iter().map(|one| {
            let record = records
                .iter()
                .find(|record| record.generation == one.generation);
            let (state, pending) = match Some(one.generation) == newest {
                true => (GenerationState::Active, inner.pending_of(one)),
                false if one.is_drained() => (GenerationState::Drained, 0),
                false => (GenerationState::Draining, inner.pending_of(one)),
            };
            GenerationFigures {
                generation: one.generation,
                shards: one.count(),
                since: record.map_or(Timestamp::EPOCH, |record| record.since),
                state,
                pending,
                drained_in: None,
            }
        });
        let mut figures: Vec<_> = figures.collect();
        let changing = inner.changing.try_lock();
        let rates = match &changing {
            Ok(changing) => changing.rates.as_slice(),
            // A change is under way, and takes as long as the disk does: nobody waits for it here.
            Err(_) => &[],
        };
        for one in &mut figures {
            let rate = rates
                .iter()
                .find(|(generation, _)| *generation == one.generation);
            one.drained_in = rate.and_then(|(_, rate)| rate.time_for(one.pending));
        }
        figures
    }
}

impl Shared {
    /// Whether nothing is added any more, and nothing is unresolved.
    pub(crate) fn is_drained(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_drained())
    }
}

impl Inner {
    fn ready_to_change(&self) -> Result<(), ReshardError> {
        match self.stopping.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(ReshardError::Stopping),
            false => Ok(()),
        }
    }

    /// Deliveries of a generation that are not resolved.
    pub(crate) fn pending_of(&self, generation: &Shared) -> u64 {
        let records = self.catalog.destinations();
        let each = generation.shards.iter().map(|shard| {
            let lanes = records.iter();
            lanes
                .map(|record| shard.pending(record.lane, record.id))
                .sum::<u64>()
        });
        each.sum()
    }

    /// Takes back a generation that never took an event.
    fn give_up(&self, generation: Generation) {
        let given_up = self.catalog.retire_generation(generation, &[]);
        let removed = given_up
            .map_err(|error| error.to_string())
            .and_then(|()| remove_generation(&self.ground, generation).map_err(|e| e.to_string()));
        if let Err(error) = removed {
            error!(
                generation = generation.0,
                error, "a generation that could not be made is left; the next start completes it"
            );
        }
    }
}

impl crate::opening::Begun {
    /// Ends what runs of it.
    fn end(self) {
        self.takers.stop();
        drop(self.takers);
        for (shard, mut threads) in self.threads {
            threads.join(&shard);
            shard.progress.stop();
        }
    }
}
