//! In which order a lane reads its shards. Within a shard order is kept, and every event of a key lies in one
//! shard of a generation; shards are read in turn, so that the backlog of one keeps none of the others
//! waiting.
//!
//! A key may lie in another shard of each generation. Its events of a later one are read once everything in
//! the older shards that it may lie in was read, up to the end: what is read is in order from then on,
//! because the lane keeps the order of what it has read. That concerns the keys of those shards and no other.
//! So a shard whose older shards are not all read to their end is read by several readers: one for the keys
//! that are free, and one for the keys of each older shard or shards. Once those have come to their end, the
//! latter goes as far as the former has come, and joins it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use wayhold_model::shard_map::hashes_of;
use wayhold_model::{DestinationId, Generation, LaneId, ShardId};

use super::reader::ShardReader;
use crate::delivery::Delivery;
use crate::error::ReadError;
use crate::shard::core::Shard;
use crate::shards::{Shards, Shared};

/// Shards that are not read to their end, in order of generations; read in turn.
pub(super) struct Places {
    lane: LaneId,
    destination: DestinationId,
    places: Vec<Place>,
    /// Whose turn it is.
    turn: usize,
    /// Generations up to this one have places, or had them.
    known: Generation,
}

/// One shard, as a lane reads it.
struct Place {
    name: Name,
    /// Hashes of the keys that lie in it.
    hashes: Hashes,
    reader: ShardReader,
    held: Vec<Held>,
    /// Whether reading it failed and it is left alone until somebody says so.
    failed: bool,
}

/// Keys of a shard of which older shards may hold earlier events.
struct Held {
    hashes: Hashes,
    reader: ShardReader,
    /// Those older shards.
    behind: Vec<Name>,
}

type Name = (Generation, ShardId);

type Hashes = RangeInclusive<u64>;

/// What a reader is to read of its shard.
pub(super) struct Wanted<'a> {
    /// The last sequence.
    pub(super) through: u64,
    keys: Keys<'a>,
}

enum Keys<'a> {
    /// All but those that are held, and what has no key.
    Free(&'a [Held]),
    /// Those alone.
    Of(&'a Hashes),
}

/// Where deliveries are read from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// From memory alone: never blocks.
    FromMemory,
    /// From the disk where need be.
    FromDisk,
}

/// What one look at a place gave.
struct Look {
    batch: Vec<Delivery>,
    /// Whether something that was held is free now.
    moved: bool,
}

impl Wanted<'_> {
    /// Whether a delivery with that key is read.
    pub(super) fn takes(&self, key: Option<u64>) -> bool {
        match (&self.keys, key) {
            (Keys::Free(held), Some(key)) => !held.iter().any(|held| held.hashes.contains(&key)),
            (Keys::Free(_), None) => true,
            (Keys::Of(hashes), Some(key)) => hashes.contains(&key),
            (Keys::Of(_), None) => false,
        }
    }
}

impl Places {
    pub(super) fn new(lane: LaneId, destination: DestinationId) -> Self {
        Self {
            lane,
            destination,
            places: Vec::new(),
            turn: 0,
            known: Generation(0),
        }
    }

    /// Takes in generations that have come since.
    pub(super) fn follow(&mut self, shards: &Shards) {
        let map = shards.now();
        let is_new = |one: &&Arc<Shared>| one.generation > self.known;
        if map.generations().last().is_some_and(|last| is_new(&last)) {
            for generation in map
                .generations()
                .iter()
                .filter(is_new)
                .cloned()
                .collect::<Vec<_>>()
            {
                self.add(&generation);
            }
        }
    }

