//! The shards of a store: every generation of them in order. Says which shard a position or a key belongs
//! to; what lies in a shard is the shard's own business.

use std::fmt;
use std::sync::Arc;

use wayhold_model::shard_map::shard_of;
use wayhold_model::{Generation, Position, ShardId, hash};

use crate::shard::core::Shard;

/// All shards, oldest generation first; the newest takes new events.
pub(crate) struct Shards {
    generations: Vec<Shared>,
}

/// The shards of one generation, by number.
pub(crate) struct Shared {
    pub(crate) generation: Generation,
    pub(crate) shards: Vec<Arc<Shard>>,
}

impl Shards {
    /// At least one generation with at least one shard.
    pub(crate) fn new(generations: Vec<Shared>) -> Self {
        debug_assert!(
            generations
                .last()
                .is_some_and(|last| !last.shards.is_empty())
        );
        Self { generations }
    }

    /// The generations, oldest first.
    pub(crate) fn generations(&self) -> &[Shared] {
        &self.generations
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

    /// Whether there are several: only then a finding has to say which one it concerns.
    pub(crate) fn are_several(&self) -> bool {
        self.all().nth(1).is_some()
    }

    /// The shard of a position; `None` for one that no receipt of this store shows.
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
}

impl Shared {
    fn place_of(&self, hash: u64) -> usize {
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        usize::from(shard_of(hash, count).0)
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
