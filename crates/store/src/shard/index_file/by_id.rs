//! The section of an index file that finds an event by its id: the hashes in ascending order, each with the
//! row of its event. Hashes are spread evenly, so a hash says where in the section it lies to within a few
//! hundred entries, and looking one up takes one small read, whether it is there or not.

use super::bytes::{long, word};
use crate::shard::recent::Entry;

/// Bytes of one entry: id hash, row and flag.
pub(super) const ID_BYTES: usize = 16 + 4;

/// Set beside the row of an event whose producer gave the id. Of events with one hash such a one comes after
/// those whose id was made here, and a newer one after an older.
const GIVEN: u32 = 1 << 31;

/// The section of these events.
pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut ids: Vec<(u128, u32)> = (0_u32..)
        .zip(entries)
        .map(|(row, entry)| match entry.fingerprint {
            Some(_) => (entry.id_hash, row | GIVEN),
            None => (entry.id_hash, row),
        })
        .collect();
    ids.sort_unstable();
    ids.iter()
        .flat_map(|(hash, row)| hash.to_le_bytes().into_iter().chain(row.to_le_bytes()))
        .collect()
}

/// The whole section.
pub(crate) struct Ids(pub(super) Vec<u8>);

impl Ids {
    /// Hashes, ascending, each with the row of its event counted from 0.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u128, usize)> {
        self.0.chunks_exact(ID_BYTES).map(|id| (hash(id), row(id)))
    }
}

/// The row of the newest event with this hash in a section of `count` entries, of which
/// `read(first, count)` gives the bytes.
pub(super) fn find<E>(
    count: usize,
    id_hash: u128,
    mut read: impl FnMut(usize, usize) -> Result<Vec<u8>, E>,
) -> Result<Option<usize>, E> {
    // Entries below `low` are not above the hash, those from `high` on are.
    let (mut low, mut high) = (0, count);
    // An even spread puts an entry within half a root of its place, twice out of three times.
    let mut reach = count.isqrt() + 1;
    let mut from = place(id_hash, count).saturating_sub(reach);
    let mut before = None;
    while low < high {
        from = from.clamp(low, high - 1);
        let until = from.saturating_add(2 * reach).min(high);
        let section = read(from, until - from)?;
        let entries = section.len() / ID_BYTES;
        if entries == 0 {
            break;
        }
        let entry = |at: usize| section.get(at * ID_BYTES..).unwrap_or_default();
        let not_above = partition(entries, |at| hash(entry(at)) <= id_hash);
        if not_above > 0 {
            let last = entry(not_above - 1);
            before = Some((hash(last), row(last)));
            low = from + not_above;
        }
        if not_above < entries {
            high = from + not_above;
        }
        reach *= 2;
        // Whichever side is still open; both only while nothing was read.
        from = match not_above {
            0 => high.saturating_sub(2 * reach),
            _ => low,
        };
    }
    Ok(before
        .filter(|(found, _)| *found == id_hash)
        .map(|(_, row)| row))
}

/// Where a hash lies among `count` that are spread evenly.
fn place(id_hash: u128, count: usize) -> usize {
    let share = (id_hash >> 64) * count as u128;
    usize::try_from(share >> 64).unwrap_or(count)
}

fn hash(id: &[u8]) -> u128 {
    u128::from(long(id, 0)) | u128::from(long(id, 8)) << 64
}

fn row(id: &[u8]) -> usize {
    (word(id, 16) & !GIVEN) as usize
}

/// The first index in `0..count` for which `before` no longer holds.
pub(super) fn partition(count: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        match before(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use proptest::prelude::*;
    use wayhold_model::DestinationSet;

    use super::*;

    fn entries(ids: &[(u128, bool)]) -> Vec<Entry> {
        (1..)
            .zip(ids)
            .map(|(sequence, (id_hash, given))| Entry {
                sequence,
                id_hash: *id_hash,
                fingerprint: given.then_some(1),
                accepted_at: 0,
                key_hash: None,
                destinations: Arc::new(DestinationSet::new([])),
            })
            .collect()
    }

    /// The row, and how many reads it took.
    fn found(section: &[u8], id_hash: u128) -> (Option<usize>, usize) {
        let mut reads = 0;
        let row = find(section.len() / ID_BYTES, id_hash, |first, count| {
            reads += 1;
            let bytes = &section[first * ID_BYTES..(first + count) * ID_BYTES];
            Ok::<_, Infallible>(bytes.to_vec())
        });
        (row.unwrap(), reads)
    }

    proptest! {
        /// Hashes from a small range: unevenly spread, and repeated.
        #[test]
        fn the_newest_event_of_an_id_is_found_one_with_a_given_id_first(
            ids in prop::collection::vec((0_u128..40, any::<bool>()), 0..200),
            scale in 0_u32..124,
        ) {
            let ids: Vec<(u128, bool)> = ids.iter().map(|(id, given)| (id << scale, *given)).collect();
            let section = encode(&entries(&ids));
            for id in 0_u128..42 {
                let wanted = id << scale;
                let newest = |given: bool| ids.iter().rposition(|known| *known == (wanted, given));
                prop_assert_eq!(
                    found(&section, wanted).0,
                    newest(true).or_else(|| newest(false))
                );
            }
        }
    }

    #[test]
    fn an_id_of_a_full_segment_is_found_or_missed_in_few_reads() {
        let id = |number: u64| {
            let event = number.to_le_bytes();
            u128::from(wayhold_model::hash::checksum(&event, 1)) << 64 | u128::from(number)
        };
        let ids: Vec<(u128, bool)> = (0..65_536).map(|number| (id(number), true)).collect();
        let section = encode(&entries(&ids));
        let mut reads = 0;
        for number in (0..65_536_u64).step_by(7) {
            let (row, one) = found(&section, id(number));
            assert_eq!(row, usize::try_from(number).ok());
            let (none, other) = found(&section, id(number + 100_000));
            assert_eq!(none, None);
            reads += one + other;
        }
        let looked_up = 2 * 65_536_usize.div_ceil(7);
        assert!(reads < looked_up * 5 / 4, "{reads} reads for {looked_up}");
    }
}
