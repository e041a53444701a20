//! Rows of a state file that carry a checksum (XXH3-64 with the node's seed), since without them the store could forget
//! a delivery: lanes and chunks.

use rusqlite::Row;
use rusqlite::types::Type;
use wayhold_model::{LaneId, hash};

use crate::progress::chunk::{self, Chunk};
use crate::progress::memory::Totals;

pub(super) fn lane_values(lane: LaneId, floor: u64, totals: &Totals) -> [i64; 8] {
    [
        u64::from(lane.0),
        floor,
        totals.accepted_base,
        totals.delivered,
        totals.dead,
        totals.expired,
        totals.discarded,
        totals.redriven,
    ]
    .map(u64::cast_signed)
}

pub(super) fn read_lane(row: &Row<'_>, seed: u64) -> rusqlite::Result<(LaneId, u64, Totals)> {
    let mut values = [0; 8];
    for (column, value) in values.iter_mut().enumerate() {
        *value = row.get(column)?;
    }
    if row.get::<_, i64>(8)? != check_of_values(&values, seed) {
        return Err(damaged("lanes"));
    }
    let [
        lane,
        floor,
        accepted_base,
        delivered,
        dead,
        expired,
        discarded,
        redriven,
    ] = values.map(i64::cast_unsigned);
    let totals = Totals {
        accepted_base,
        delivered,
        dead,
        expired,
        discarded,
        redriven,
        redriving: 0,
    };
    let lane = u32::try_from(lane).map_err(|_| damaged("lanes"))?;
    Ok((LaneId(lane), floor, totals))
}

/// The chunk is `None` where it is damaged.
pub(super) fn read_chunk(
    row: &Row<'_>,
    seed: u64,
) -> rusqlite::Result<(LaneId, u64, Option<Chunk>)> {
    let lane = LaneId(row.get(0)?);
    let number = row.get::<_, i64>(1)?.cast_unsigned();
    let bytes = row.get_ref(2)?.as_blob()?;
    let check: i64 = row.get(3)?;
    let chunk = <&[u8; chunk::BYTES]>::try_from(bytes)
        .ok()
        .filter(|bytes| chunk_check(lane, number, bytes, seed) == check)
        .map(Chunk::from_bytes);
    Ok((lane, number, chunk))
}

pub(super) fn check_of_values(values: &[i64; 8], seed: u64) -> i64 {
    let mut bytes = [0; 64];
    for (place, value) in bytes.chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    hash::checksum(&bytes, seed).cast_signed()
}

pub(super) fn chunk_check(lane: LaneId, number: u64, bytes: &[u8; chunk::BYTES], seed: u64) -> i64 {
    // The key goes into the seed's place, so that a row that answers under another key is found too.
    let key = [u64::from(lane.0).to_le_bytes(), number.to_le_bytes()].concat();
    hash::checksum(bytes, hash::checksum(&key, seed)).cast_signed()
}

pub(super) fn damaged(table: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        0,
        Type::Integer,
        format!("a row of {table} does not match its checksum").into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_of_the_disk_format_do_not_move() {
        let totals = Totals {
            accepted_base: 1,
            delivered: 2,
            dead: 3,
            expired: 4,
            discarded: 5,
            redriven: 6,
            redriving: 7,
        };
        let values = lane_values(LaneId(1), 4096, &totals);
        assert_eq!(
            format!("{:016x}", check_of_values(&values, 42)),
            VECTOR_LANE
        );
        let mut bytes = [0; chunk::BYTES];
        bytes[1] = 2;
        assert_eq!(
            format!("{:016x}", chunk_check(LaneId(1), 9, &bytes, 42)),
            VECTOR_CHUNK
        );
        assert_ne!(
            format!("{:016x}", chunk_check(LaneId(2), 9, &bytes, 42)),
            VECTOR_CHUNK
        );
    }

    const VECTOR_LANE: &str = "ec66fddb13096db6";
    const VECTOR_CHUNK: &str = "49497582860b2a53";
}
