//! The shard map: which shard of a generation an event lies in. Its answers are a disk format, because
//! a lane relies on every event of a key lying in one shard of a generation: changing it would need a
//! new generation, and a version of the store's format that says so.

use std::ops::RangeInclusive;

use crate::id::ShardId;

/// Most shards that a generation may have: each costs half a dozen threads and some open files,
/// and far fewer keep any disk busy.
pub const SHARDS_MAX: u16 = 64;

/// The shard that a hash belongs to, of a generation with `shards` shards: `hash * shards / 2^64`,
/// rounded down. Every shard gets an equal range of hashes.
pub fn shard_of(hash: u64, shards: u16) -> ShardId {
    let [.., high, low] = ((u128::from(hash) * u128::from(shards)) >> 64).to_be_bytes();
    ShardId(u16::from_be_bytes([high, low]))
}

/// The hashes that belong to a shard, of a generation with `shards` shards: `shard_of` turned round.
pub fn hashes_of(shard: ShardId, shards: u16) -> RangeInclusive<u64> {
    let first = |shard: u16| {
        let begin = u128::from(shard) << 64;
        begin.div_ceil(u128::from(shards.max(1)))
    };
    let last = first(shard.0.saturating_add(1)).saturating_sub(1);
    let narrow = |hash: u128| u64::try_from(hash).unwrap_or(u64::MAX);
    narrow(first(shard.0))..=narrow(last)
}

/// How many shards suit a machine with so many cores: shards exist for syncs that run in parallel, and
/// where there are few cores, one writer leaves the most of them to everything else.
pub fn shards_for(cores: usize) -> u16 {
    const CORES_PER_SHARD: usize = 4;
    const BY_DEFAULT_MAX: usize = 4;
    let shards = (cores / CORES_PER_SHARD).clamp(1, BY_DEFAULT_MAX);
    u16::try_from(shards).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_shard_map_do_not_move() {
        for (hash, shards, shard) in [
            (0, 1, 0),
            (u64::MAX, 1, 0),
            (0x0c5f_1e6f_8bfc_d1cb, 4, 0),
            (0x3fff_ffff_ffff_ffff, 4, 0),
            (0x4000_0000_0000_0000, 4, 1),
            (0x8000_0000_0000_0000, 4, 2),
            (u64::MAX, 4, 3),
            (0x5555_5555_5555_5555, 3, 0),
            (0x5555_5555_5555_5556, 3, 1),
            (0xaaaa_aaaa_aaaa_aaab, 3, 2),
            (u64::MAX, 3, 2),
            (0xdead_beef_dead_beef, 64, 55),
            (u64::MAX, 64, 63),
        ] {
            assert_eq!(
                shard_of(hash, shards),
                ShardId(shard),
                "{hash:x} of {shards}"
            );
        }
    }

    #[test]
    fn every_shard_gets_an_equal_share() {
        for shards in [1, 2, 3, 4, 7, SHARDS_MAX] {
            let mut counts = vec![0_u32; usize::from(shards)];
            for key in 0..64_000_u64 {
                let hash = xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes());
                counts[usize::from(shard_of(hash, shards).0)] += 1;
            }
            let fair = 64_000 / u32::from(shards);
            assert!(
                counts.iter().all(|count| count.abs_diff(fair) < fair / 4),
                "{shards}: {counts:?}"
            );
        }
    }

    #[test]
    fn the_hashes_of_all_shards_follow_each_other_without_a_gap() {
        for shards in 1..=SHARDS_MAX {
            let mut next = Some(0);
            for shard in (0..shards).map(ShardId) {
                let hashes = hashes_of(shard, shards);
                assert_eq!(Some(*hashes.start()), next);
                for hash in [*hashes.start(), *hashes.end()] {
                    assert_eq!(shard_of(hash, shards), shard);
                }
                next = hashes.end().checked_add(1);
            }
            assert_eq!(next, None);
        }
    }

    #[test]
    fn few_cores_have_one_shard_and_more_have_up_to_four() {
        let table = [
            (0, 1),
            (1, 1),
            (2, 1),
            (4, 1),
            (5, 1),
            (7, 1),
            (8, 2),
            (11, 2),
            (12, 3),
            (15, 3),
            (16, 4),
            (17, 4),
            (128, 4),
        ];
        for (cores, shards) in table {
            assert_eq!(shards_for(cores), shards, "{cores} cores");
        }
    }
}
