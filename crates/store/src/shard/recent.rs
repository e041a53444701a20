//! The index of a segment that has no index file yet, in memory: the active one and at most two
//! closed ones. Answers the same questions as an index file, and is what one is written from.

use std::collections::BTreeMap;
use std::sync::Arc;

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

    /// The entry of one identity; looks at all.
    pub(crate) fn find(&self, id_hash: u128) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id_hash == id_hash)
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
