//! What operators made of the events of dead letters: rows in the state file that hold the event as it was
//! accepted and as it was edited. A row is written in the transaction that begins the redrive, and stays when the
//! letter has ended: what was sent in the place of an accepted event can always be held against it.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use wayhold_model::{DestinationId, Position, Sequence, StoredEvent};

use crate::delivery::{EditedLetter, LetterEdit};
use crate::progress::letter::NewEdit;
use crate::progress::letter_rows::{Copy, LetterContext, event_of, timestamp};

/// The table, new with format 6. `original` and `edited` are the texts of the events as JSON arrays, in the order
/// of the columns of `dead_letters`.
pub(super) const SCHEMA: &str = "
CREATE TABLE edits(
    letter INTEGER PRIMARY KEY, destination INTEGER NOT NULL, sequence INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL, edited_at INTEGER NOT NULL, edited_by TEXT NOT NULL,
    reason TEXT NOT NULL, ended INTEGER NOT NULL, original TEXT NOT NULL,
    original_data BLOB NOT NULL, edited TEXT NOT NULL, edited_data BLOB NOT NULL,
    row_check INTEGER NOT NULL
) STRICT;
";

/// Columns of it.
pub(super) const COLUMNS: usize = 13;

/// Writes an edit, in the place of an earlier one of the same letter: the original stays the first.
pub(super) fn insert(
    connection: &Connection,
    letter: u64,
    new: &NewEdit,
    seed: u64,
) -> rusqlite::Result<()> {
    let (original, edited) = (Copy::of(&new.original), Copy::of(&new.edit.event));
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO edits VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            letter.cast_signed(),
            new.destination.0,
            original.sequence.cast_signed(),
            original.accepted_at.cast_signed(),
            new.edit.at.as_micros().cast_signed(),
            new.edit.by,
            new.edit.reason,
            texts_of(&original),
            original.data,
            texts_of(&edited),
            edited.data,
            check(&original, &edited, seed),
        ])?;
    Ok(())
}

/// The letter has ended; what was edited of it is kept.
pub(super) fn end(connection: &Connection, letter: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE edits SET ended = 1 WHERE letter = ?")?
        .execute([letter.cast_signed()])?;
    Ok(())
}

/// What is known of a letter's having been edited.
#[derive(Debug)]
pub(super) enum Edited {
    /// It was not.
    Not,
    /// It was, and so.
    So(EditedLetter),
    /// It was, and how is damaged.
    Damaged,
}

/// What was edited of a letter.
pub(super) fn read(
    connection: &Connection,
    letter: u64,
    context: LetterContext,
) -> rusqlite::Result<Edited> {
    connection
        .prepare_cached("SELECT * FROM edits WHERE letter = ?")?
        .query_row([letter.cast_signed()], |row| read_row(row, context))
        .optional()
        .map(|found| match found {
            None => Edited::Not,
            Some(Some(edited)) => Edited::So(edited),
            Some(None) => Edited::Damaged,
        })
}

fn read_row(row: &Row<'_>, context: LetterContext) -> rusqlite::Result<Option<EditedLetter>> {
    let sequence = row.get::<_, i64>("sequence")?.cast_unsigned();
    let accepted_at = row.get::<_, i64>("accepted_at")?.cast_unsigned();
    let position = Position {
        sequence: Sequence(sequence),
        ..context.place
    };
    let (original, edited): (String, String) = (row.get("original")?, row.get("edited")?);
    let (Some(original), Some(edited)) = (texts_from(&original), texts_from(&edited)) else {
        return Ok(None);
    };
    let data = [
        row.get_ref("original_data")?.as_blob()?,
        row.get_ref("edited_data")?.as_blob()?,
    ];
    let copy = |texts, data| Copy {
        sequence,
        accepted_at,
        texts,
        data,
    };
    let (original, edited) = (
        copy(original.each_ref().map(String::as_str), data[0]),
        copy(edited.each_ref().map(String::as_str), data[1]),
    );
    if check(&original, &edited, context.hash_seed) != row.get::<_, i64>("row_check")? {
        return Ok(None);
    }
    let event = |copy| event_of(copy, position, context.hash_seed).map(Arc::new);
    let (Some(original), Some(event)): (Option<Arc<StoredEvent>>, _) =
        (event(&original), event(&edited))
    else {
        return Ok(None);
    };
    Ok(Some(EditedLetter {
        letter: row.get::<_, i64>("letter")?.cast_unsigned(),
        destination: DestinationId(row.get("destination")?),
        original,
        edit: LetterEdit {
            event,
            at: timestamp(row.get("edited_at")?),
            by: row.get("edited_by")?,
            reason: row.get("reason")?,
        },
        ended: row.get("ended")?,
    }))
}

/// The checksum of a row: that of the edited event, seeded with that of the original.
fn check(original: &Copy<'_>, edited: &Copy<'_>, seed: u64) -> i64 {
    edited.check(original.check(seed).cast_unsigned())
}

fn texts_of(copy: &Copy<'_>) -> String {
    // Texts always have a JSON form.
    serde_json::to_string(&copy.texts).unwrap_or_default()
}

fn texts_from(json: &str) -> Option<[String; 10]> {
    serde_json::from_str(json).ok()
}
