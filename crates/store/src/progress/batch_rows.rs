//! Writing a batch of changes into a state file, table by table, within one transaction.

use rusqlite::{Connection, OptionalExtension, Transaction, params, params_from_iter};
use wayhold_model::{LaneId, Sequence};

use crate::progress::attempts;
use crate::progress::checks::{check_of_values, chunk_check, lane_values};
use crate::progress::chunk::{self, Chunk};
use crate::progress::letter::LetterChange;
use crate::progress::letter_edits;
use crate::progress::letter_rows;
use crate::progress::memory::Batch;

/// Writes the first batch of a new file.
pub(super) fn fill(
    transaction: &Transaction<'_>,
    batch: &Batch,
    seed: u64,
) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO shard VALUES (?)",
        [batch.next_letter.cast_signed()],
    )?;
    write(transaction, batch, seed)
}

/// Writes a batch within a transaction.
pub(super) fn write(
    transaction: &Transaction<'_>,
    batch: &Batch,
    seed: u64,
) -> rusqlite::Result<()> {
    write_chunks(transaction, batch, seed)?;
    write_referred(transaction, batch, seed)?;
    write_letters(transaction, batch, seed)?;
    write_retries(transaction, batch)?;
    for (lane, floor, totals) in &batch.lanes {
        let values = lane_values(*lane, *floor, totals);
        let check = check_of_values(&values, seed);
        transaction
            .prepare_cached("INSERT OR REPLACE INTO lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params_from_iter(values.into_iter().chain([check])))?;
    }
    for (segment, resolved) in &batch.segments {
        match resolved {
            Some(resolved) => transaction.execute(
                "INSERT OR REPLACE INTO dropped VALUES (?, ?, ?)",
                [*segment, resolved.first.0, resolved.last.0].map(u64::cast_signed),
            )?,
            None => transaction.execute(
                "DELETE FROM dropped WHERE segment = ?",
                [segment.cast_signed()],
            )?,
        };
    }
    write_compacted(transaction, batch)
}

fn write_compacted(transaction: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    for (segment, left_out) in &batch.compacted {
        let segment = segment.cast_signed();
        transaction.execute("DELETE FROM compacted WHERE segment = ?", [segment])?;
        for (lane, count) in left_out.iter().flatten() {
            transaction.execute(
                "INSERT INTO compacted VALUES (?, ?, ?)",
                params![segment, lane.0, count.cast_signed()],
            )?;
        }
    }
    Ok(())
}

fn write_chunks(transaction: &Transaction<'_>, batch: &Batch, seed: u64) -> rusqlite::Result<()> {
    let mut replace =
        transaction.prepare_cached("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?)")?;
    for (lane, number, chunk) in &batch.chunks {
        let bytes = chunk.to_bytes();
        let check = chunk_check(*lane, *number, &bytes, seed);
        replace.execute(params![lane.0, number.cast_signed(), bytes, check])?;
    }
    let mut remove =
        transaction.prepare_cached("DELETE FROM chunks WHERE lane = ? AND chunk = ?")?;
    for (lane, number) in &batch.stale {
        remove.execute(params![lane.0, number.cast_signed()])?;
    }
    Ok(())
}

fn write_referred(transaction: &Transaction<'_>, batch: &Batch, seed: u64) -> rusqlite::Result<()> {
    for (lane, number, chunk) in &batch.referred {
        let key = params![lane.0, number.cast_signed()];
        match chunk {
            Some(chunk) => {
                let bytes = chunk.to_bytes();
                let check = chunk_check(*lane, *number, &bytes, seed);
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO referred VALUES (?, ?, ?, ?)")?
                    .execute(params![lane.0, number.cast_signed(), bytes, check])?
            }
            None => transaction
                .prepare_cached("DELETE FROM referred WHERE lane = ? AND chunk = ?")?
                .execute(key)?,
        };
    }
    Ok(())
}

/// The chunk of events that the letters of a lane refer to.
pub(super) fn referred_by_letters(
    connection: &Connection,
    lane: LaneId,
    number: u64,
) -> rusqlite::Result<Chunk> {
    let mut chunk = Chunk::new();
    let first = number << 12;
    let mut letters = connection.prepare(
        "SELECT sequence FROM dead_letters
         WHERE referred = 1 AND lane = ? AND sequence BETWEEN ? AND ?",
    )?;
    let span = [first, chunk::end_of(first)].map(u64::cast_signed);
    let mut rows = letters.query(params![lane.0, span[0], span[1]])?;
    while let Some(row) = rows.next()? {
        chunk.set(row.get::<_, i64>(0)?.cast_unsigned());
    }
    Ok(chunk)
}

fn write_retries(transaction: &Transaction<'_>, batch: &Batch) -> rusqlite::Result<()> {
    for ((lane, sequence), (retry, new)) in &batch.retries {
        let sequence = sequence.cast_signed();
        let Some(retry) = retry else {
            transaction
                .prepare_cached("DELETE FROM retries WHERE lane = ? AND sequence = ?")?
                .execute(params![lane.0, sequence])?;
            continue;
        };
        let mut history = history_of(transaction, *lane, sequence)?;
        history.extend_from_slice(new);
        transaction
            .prepare_cached("INSERT OR REPLACE INTO retries VALUES (?, ?, ?, ?, ?)")?
            .execute(params![
                lane.0,
                sequence,
                retry.attempts,
                retry.retry_at.map(|at| at.as_micros().cast_signed()),
                attempts::to_text(&history),
            ])?;
    }
    Ok(())
}

fn write_letters(transaction: &Transaction<'_>, batch: &Batch, seed: u64) -> rusqlite::Result<()> {
    if batch.letters.is_empty() {
        return Ok(());
    }
    transaction.execute(
        "UPDATE shard SET next_letter = ?",
        [batch.next_letter.cast_signed()],
    )?;
    for (id, change) in &batch.letters {
        match change {
            LetterChange::New(letter) => {
                let sequence = letter.content.sequence().0;
                let mut history = history_of(transaction, letter.lane, sequence.cast_signed())?;
                if let Some((_, unwritten)) = batch.retries.get(&(letter.lane, sequence)) {
                    history.extend_from_slice(unwritten);
                }
                history.extend_from_slice(&letter.attempts);
                letter_rows::insert(transaction, *id, letter, &history, seed)?;
                if let Some(edit) = &letter.edit {
                    letter_edits::insert(transaction, *id, edit, seed)?;
                }
            }
            LetterChange::Changed {
                redriving,
                attempts,
                edit,
            } => {
                letter_rows::update(transaction, *id, *redriving, attempts)?;
                if let Some(edit) = edit {
                    letter_edits::insert(transaction, *id, edit, seed)?;
                }
            }
            LetterChange::Removed => {
                letter_edits::end(transaction, *id)?;
                transaction
                    .prepare_cached("DELETE FROM dead_letters WHERE id = ?")?
                    .execute([id.cast_signed()])?;
            }
        }
    }
    Ok(())
}

fn history_of(
    connection: &Connection,
    lane: LaneId,
    sequence: i64,
) -> rusqlite::Result<Vec<crate::AttemptRecord>> {
    let text: Option<String> = connection
        .prepare_cached("SELECT history FROM retries WHERE lane = ? AND sequence = ?")?
        .query_row(params![lane.0, sequence], |row| row.get(0))
        .optional()?;
    Ok(text.map_or_else(Vec::new, |text| attempts::from_text(&text)))
}

/// Attempts recorded of one unresolved delivery, oldest first.
pub(super) fn read_history(
    connection: &Connection,
    lane: LaneId,
    sequence: Sequence,
) -> rusqlite::Result<Vec<crate::AttemptRecord>> {
    history_of(connection, lane, sequence.0.cast_signed())
}
