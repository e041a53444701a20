//! A whole index file in memory, and what is looked up in it: one sequence, the sequences of a lane or of a key.

use std::sync::Arc;

use wayhold_model::{DestinationId, DestinationSet};

use super::by_id::partition;
use super::bytes::{long, word};
use super::{Identified, KEY_BYTES, ROW_BYTES, identified};

/// A whole index file in memory.
pub(crate) struct Loaded {
    pub(super) first: u64,
    pub(super) rows: Vec<u8>,
    pub(super) keys: Vec<u8>,
    pub(super) lanes: Vec<(DestinationId, Vec<u8>)>,
}

/// A loaded index file that several readers share.
pub(crate) type SharedIndex = Arc<Loaded>;

impl Loaded {
    /// The entry of one sequence.
    pub(crate) fn identity_at(&self, sequence: u64) -> Option<Identified> {
        let wanted = u32::try_from(sequence.checked_sub(self.first)?).ok()?;
        let rows = self.rows.len() / ROW_BYTES;
        let row = |index: usize| self.rows.get(index * ROW_BYTES..(index + 1) * ROW_BYTES);
        let at = partition(rows, |index| {
            row(index).is_some_and(|row| word(row, 0) < wanted)
        });
        let found = identified(self.first, row(at)?);
        (found.sequence == sequence).then_some(found)
    }

    /// Sequences of one lane above `after`, ascending.
    pub(crate) fn lane_after(
        &self,
        destination: DestinationId,
        after: u64,
    ) -> impl Iterator<Item = u64> {
        let list = self.lane(destination);
        let count = list.len() / 4;
        let start = match after.checked_sub(self.first) {
            None => 0,
            Some(after) => partition(count, |index| u64::from(word(list, index * 4)) <= after),
        };
        let first = self.first;
        list.get(start * 4..)
            .unwrap_or_default()
            .chunks_exact(4)
            .map(move |at| first + u64::from(word(at, 0)))
    }

    /// Whether the event of one sequence owes a delivery to this destination.
    pub(crate) fn owes(&self, destination: DestinationId, sequence: u64) -> bool {
        sequence > 0 && self.lane_after(destination, sequence - 1).next() == Some(sequence)
    }

    /// Sequences of one key in `(after, through]`, ascending.
    pub(crate) fn key_after(
        &self,
        key_hash: u64,
        after: u64,
        through: u64,
    ) -> impl Iterator<Item = u64> {
        let pair = |index: usize| {
            let bytes = self.keys.get(index * KEY_BYTES..).unwrap_or_default();
            (long(bytes, 0), self.first + u64::from(word(bytes, 8)))
        };
        let count = self.keys.len() / KEY_BYTES;
        let start = partition(count, |index| pair(index) <= (key_hash, after));
        (start..count)
            .map(pair)
            .take_while(move |&(key, sequence)| key == key_hash && sequence <= through)
            .map(|(_, sequence)| sequence)
    }

    /// Whom the event of one sequence owes a delivery to.
    pub(crate) fn destinations_of(&self, sequence: u64) -> DestinationSet {
        DestinationSet::new(
            self.lanes
                .iter()
                .map(|(id, _)| *id)
                .filter(|id| self.owes(*id, sequence)),
        )
    }

    fn lane(&self, destination: DestinationId) -> &[u8] {
        self.lanes
            .iter()
            .find(|(id, _)| *id == destination)
            .map_or(&[], |(_, list)| list)
    }
}
