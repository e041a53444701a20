//! One event as a row of a segment: what is written, how it is checked, how it is read back.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{CachedStatement, Row as SqlRow};
use wayhold_model::hash;
use wayhold_model::{
    DestinationSet, Event, EventParts, Generation, Position, Sequence, ShardId, StoredEvent,
    Timestamp,
};

/// One row per event, so that any SQLite tool can read it. Empty attributes are NULL. `fingerprint` is
/// NULL where the id was made here: such an event is never a duplicate.
pub(super) const SCHEMA: &str = "
CREATE TABLE segment(format INTEGER NOT NULL, uuid BLOB NOT NULL, number INTEGER NOT NULL,
    generation INTEGER NOT NULL, shard INTEGER NOT NULL, hash_seed INTEGER NOT NULL);
CREATE TABLE events(sequence INTEGER PRIMARY KEY, accepted_at INTEGER NOT NULL,
    tenant INTEGER NOT NULL, destinations TEXT NOT NULL, id_hash BLOB NOT NULL,
    fingerprint INTEGER, row_check INTEGER NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL,
    type TEXT NOT NULL, subject TEXT, key TEXT, time TEXT, content_type TEXT, dataschema TEXT,
    attributes TEXT, data BLOB);
";

const INSERT: &str = "INSERT INTO events(sequence, accepted_at, tenant, destinations, id_hash,
    fingerprint, row_check, id, source, type, subject, key, time, content_type, dataschema,
    attributes, data) VALUES(?1,?2,0,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)";

/// The columns that `decode` expects, in its order.
pub(super) const COLUMNS: &str = "sequence, accepted_at, destinations, id_hash, fingerprint, \
    row_check, id, source, type, subject, key, time, content_type, dataschema, attributes, data";

/// An event with everything its row holds.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) stored: Arc<StoredEvent>,
    pub(crate) id_hash: u128,
    /// `None` where the id was made here.
    pub(crate) fingerprint: Option<u64>,
}

/// What reading a row needs to know of its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) generation: Generation,
    pub(crate) shard: ShardId,
    /// Seeds row checks, so that a row of a foreign file is found.
    pub(crate) check_seed: u64,
    /// Seeds key hashes.
    pub(crate) hash_seed: u64,
}

/// A row that does not match its checksum or its types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DamagedRow {
    pub(crate) sequence: u64,
}

/// Prepares the insert of `write`, from the connection's cache.
pub(super) fn insert_statement(
    connection: &rusqlite::Connection,
) -> rusqlite::Result<CachedStatement<'_>> {
    connection.prepare_cached(INSERT)
}

/// Inserts one row.
pub(super) fn write(
    statement: &mut CachedStatement<'_>,
    row: &Row,
    check_seed: u64,
) -> rusqlite::Result<()> {
    let stored = &row.stored;
    let event = &stored.event;
    statement.raw_bind_parameter(1, stored.position.sequence.0.cast_signed())?;
    statement.raw_bind_parameter(2, stored.accepted_at.as_micros().cast_signed())?;
    statement.raw_bind_parameter(3, stored.destinations.text())?;
    statement.raw_bind_parameter(4, row.id_hash.to_le_bytes().as_slice())?;
    statement.raw_bind_parameter(5, row.fingerprint.map(u64::cast_signed))?;
    statement.raw_bind_parameter(6, check(row, check_seed).cast_signed())?;
    statement.raw_bind_parameter(7, event.id())?;
    statement.raw_bind_parameter(8, event.source())?;
    statement.raw_bind_parameter(9, event.kind())?;
    statement.raw_bind_parameter(10, present(event.subject()))?;
    statement.raw_bind_parameter(11, event.key())?;
    statement.raw_bind_parameter(12, present(event.time()))?;
    statement.raw_bind_parameter(13, present(event.content_type()))?;
    statement.raw_bind_parameter(14, present(event.dataschema()))?;
    statement.raw_bind_parameter(15, present(event.extensions_text()))?;
    statement.raw_bind_parameter(
        16,
        (!event.data().is_empty()).then_some(event.data().as_ref()),
    )?;
    statement.raw_execute()?;
    Ok(())
}

