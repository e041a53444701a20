//! What a new state file takes over from an old one that cannot be written, or not be trusted, any more:
//! histories of retries, dead letters and what was edited of them, which memory does not hold.

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, Row, Transaction};
use wayhold_model::{LaneId, Sequence};

use crate::progress::letter_edits;

/// Columns of `dead_letters`.
const LETTER_COLUMNS: usize = 24;

/// The column that says whether a letter refers to its event.
const REFERRED: usize = 21;

/// Columns of `retries`.
const RETRY_COLUMNS: usize = 5;

/// Dead letters that were carried into a new file.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pub(super) letters: Vec<CarriedLetter>,
    /// Whether the old file could be read to its end.
    pub(super) whole: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct CarriedLetter {
    pub(super) lane: LaneId,
    pub(super) sequence: Sequence,
    pub(super) redriving: bool,
    pub(super) referred: bool,
}

/// Copies retries and dead letters into a new file, as far as they can be read. Errors are those of the
/// new file.
///
/// Rows are copied as they are, forward until an error and then backward, so that one damaged page in
/// the middle costs only what lies on it.
pub(super) fn carry(old: &Connection, new: &Transaction<'_>) -> rusqlite::Result<Carried> {
    let mut carried = Carried {
        whole: true,
        ..Carried::default()
    };
    let mut copy = new.prepare(&format!(
        "INSERT OR IGNORE INTO dead_letters VALUES (?{})",
        ", ?".repeat(LETTER_COLUMNS - 1)
    ))?;
    for order in ["ASC", "DESC"] {
        let done = copy_rows(
            old,
            &format!("SELECT * FROM dead_letters ORDER BY id {order}"),
            |row| {
                for column in 0..LETTER_COLUMNS {
                    let value = row.get_ref(column)?;
                    copy.raw_bind_parameter(column + 1, ToSqlOutput::Borrowed(value))?;
                }
                match copy.raw_execute() {
                    // Met from the other side.
                    Ok(0) => return Ok(false),
                    Ok(_) => {}
                    Err(error) if is_unfit(&error) => return Ok(true),
                    Err(error) => return Err(error),
                }
                carried.letters.push(CarriedLetter {
                    lane: LaneId(row.get(1)?),
                    sequence: Sequence(row.get::<_, i64>(3)?.cast_unsigned()),
                    redriving: row.get(4)?,
                    referred: row.get(REFERRED)?,
                });
                Ok(true)
            },
        )?;
        if done {
            break;
        }
        carried.whole = false;
    }
    let edits = copy_all(old, new, "edits", letter_edits::COLUMNS)?;
    carried.whole &= edits;
    carried.whole &= copy_all(old, new, "retries", RETRY_COLUMNS)?;
    Ok(carried)
}

/// Copies a table as far as it can be read; whether that was to its end.
fn copy_all(
    old: &Connection,
    new: &Transaction<'_>,
    table: &str,
    columns: usize,
) -> rusqlite::Result<bool> {
    let values = ", ?".repeat(columns - 1);
    let mut copy = new.prepare(&format!("INSERT OR IGNORE INTO {table} VALUES (?{values})"))?;
    copy_rows(old, &format!("SELECT * FROM {table}"), |row| {
        for column in 0..columns {
            copy.raw_bind_parameter(column + 1, ToSqlOutput::Borrowed(row.get_ref(column)?))?;
        }
        match copy.raw_execute() {
            Err(error) if !is_unfit(&error) => Err(error),
            _ => Ok(true),
        }
    })
}

/// Whether a row is refused for what is in it: then it was damaged where it came from.
fn is_unfit(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation)
}

/// Hands each row on; whether the query could be read to its end. `Err` is the receiver's.
fn copy_rows(
    old: &Connection,
    query: &str,
    mut copy: impl FnMut(&Row<'_>) -> rusqlite::Result<bool>,
) -> rusqlite::Result<bool> {
    let Ok(mut statement) = old.prepare(query) else {
        return Ok(false);
    };
    let Ok(mut rows) = statement.query([]) else {
        return Ok(false);
    };
    loop {
        match rows.next() {
            Ok(None) => return Ok(true),
            Err(_) => return Ok(false),
            Ok(Some(row)) => {
                if !copy(row)? {
                    return Ok(false);
                }
            }
        }
    }
}
