//! What is removed once it is older than the retention: records and their payloads, from the beginning on, in whole
//! tiles. Their hashes stay, so that the tree remains provable, and so does where each of their streams ended.

use rusqlite::{Connection, OptionalExtension, params};
use wayhold_model::Timestamp;
use wayhold_model::ledger::Hash;
use wayhold_model::ledger::tile::TILE_WIDTH;

use super::super::change::{Change, View};
use super::super::error::CommandsError;
use super::payloads;

pub(super) const SCHEMA: &str = "
CREATE TABLE ledger_ended(
    stream TEXT PRIMARY KEY, sseq INTEGER NOT NULL, leaf BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// What a step of removal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The first record that is held now.
    pub first: u64,
    /// How many it removed.
    pub removed: u64,
}

impl View<'_> {
    /// Up to where records may be removed: the end of the last whole tile of which every record is older than `before`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn removable(&self, before: Timestamp) -> Result<u64, CommandsError> {
        self.run(|connection| {
            // Times never go backwards, so the first record that is not older ends it; the newest is never removed.
            let first: Option<i64> = connection
                .prepare_cached(
                    "SELECT coalesce((SELECT idx FROM ledger WHERE at >= ?1 ORDER BY idx LIMIT 1), max(idx)) FROM ledger",
                )?
                .query_row([before.as_micros().cast_signed()], |row| row.get(0))?;
            let end = first.unwrap_or(0).cast_unsigned();
            Ok(end - end % TILE_WIDTH)
        })
    }
}

impl Change<'_> {
    /// Removes the next tile of records below `end`, a multiple of 256; `None` where none is left to remove. The caller
    /// appends `retention.applied` in the same change, with where the ledger begins now.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn remove_records(&mut self, end: u64) -> Result<Option<Retained>, CommandsError> {
        let first = self.first_record()?;
        let stop = end.min(first.saturating_add(TILE_WIDTH));
        if stop <= first || !stop.is_multiple_of(TILE_WIDTH) {
            return Ok(None);
        }
        let (from, to) = (first.cast_signed(), stop.cast_signed());
        let removed = self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO ledger_ended
                     SELECT stream, sseq, leaf FROM ledger WHERE idx >= ?1 AND idx < ?2 ORDER BY idx",
                )?
                .execute(params![from, to])?;
            connection
                .prepare_cached("DELETE FROM ledger_payloads WHERE place >= ?1 AND place < ?2")?
                .execute(params![payloads::place(first), payloads::place(stop)])?;
            connection
                .prepare_cached("DELETE FROM ledger WHERE idx >= ?1 AND idx < ?2")?
                .execute(params![from, to])
        })?;
        Ok(Some(Retained {
            first: stop,
            removed: removed as u64,
        }))
    }
}

/// The last record of a stream among those that were removed: its place in the stream, and its leaf hash.
pub(super) fn last_removed(
    connection: &Connection,
    stream: &str,
) -> rusqlite::Result<Option<(u64, Hash)>> {
    connection
        .prepare_cached("SELECT sseq, leaf FROM ledger_ended WHERE stream = ?1")?
        .query_row([stream], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), Hash(row.get(1)?)))
        })
        .optional()
}
