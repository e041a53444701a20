//! Whether the ledger in a file is what it says: every record gives its leaf hash, every tile its root, and places follow
//! each other. Whether somebody wrote it anew as a whole is for checkpoints that were kept elsewhere to say.

use rusqlite::Connection;
use wayhold_model::ledger::Hash;
use wayhold_model::ledger::hash::HASH_BYTES;
use wayhold_model::ledger::tree::root_of;

/// What is wrong, in at most so many sentences.
pub(in super::super) fn unsound(
    connection: &Connection,
    most: usize,
) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut records = connection.prepare("SELECT idx, leaf, record FROM ledger ORDER BY idx")?;
    let mut rows = records.query([])?;
    let mut next: Option<i64> = None;
    while let Some(row) = rows.next()?
        && found.len() < most
    {
        let idx: i64 = row.get(0)?;
        if next.is_some_and(|next| next != idx) {
            found.push(format!(
                "before record {idx} of the ledger others are missing"
            ));
        }
        next = Some(idx + 1);
        let record = row.get_ref(2)?.as_blob()?;
        if Hash::of_leaf(record) != Hash(row.get(1)?) {
            found.push(format!(
                "record {idx} of the ledger is not the one that was hashed"
            ));
        }
    }
    let mut tiles = connection
        .prepare("SELECT level, number, root, hashes FROM ledger_tiles ORDER BY level, number")?;
    let mut rows = tiles.query([])?;
    while let Some(row) = rows.next()?
        && found.len() < most
    {
        let hashes = row.get_ref(3)?.as_blob()?.chunks_exact(HASH_BYTES);
        let hashes: Vec<Hash> = hashes
            .filter_map(|hash| Hash::from_bytes(hash).ok())
            .collect();
        if root_of(&hashes) != Hash(row.get(2)?) {
            let (level, number): (i64, i64) = (row.get(0)?, row.get(1)?);
            found.push(format!(
                "hashes {number} of level {level} of the ledger do not give their root"
            ));
        }
    }
    Ok(found)
}