    /// The next unresolved deliveries, at most `max`. `None`: the next ones do not lie in memory. Empty:
    /// nothing newer is stored, or only where reading failed or has to wait for that.
    pub(super) fn read(
        &mut self,
        max: usize,
        how: How,
    ) -> Result<Option<Vec<Delivery>>, ReadError> {
        // Places one after the other that had nothing, and whose end frees nothing.
        let mut idle = 0;
        while idle < self.places.len() {
            if self.turn >= self.places.len() {
                self.turn = 0;
            }
            let free = self.free_of(self.turn);
            let Some(place) = self.places.get_mut(self.turn) else {
                break;
            };
            // Asked before it is read: then whatever was added before it closed is seen.
            let is_closed = place.reader.shard().is_closed();
            let look = match how {
                How::FromMemory => match place.look_in_memory(max, &free) {
                    None => return Ok(None),
                    Some(look) => look,
                },
                How::FromDisk => {
                    let look = place.look(max, &free);
                    if look.is_err() {
                        self.turn += 1;
                    }
                    look?
                }
            };
            if !look.batch.is_empty() {
                self.turn += 1;
                return Ok(Some(look.batch));
            }
            if is_closed && place.is_read() {
                // The next place has its number now.
                self.places.remove(self.turn);
                idle = 0;
            } else {
                self.turn += 1;
                idle = if look.moved { 0 } else { idle + 1 };
            }
        }
        Ok(Some(Vec::new()))
    }

    /// Reads again where reading failed.
    pub(super) fn try_failed_again(&mut self) {
        for place in &mut self.places {
            place.failed = false;
        }
    }

    fn add(&mut self, generation: &Shared) {
        self.known = generation.generation;
        let reader =
            |shard: &Arc<Shard>| ShardReader::new(Arc::clone(shard), self.lane, self.destination);
        let place = |shard: &Arc<Shard>| {
            let hashes = hashes_of(shard.id, generation.count());
            let older = self.places.iter().map(|place| (place.name, &place.hashes));
            let mut held = parts(&hashes, &older.collect::<Vec<_>>());
            if planted!("reshard-forgets-order") {
                held.clear();
            }
            let held = held.into_iter().map(|(hashes, behind)| Held {
                hashes,
                reader: reader(shard),
                behind,
            });
            Place {
                name: (shard.generation, shard.id),
                hashes,
                held: held.collect(),
                reader: reader(shard),
                failed: false,
            }
        };
        let places: Vec<Place> = generation.shards.iter().map(place).collect();
        self.places.extend(places);
    }

    /// Which parts of what a place holds are free now, last first.
    fn free_of(&self, place: usize) -> Vec<usize> {
        let held = self.places.get(place).map_or(&[][..], |place| &place.held);
        let is_open = |name: &Name| self.places.iter().any(|place| place.name == *name);
        let parts = held.iter().enumerate().rev();
        parts
            .filter(|(_, part)| !part.behind.iter().any(is_open))
            .map(|(at, _)| at)
            .collect()
    }
}

impl Place {
    /// Whether all was read, once there was nothing more.
    fn is_read(&self) -> bool {
        !self.failed && self.held.is_empty()
    }

    /// Whether no key of it is free.
    fn is_all_held(&self) -> bool {
        let mut next = Some(*self.hashes.start());
        for held in &self.held {
            if Some(*held.hashes.start()) != next {
                return false;
            }
            next = held.hashes.end().checked_add(1);
        }
        !self.held.is_empty() && next == self.hashes.end().checked_add(1)
    }

    fn look_in_memory(&mut self, max: usize, free: &[usize]) -> Option<Look> {
        if self.failed {
            return Some(Look::nothing());
        }
        let read =
            |reader: &mut ShardReader, wanted: &Wanted<'_>| Ok(reader.read_cached(max, wanted));
        self.look_by(free, read).ok().flatten()
    }

    fn look(&mut self, max: usize, free: &[usize]) -> Result<Look, ReadError> {
        // Until it ended well it counts as failed: a reader that panics is not asked at once again.
        if std::mem::replace(&mut self.failed, true) {
            return Ok(Look::nothing());
        }
        let read =
            |reader: &mut ShardReader, wanted: &Wanted<'_>| reader.read(max, wanted).map(Some);
        let look = self.look_by(free, read)?;
        self.failed = false;
        Ok(look.unwrap_or_else(Look::nothing))
    }