fn present(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Checksum of a row: XXH3-64 chained over fixed fields, destinations, text and data. It finds flipped
/// bits in any column and, by its seed, rows of a foreign file.
fn check(row: &Row, seed: u64) -> u64 {
    let stored = &row.stored;
    let mut fixed = [0_u8; 40];
    fixed[..8].copy_from_slice(&stored.position.sequence.0.to_le_bytes());
    fixed[8..16].copy_from_slice(&stored.accepted_at.as_micros().to_le_bytes());
    fixed[16..32].copy_from_slice(&row.id_hash.to_le_bytes());
    fixed[32..].copy_from_slice(&row.fingerprint.unwrap_or(0).to_le_bytes());
    let seed = hash::checksum(&fixed, seed ^ u64::from(row.fingerprint.is_some()));
    let seed = hash::checksum(stored.destinations.text().as_bytes(), seed);
    let seed = hash::checksum(stored.event.text_bytes(), seed);
    hash::checksum(stored.event.data(), seed)
}

/// Reads one row back and verifies it. `known` shares destination sets between rows.
pub(super) fn read(
    row: &SqlRow<'_>,
    origin: &Origin,
    known: &mut Option<Arc<DestinationSet>>,
) -> Result<Row, DamagedRow> {
    let sequence = row
        .get::<_, i64>(0)
        .map(i64::cast_unsigned)
        .unwrap_or_default();
    decode(row, origin, known).ok_or(DamagedRow { sequence })
}

fn decode(
    row: &SqlRow<'_>,
    origin: &Origin,
    known: &mut Option<Arc<DestinationSet>>,
) -> Option<Row> {
    let text = |column: usize| {
        row.get_ref(column)
            .ok()?
            .as_str_or_null()
            .ok()
            .map(Option::unwrap_or_default)
    };
    let destinations = shared_set(text(2)?, known)?;
    let id_hash = u128::from_le_bytes(row.get_ref(3).ok()?.as_blob().ok()?.try_into().ok()?);
    let key = text(10)?;
    let event = Event::from_stored(&EventParts {
        id: text(6)?,
        source: text(7)?,
        kind: text(8)?,
        subject: text(9)?,
        key,
        time: text(11)?,
        content_type: text(12)?,
        dataschema: text(13)?,
        extensions: text(14)?,
        data: Bytes::copy_from_slice(
            row.get_ref(15)
                .ok()?
                .as_blob_or_null()
                .ok()?
                .unwrap_or_default(),
        ),
    });
    let decoded = Row {
        stored: Arc::new(StoredEvent {
            position: Position {
                generation: origin.generation,
                shard: origin.shard,
                sequence: Sequence(row.get::<_, i64>(0).ok()?.cast_unsigned()),
            },
            accepted_at: Timestamp::from_micros(row.get::<_, i64>(1).ok()?.cast_unsigned()),
            destinations,
            key_hash: (!key.is_empty()).then(|| hash::key_hash(key, origin.hash_seed)),
            event: Arc::new(event),
        }),
        id_hash,
        fingerprint: row.get::<_, Option<i64>>(4).ok()?.map(i64::cast_unsigned),
    };
    let stored_check = row.get::<_, i64>(5).ok()?.cast_unsigned();
    (check(&decoded, origin.check_seed) == stored_check).then_some(decoded)
}

fn shared_set(text: &str, known: &mut Option<Arc<DestinationSet>>) -> Option<Arc<DestinationSet>> {
    if let Some(set) = known.as_ref().filter(|set| set.text() == text) {
        return Some(Arc::clone(set));
    }
    let set = Arc::new(DestinationSet::parse(text)?);
    *known = Some(Arc::clone(&set));
    Some(set)
}
