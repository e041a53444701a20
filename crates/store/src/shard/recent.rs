//! The index of a segment that has no index file yet, in memory: the active one and at most two
//! closed ones. Answers the same questions as an index file, and is what one is written from.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashTable, hash_table};
use wayhold_model::{DestinationId, DestinationSet};

use super::row::Row;

/// What an index knows of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    pub(crate) id_hash: u128,
    /// `None` where the id was made here.
    pub(crate) fingerprint: Option<u64>,
    /// In microseconds since the epoch.
    pub(crate) accepted_at: u64,
    pub(crate) key_hash: Option<u64>,
    pub(crate) destinations: Arc<DestinationSet>,
}

/// Entries of one segment, ascending by sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    entries: Vec<Entry>,
    /// Of each id the newest entry, one whose producer gave the id before others.
    by_id: HashTable<u32>,
    counts: BTreeMap<DestinationId, u64>,
}

impl Recent {
    /// Adds a committed row; sequences ascend.
    pub(crate) fn push(&mut self, row: &Row) {
        self.add(Entry {
            sequence: row.stored.position.sequence.0,
            id_hash: row.id_hash,
            fingerprint: row.fingerprint,
            accepted_at: row.stored.accepted_at.as_micros(),
            key_hash: row.stored.key_hash,
            destinations: Arc::clone(&row.stored.destinations),
        });
        self.note_id();
    }

    /// Makes the entry that was added last the one that is found by its id.
    fn note_id(&mut self) {
        let Self { entries, by_id, .. } = self;
        let Some(added) = entries.last() else { return };
        let at = u32::try_from(entries.len() - 1).unwrap_or(u32::MAX);
        let entry = |at: u32| entries.get(at as usize);
        let hash = |at: &u32| entry(*at).map_or(0, |entry| spread(entry.id_hash));
        let is_same = |at: &u32| entry(*at).is_some_and(|entry| entry.id_hash == added.id_hash);
        match by_id.entry(spread(added.id_hash), is_same, hash) {
            hash_table::Entry::Vacant(free) => {
                free.insert(at);
            }
            hash_table::Entry::Occupied(mut known) => {
                let was_given =
                    entry(*known.get()).is_some_and(|known| known.fingerprint.is_some());
                if added.fingerprint.is_some() || !was_given {
                    *known.get_mut() = at;
                }
            }
        }
    }

    /// Adds what is known of an event; sequences ascend.
    pub(crate) fn add(&mut self, entry: Entry) {
        debug_assert!(
            self.entries
                .last()
                .is_none_or(|last| last.sequence < entry.sequence)
        );
        for id in entry.destinations.ids() {
            *self.counts.entry(*id).or_default() += 1;
        }
        self.entries.push(entry);
    }

    /// All entries.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Obligations per destination.
    pub(crate) fn counts(&self) -> &BTreeMap<DestinationId, u64> {
        &self.counts
    }

    /// The entry of one sequence.
    pub(crate) fn entry(&self, sequence: u64) -> Option<&Entry> {
        self.entries.get(
            self.entries
                .binary_search_by_key(&sequence, |entry| entry.sequence)
                .ok()?,
        )
    }

    /// The newest entry of one id; of several, one whose producer gave the id.
    pub(crate) fn find(&self, id_hash: u128) -> Option<&Entry> {
        let entry = |at: u32| self.entries.get(at as usize);
        let is_it = |at: &u32| entry(*at).is_some_and(|entry| entry.id_hash == id_hash);
        entry(*self.by_id.find(spread(id_hash), is_it)?)
    }

    /// Sequences of one lane above `after`, ascending.
    pub(crate) fn lane_after(
        &self,
        destination: DestinationId,
        after: u64,
    ) -> impl Iterator<Item = u64> {
        self.after(after)
            .filter(move |entry| entry.destinations.contains(destination))
            .map(|entry| entry.sequence)
    }

    /// Sequences of one key in `(after, through]`, ascending.
    pub(crate) fn key_after(
        &self,
        key_hash: u64,
        after: u64,
        through: u64,
    ) -> impl Iterator<Item = u64> {
        self.after(after)
            .take_while(move |entry| entry.sequence <= through)
            .filter(move |entry| entry.key_hash == Some(key_hash))
            .map(|entry| entry.sequence)
    }

    fn after(&self, after: u64) -> impl Iterator<Item = &Entry> {
        let start = self
            .entries
            .partition_point(|entry| entry.sequence <= after);
        self.entries.get(start..).unwrap_or_default().iter()
    }
}

/// An id hash is spread evenly already: half of it does.
fn spread(id_hash: u128) -> u64 {
    u64::try_from(id_hash >> 64).unwrap_or(0)
}