    fn look_by(
        &mut self,
        free: &[usize],
        read: impl Fn(&mut ShardReader, &Wanted<'_>) -> Result<Option<Vec<Delivery>>, ReadError>,
    ) -> Result<Option<Look>, ReadError> {
        let mut moved = false;
        for at in free {
            let Some(part) = self.held.get_mut(*at) else {
                continue;
            };
            let wanted = Wanted {
                through: self.reader.cursor(),
                keys: Keys::Of(&part.hashes),
            };
            match read(&mut part.reader, &wanted)? {
                None => return Ok(None),
                Some(batch) if batch.is_empty() => {
                    // Everything of these keys as far as the others are read was read: they go on together.
                    self.held.remove(*at);
                    moved = true;
                }
                Some(batch) => return Ok(Some(Look { batch, moved })),
            }
        }
        if self.is_all_held() {
            return Ok(Some(Look {
                batch: Vec::new(),
                moved,
            }));
        }
        let wanted = Wanted {
            through: u64::MAX,
            keys: Keys::Free(&self.held),
        };
        let batch = read(&mut self.reader, &wanted)?;
        Ok(batch.map(|batch| Look { batch, moved }))
    }
}

impl Look {
    fn nothing() -> Self {
        Self {
            batch: Vec::new(),
            moved: false,
        }
    }
}

/// Divides hashes where older shards begin, each part with the older shards that its keys may lie in, one of
/// each generation. Ascending; parts that lie in none are left out.
fn parts(hashes: &Hashes, older: &[(Name, &Hashes)]) -> Vec<(Hashes, Vec<Name>)> {
    let inside = older
        .iter()
        .flat_map(|(_, other)| [Some(*other.start()), other.end().checked_add(1)])
        .flatten()
        .filter(|start| hashes.contains(start));
    let mut starts: Vec<u64> = inside.chain([*hashes.start()]).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|next| next.saturating_sub(1));
    let ends: Vec<u64> = ends.chain([*hashes.end()]).collect();
    starts
        .into_iter()
        .zip(ends)
        .map(|(start, end)| {
            let behind = older.iter().filter(|(_, other)| other.contains(&start));
            (start..=end, behind.map(|(name, _)| *name).collect())
        })
        .filter(|(_, behind): &(Hashes, Vec<Name>)| !behind.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wayhold_model::shard_map::shard_of;

    use super::*;

    proptest! {
        /// Whatever shards of older generations are still open, each key of a new shard is in the part that
        /// waits for exactly those of them that it may lie in.
        #[test]
        fn a_key_waits_for_the_older_shards_that_it_may_lie_in_and_no_other(
            counts in prop::collection::vec(1_u16..9, 1..4),
            open in prop::collection::vec(any::<bool>(), 32),
            newest in 1_u16..9,
            keys in prop::collection::vec(any::<u64>(), 50),
        ) {
            let mut open = open.into_iter();
            let mut older = Vec::new();
            for (generation, count) in (1..).map(Generation).zip(&counts) {
                for id in (0..*count).map(ShardId) {
                    if open.next() == Some(true) {
                        older.push(((generation, id), hashes_of(id, *count)));
                    }
                }
            }
            let older: Vec<_> = older.iter().map(|(name, hashes)| (*name, hashes)).collect();
            for key in keys.into_iter().chain([0, u64::MAX]) {
                let hashes = hashes_of(shard_of(key, newest), newest);
                let parts = parts(&hashes, &older);
                let found: Vec<_> = parts.iter().filter(|(part, _)| part.contains(&key)).collect();
                let mut behind = found.iter().flat_map(|(_, behind)| behind.clone()).collect::<Vec<_>>();
                behind.sort_unstable();
                let expected: Vec<_> = (1..).map(Generation).zip(&counts)
                    .map(|(generation, count)| (generation, shard_of(key, *count)))
                    .filter(|name| older.iter().any(|(other, _)| other == name))
                    .collect();
                prop_assert!(found.len() <= 1);
                prop_assert_eq!(behind, expected);
            }
        }
    }
}
