//! The tree: hashes of every 256 leaves lie together, as the tiles of C2SP do, and stay when records are removed. A tile is
//! written once, when it is full; the hashes of one that is not are those of the records, or of the tiles below.

use rusqlite::{Connection, OptionalExtension, params};
use wayhold_model::ledger::hash::HASH_BYTES;
use wayhold_model::ledger::proof::{self, Head, ProofError};
use wayhold_model::ledger::tile::{Span, TILE_LEVEL_MAX, TILE_WIDTH, Tile};
use wayhold_model::ledger::tree::root_of;
use wayhold_model::ledger::{Frontier, Hash, Node};

use super::super::change::View;
use super::super::error::CommandsError;
use super::records;

pub(super) const SCHEMA: &str = "
CREATE TABLE ledger_tiles(
    level INTEGER NOT NULL, number INTEGER NOT NULL, root BLOB NOT NULL, hashes BLOB NOT NULL,
    PRIMARY KEY (level, number)
) STRICT;
";

impl View<'_> {
    /// Size and root of the whole tree.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ledger_head(&self) -> Result<Head, CommandsError> {
        self.run(|connection| {
            let tree = restore(connection)?;
            Ok(Head {
                size: tree.size(),
                root: tree.root(),
            })
        })
    }

    /// Hashes of a tile, as wide as it is; `None` where the tree does not have so many.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn tile(&self, tile: Tile) -> Result<Option<Vec<Hash>>, CommandsError> {
        self.run(|connection| {
            let mut hashes = hashes_of(connection, tile.level, tile.number)?;
            let width = usize::try_from(tile.width).unwrap_or(usize::MAX);
            if hashes.len() < width {
                return Ok(None);
            }
            hashes.truncate(width);
            Ok(Some(hashes))
        })
    }

    /// Proof that the record at `index` is in the tree of that size; `None` where there is no such record or size.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn inclusion(&self, index: u64, size: u64) -> Result<Option<Vec<Hash>>, CommandsError> {
        self.prove(size, |connection| {
            proof::inclusion(index, size, |node| hash_of(connection, node))
        })
    }

    /// Proof that the tree of size `new` begins with that of size `old`; `None` where there are no such sizes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn consistency(&self, old: u64, new: u64) -> Result<Option<Vec<Hash>>, CommandsError> {
        self.prove(new, |connection| {
            proof::consistency(old, new, |node| hash_of(connection, node))
        })
    }

    fn prove(
        &self,
        size: u64,
        prove: impl FnOnce(&Connection) -> Result<Vec<Hash>, ProofError<rusqlite::Error>>,
    ) -> Result<Option<Vec<Hash>>, CommandsError> {
        self.run(|connection| {
            if size > records::size(connection)? {
                return Ok(None);
            }
            match prove(connection) {
                Ok(path) => Ok(Some(path)),
                Err(ProofError::Outside) => Ok(None),
                Err(ProofError::Node(error)) => Err(error),
            }
        })
    }
}

/// What the tree needs to grow, from what is kept.
pub(in super::super) fn restore(connection: &Connection) -> rusqlite::Result<Frontier> {
    let size = records::size(connection)?;
    Frontier::restore(size, |node| hash_of(connection, node))
}

/// Writes the tiles that became full with the last record of a tree of that size.
pub(super) fn complete(connection: &Connection, size: u64) -> rusqlite::Result<()> {
    let mut full = size;
    for level in 0..=TILE_LEVEL_MAX {
        if full == 0 || !full.is_multiple_of(TILE_WIDTH) {
            break;
        }
        full /= TILE_WIDTH;
        let number = full - 1;
        let hashes = hashes_of(connection, level, number)?;
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.0).collect();
        connection
            .prepare_cached("INSERT INTO ledger_tiles VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                level,
                number.cast_signed(),
                root_of(&hashes).0,
                bytes
            ])?;
    }
    Ok(())
}

fn hash_of(connection: &Connection, node: Node) -> rusqlite::Result<Hash> {
    let span = Span::of(node);
    let hashes = hashes_of(connection, span.level, span.number)?;
    // Fewer than there must be: rows of the ledger are missing.
    span.root(&hashes)
        .ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// The hashes of a tile, as many as there are.
fn hashes_of(connection: &Connection, level: u8, number: u64) -> rusqlite::Result<Vec<Hash>> {
    let full: Option<Vec<u8>> = connection
        .prepare_cached("SELECT hashes FROM ledger_tiles WHERE level = ?1 AND number = ?2")?
        .query_row(params![level, number.cast_signed()], |row| row.get(0))
        .optional()?;
    if let Some(bytes) = full {
        let hashes = bytes.chunks_exact(HASH_BYTES);
        return Ok(hashes
            .filter_map(|bytes| Hash::from_bytes(bytes).ok())
            .collect());
    }
    let first = number.saturating_mul(TILE_WIDTH);
    let (first, end) = (
        first.cast_signed(),
        first.saturating_add(TILE_WIDTH).cast_signed(),
    );
    let hash = |row: &rusqlite::Row<'_>| row.get(0).map(Hash);
    match level.checked_sub(1) {
        None => connection
            .prepare_cached("SELECT leaf FROM ledger WHERE idx >= ?1 AND idx < ?2 ORDER BY idx")?
            .query_map(params![first, end], hash)?
            .collect(),
        Some(below) => connection
            .prepare_cached(
                "SELECT root FROM ledger_tiles WHERE level = ?3 AND number >= ?1 AND number < ?2 ORDER BY number",
            )?
            .query_map(params![first, end, below], hash)?
            .collect(),
    }
}
