//! The shards of a store: every generation of them in order. Says which shard a position or a key belongs
//! to; what lies in a shard is the shard's own business.
//!
//! Generations come and go while the store runs: whoever needs them takes the map as it is at that moment,
//! and sees a new one when it looks the next time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::{ArcSwap, Guard};
use wayhold_model::shard_map::shard_of;
use wayhold_model::{Generation, LaneId, Position, ShardId, hash};

use crate::delivery::LaneTotals;
use crate::shard::core::Shard;

/// All shards, whichever there are.
pub(crate) struct Shards {
    now: ArcSwap<Map>,
}

/// All shards at one moment, oldest generation first; the newest takes new events.
pub(crate) struct Map {
    generations: Vec<Arc<Shared>>,
    /// What lanes counted in generations that are retired. Beside them, so that nothing is counted in both or
    /// in neither.
    retired: Vec<(LaneId, LaneTotals)>,
}

/// The shards of one generation, by number.
pub(crate) struct Shared {
    pub(crate) generation: Generation,
    pub(crate) shards: Vec<Arc<Shard>>,
}

impl Shards {
    pub(crate) fn new(map: Map) -> Self {
        map.share_retention();
        Self {
            now: ArcSwap::from_pointee(map),
        }
    }

    /// The map as it is. Not to be kept: what is held on to costs every change a little.
    pub(crate) fn now(&self) -> Guard<Arc<Map>> {
        self.now.load()
    }

    /// The map as it is, to be kept.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.now.load_full()
    }

    /// Puts another map in place; one at a time.
    pub(crate) fn replace(&self, map: Map) {
        map.share_retention();
        self.now.store(Arc::new(map));
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.now();
        let names = map.all().map(|shard| Name(shard.generation, shard.id));
        f.debug_list().entries(names).finish()
    }
}

impl Map {
    /// At least one generation with at least one shard.
    pub(crate) fn new(generations: Vec<Arc<Shared>>, retired: Vec<(LaneId, LaneTotals)>) -> Self {
        debug_assert!(
            generations
                .last()
                .is_some_and(|last| !last.shards.is_empty())
        );
        Self {
            generations,
            retired,
        }
    }

    /// With one generation more, which takes new events from now on.
    pub(crate) fn with(&self, newest: Arc<Shared>) -> Self {
        let generations = self.generations.iter().cloned().chain([newest]);
        Self::new(generations.collect(), self.retired.clone())
    }

    /// Without one that is retired; `retired` is what lanes counted in all that are.
    pub(crate) fn without(
        &self,
        generation: Generation,
        retired: Vec<(LaneId, LaneTotals)>,
    ) -> Self {
        let mut generations = self.generations.clone();
        generations.retain(|one| one.generation != generation);
        Self::new(generations, retired)
    }

    /// The generations, oldest first.
    pub(crate) fn generations(&self) -> &[Arc<Shared>] {
        &self.generations
    }

    /// Those that take nothing any more, oldest first.
    pub(crate) fn older(&self) -> &[Arc<Shared>] {
        self.generations
            .split_last()
            .map_or(&[], |(_, older)| older)
    }

    /// The shards that take new events, by number.
    pub(crate) fn newest(&self) -> &[Arc<Shard>] {
        self.generations
            .last()
            .map_or(&[], |newest| newest.shards.as_slice())
    }

    /// Every shard, oldest generation first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.generations
            .iter()
            .flat_map(|generation| &generation.shards)
    }

    /// What a lane counted in generations that are retired.
    pub(crate) fn retired(&self, lane: LaneId) -> LaneTotals {
        let counted = self.retired.iter().find(|(other, _)| *other == lane);
        counted.map_or_else(LaneTotals::default, |(_, totals)| *totals)
    }

    /// Whether there are several: only then a finding has to say which one it concerns.
    pub(crate) fn are_several(&self) -> bool {
        self.all().nth(1).is_some()
    }

    /// The shard of a position; `None` for one that no receipt of this store shows, or whose generation is
    /// retired.
    pub(crate) fn of(&self, position: Position) -> Option<&Arc<Shard>> {
        self.generations
            .iter()
            .find(|one| one.generation == position.generation)?
            .shards
            .get(usize::from(position.shard.0))
    }

    /// The shards that hold events of a key, oldest generation first: one of each generation.
    pub(crate) fn of_key(&self, key_hash: u64) -> impl Iterator<Item = &Arc<Shard>> {
        self.generations
            .iter()
            .filter_map(move |one| one.shards.get(one.place_of(key_hash)))
    }

    /// A finding, with the shard that it concerns where there are several.
    pub(crate) fn named(&self, shard: &Shard, finding: String) -> String {
        match self.are_several() {
            true => format!("{}: {finding}", Name(shard.generation, shard.id)),
            false => finding,
        }
    }

    /// What is kept of resolved segments is bounded for the store: each shard has an equal share.
    fn share_retention(&self) {
        let count = self.all().count() as u64;
        for shard in self.all() {
            let share = shard.options.retention_bytes / count.max(1);
            shard.retention_bytes.store(share, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// How many shards it has.
    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.shards.len()).unwrap_or(u16::MAX)
    }

    fn place_of(&self, hash: u64) -> usize {
        usize::from(shard_of(hash, self.count()).0)
    }
}

/// Which shard of which node a file belongs to. State files and marks say it, so that one that was put into the
/// place of another is not taken for it: it would call deliveries resolved that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) generation: u32,
    pub(crate) shard: u16,
    /// Made of the node's hash seed.
    pub(crate) node: u64,
}

impl Owner {
    pub(crate) fn new(generation: Generation, shard: ShardId, hash_seed: u64) -> Self {
        Self {
            generation: generation.0,
            shard: shard.0,
            node: hash::checksum(b"node", hash_seed),
        }
    }
}

/// What people call a shard: `g1.s0`, as positions begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(pub(crate) Generation, pub(crate) ShardId);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}.s{}", self.0.0, self.1.0)
    }
}
