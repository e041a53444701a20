//! Dead letters: their rows in the state file, and what operators do with them. Every action is in the
//! audit trail before it is done: a crash in between leaves an entry of something that was not done, and
//! never a change that nobody answers for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row, params};
use thiserror::Error;
use wayhold_model::event::EventParts;
use wayhold_model::{
    DestinationId, DestinationSet, Event, LaneId, Position, Sequence, StoredEvent, Timestamp, hash,
};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::{AttemptRecord, DeadLetter};
use crate::progress::attempts;
use crate::progress::handle::Progress;
use crate::progress::letter::NewLetter;

/// Why a dead letter was not shown or changed.
#[derive(Debug, Error)]
pub enum LetterError {
    /// There is none of that number (any more).
    #[error("no dead letter {id}")]
    NotFound {
        /// The number.
        id: u64,
    },
    /// It is being sent again; wait for the outcome.
    #[error("a redrive of dead letter {id} is already under way")]
    Redriving {
        /// The number.
        id: u64,
    },
    /// Its copy of the event does not match its checksum. It is kept and can only be discarded.
    #[error("the event in dead letter {id} is damaged on disk")]
    Damaged {
        /// The number.
        id: u64,
    },
    /// The audit trail could not take the action, which was therefore not done.
    #[error("the action could not be audited: {0}")]
    Audit(#[from] CatalogError),
    /// The disk did not take or give it in time; look again before repeating the action.
    #[error("dead letters are not available: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
    },
}

/// The dead letters of a store; a cheap handle. All methods block.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Progress of every shard; all number their letters together.
    shards: Arc<[Progress]>,
    catalog: Arc<Catalog>,
    /// Operators' actions one after the other, so that what was checked still holds when it is done.
    actions: Arc<Mutex<()>>,
}

impl DeadLetters {
    pub(crate) fn new(shards: impl IntoIterator<Item = Progress>, catalog: Arc<Catalog>) -> Self {
        Self {
            shards: shards.into_iter().collect(),
            catalog,
            actions: Arc::default(),
        }
    }

    /// At most `max` dead letters with a number above `after`, oldest first; of one destination or all.
    /// Damaged ones are left out here, and named by health and `get`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn list(
        &self,
        destination: Option<DestinationId>,
        after: Option<u64>,
        max: usize,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        // Only numbers that were given before the first shard is read: a letter that came about while
        // the others are read might be shown before an earlier one of another shard, which whoever goes
        // on after it would never see.
        let below = self.shards.first().map_or(0, Progress::next_letter);
        let wanted = Wanted {
            destination,
            below,
            max,
        };
        let mut letters = Vec::new();
        for shard in &*self.shards {
            letters.extend(shard.list_letters(wanted, after)?);
        }
        letters.sort_unstable_by_key(|letter| letter.id);
        letters.truncate(max);
        Ok(letters)
    }

    /// How many there are per destination and class, those under redrive left out.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn counts(&self) -> Result<Vec<(DestinationId, String, u64)>, LetterError> {
        let mut counts = BTreeMap::new();
        for shard in &*self.shards {
            for (destination, class, count) in shard.count_letters()? {
                *counts.entry((destination, class)).or_insert(0) += count;
            }
        }
        Ok(counts
            .into_iter()
            .map(|((destination, class), count)| (destination, class, count))
            .collect())
    }

    /// One dead letter.
    ///
    /// # Errors
    /// `NotFound`, `Damaged` or `Unavailable`.
    pub fn get(&self, id: u64) -> Result<DeadLetter, LetterError> {
        let (_, row) = self.row(id)?;
        row.letter.ok_or(LetterError::Damaged { id })
    }

    /// Starts sending a dead letter again: from now on it counts as pending. Durable when it returns;
    /// handing it to its lane is the caller's part.
    ///
    /// # Errors
    /// Any `LetterError`; nothing was done unless it is `Unavailable`.
    pub fn redrive(&self, id: u64, by: &str) -> Result<DeadLetter, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let (shard, row) = self.idle(id)?;
        let letter = row.letter.ok_or(LetterError::Damaged { id })?;
        self.catalog
            .audit(by, "dead_letter.redriven", &id.to_string(), None)?;
        failpoint!("redrive.audited");
        if !shard.change(|memory| memory.redrive(id, row.lane)) {
            return Err(LetterError::Redriving { id });
        }
        failpoint!("redrive.before-durable");
        shard.require_durable()?;
        failpoint!("redrive.durable");
        Ok(DeadLetter {
            redriving: true,
            ..letter
        })
    }

    /// Ends a dead letter for good. Durable when it returns.
    ///
    /// # Errors
    /// `NotFound`, `Redriving`, `Audit` or `Unavailable`; nothing was done unless it is the last.
    pub fn discard(&self, id: u64, by: &str, reason: &str) -> Result<(), LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let (shard, row) = self.idle(id)?;
        self.catalog
            .audit(by, "dead_letter.discarded", &id.to_string(), Some(reason))?;
        failpoint!("discard.audited");
        if !shard.change(|memory| memory.discard(id, row.lane)) {
            return Err(LetterError::Redriving { id });
        }
        shard.require_durable()
    }

    /// A letter that is not under redrive, and the shard that has it.
    fn idle(&self, id: u64) -> Result<(&Progress, LetterRow), LetterError> {
        let (shard, _) = self.row(id)?;
        // Earlier actions must be in the file, since that is where the letter is looked at.
        shard.require_durable()?;
        match shard.read_letter(id)? {
            None => Err(LetterError::NotFound { id }),
            Some(row) if row.redriving => Err(LetterError::Redriving { id }),
            Some(row) => Ok((shard, row)),
        }
    }

    /// A letter, and the shard that has it: nothing but the shards themselves knows which one that is,
    /// and people ask rarely.
    fn row(&self, id: u64) -> Result<(&Progress, LetterRow), LetterError> {
        let mut failure = LetterError::NotFound { id };
        for shard in &*self.shards {
            match shard.read_letter(id) {
                Ok(Some(row)) => return Ok((shard, row)),
                Ok(None) => {}
                // Another shard may have it all the same.
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// Which letters to list.
#[derive(Clone, Copy)]
struct Wanted {
    destination: Option<DestinationId>,
    below: u64,
    max: usize,
}

impl Progress {
    /// The first `max` sound letters of this shard above `after`.
    fn list_letters(
        &self,
        wanted: Wanted,
        mut after: Option<u64>,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        let mut letters = Vec::new();
        loop {
            let rows = self.letters_after(wanted, after)?;
            // Damaged ones make a page shorter; it is filled up, since a short page says that it is the
            // last.
            let is_last = rows.len() < wanted.max;
            after = rows.last().map(|row| row.id).or(after);
            letters.extend(self.undamaged(rows));
            if is_last || letters.len() >= wanted.max {
                return Ok(letters);
            }
        }
    }

    fn letters_after(
        &self,
        wanted: Wanted,
        after: Option<u64>,
    ) -> Result<Vec<LetterRow>, LetterError> {
        let context = self.letter_context();
        self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT * FROM dead_letters WHERE id > ?1 AND id < ?2
                     AND (?3 IS NULL OR destination = ?3) ORDER BY id LIMIT ?4",
                )?
                .query_map(
                    params![
                        after.map_or(-1, u64::cast_signed),
                        wanted.below.cast_signed(),
                        wanted.destination.map(|id| id.0),
                        i64::try_from(wanted.max).unwrap_or(i64::MAX)
                    ],
                    |row| read(row, context),
                )?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
    }

    fn count_letters(&self) -> Result<Vec<(DestinationId, String, u64)>, LetterError> {
        self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT destination, class, count(*) FROM dead_letters WHERE redriving = 0
                     GROUP BY destination, class",
                )?
                .query_map([], |row| {
                    let count = row.get::<_, i64>(2)?.cast_unsigned();
                    Ok((DestinationId(row.get(0)?), row.get(1)?, count))
                })?
                .collect()
        })
    }

    fn read_letter(&self, id: u64) -> Result<Option<LetterRow>, LetterError> {
        let context = self.letter_context();
        self.read_letters(|connection| {
            connection
                .prepare_cached("SELECT * FROM dead_letters WHERE id = ?")?
                .query_row([id.cast_signed()], |row| read(row, context))
                .optional()
        })
    }

    fn require_durable(&self) -> Result<(), LetterError> {
        self.durable_soon().map_err(|error| {
            let reason = self.trouble();
            LetterError::Unavailable {
                reason: reason.unwrap_or_else(|| error.to_string()),
            }
        })
    }
}

/// What a row needs besides itself to become an event again.
#[derive(Clone, Copy, Debug)]
pub(super) struct LetterContext {
    /// Generation and shard; the sequence is the row's.
    pub(super) place: Position,
    pub(super) hash_seed: u64,
}

/// A row of `dead_letters`.
#[derive(Debug)]
pub(super) struct LetterRow {
    pub(super) id: u64,
    lane: LaneId,
    pub(super) redriving: bool,
    /// `None` where the copy of the event is damaged.
    pub(super) letter: Option<DeadLetter>,
}

/// The letters of a lane that are under redrive, oldest first.
pub(super) fn read_redriving(
    connection: &Connection,
    lane: LaneId,
    context: LetterContext,
) -> rusqlite::Result<Vec<LetterRow>> {
    connection
        .prepare_cached("SELECT * FROM dead_letters WHERE redriving = 1 AND lane = ? ORDER BY id")?
        .query_map([lane.0], |row| read(row, context))?
        .collect()
}

/// Number of the letter of one delivery and whether it is under redrive.
pub(super) fn find(
    connection: &Connection,
    lane: LaneId,
    sequence: Sequence,
) -> rusqlite::Result<Option<(u64, bool)>> {
    connection
        .prepare_cached("SELECT id, redriving FROM dead_letters WHERE lane = ? AND sequence = ?")?
        .query_row(params![lane.0, sequence.0.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
        })
        .optional()
}

pub(super) fn insert(
    connection: &Connection,
    id: u64,
    letter: &NewLetter,
    history: &[AttemptRecord],
    seed: u64,
) -> rusqlite::Result<()> {
    let stored = &letter.event;
    let event = &stored.event;
    let copy = Copy {
        sequence: stored.position.sequence.0,
        accepted_at: stored.accepted_at.as_micros(),
        texts: [
            stored.destinations.text(),
            event.id(),
            event.source(),
            event.kind(),
            event.subject(),
            event.key().unwrap_or_default(),
            event.time(),
            event.content_type(),
            event.dataschema(),
            event.extensions_text(),
        ],
        data: event.data(),
    };
    let [
        destinations,
        event_id,
        source,
        kind,
        subject,
        key,
        time,
        content_type,
        dataschema,
        extensions,
    ] = copy.texts;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO dead_letters VALUES
             (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            id.cast_signed(),
            letter.lane.0,
            letter.destination.0,
            copy.sequence.cast_signed(),
            letter.redriving,
            class_of(history),
            attempts::to_text(history),
            copy.check(seed),
            copy.accepted_at.cast_signed(),
            destinations,
            event_id,
            source,
            kind,
            subject,
            key,
            time,
            content_type,
            dataschema,
            extensions,
            copy.data,
        ])?;
    Ok(())
}

pub(super) fn update(
    connection: &Connection,
    id: u64,
    redriving: bool,
    new: &[AttemptRecord],
) -> rusqlite::Result<()> {
    let id = id.cast_signed();
    let text: Option<String> = connection
        .prepare_cached("SELECT attempts FROM dead_letters WHERE id = ?")?
        .query_row([id], |row| row.get(0))
        .optional()?;
    let mut history = attempts::from_text(&text.unwrap_or_default());
    history.extend_from_slice(new);
    connection
        .prepare_cached(
            "UPDATE dead_letters SET redriving = ?, class = ?, attempts = ? WHERE id = ?",
        )?
        .execute(params![
            redriving,
            class_of(&history),
            attempts::to_text(&history),
            id
        ])?;
    Ok(())
}

/// Microseconds since the epoch as SQLite holds them.
pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.cast_unsigned())
}

/// Until classes come with delivery, the class of a letter is the outcome of its last attempt.
fn class_of(history: &[AttemptRecord]) -> &'static str {
    history.last().map_or("unknown", |last| last.outcome.name())
}

/// The copy of an event within a letter, as far as its checksum covers it.
struct Copy<'a> {
    sequence: u64,
    accepted_at: u64,
    texts: [&'a str; 10],
    data: &'a [u8],
}

impl Copy<'_> {
    /// XXH3-64 of: sequence and time of acceptance (8 bytes each, little endian), then each text and the
    /// data preceded by its length (8 bytes, little endian).
    fn check(&self, seed: u64) -> i64 {
        let mut bytes = Vec::with_capacity(self.data.len() + 1024);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.accepted_at.to_le_bytes());
        for part in self
            .texts
            .iter()
            .map(|text| text.as_bytes())
            .chain([self.data])
        {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        hash::checksum(&bytes, seed).cast_signed()
    }
}

fn read(row: &Row<'_>, context: LetterContext) -> rusqlite::Result<LetterRow> {
    Ok(LetterRow {
        id: row.get::<_, i64>("id")?.cast_unsigned(),
        lane: LaneId(row.get("lane")?),
        redriving: row.get("redriving")?,
        letter: read_letter(row, context).unwrap_or_default(),
    })
}

/// `None`, or an error of a column, where the copy is damaged.
fn read_letter(
    row: &Row<'_>,
    context: LetterContext,
) -> Result<Option<DeadLetter>, rusqlite::types::FromSqlError> {
    const FIRST_TEXT: usize = 10;
    let column = |index: usize| {
        row.get_ref(index)
            .map_err(|_| rusqlite::types::FromSqlError::InvalidType)
    };
    let mut texts = [""; 10];
    for (index, text) in texts.iter_mut().enumerate() {
        *text = column(FIRST_TEXT + index)?.as_str()?;
    }
    let copy = Copy {
        sequence: column(3)?.as_i64()?.cast_unsigned(),
        accepted_at: column(8)?.as_i64()?.cast_unsigned(),
        texts,
        data: column(20)?.as_blob()?,
    };
    if copy.check(context.hash_seed) != column(7)?.as_i64()? {
        return Ok(None);
    }
    let [
        destinations,
        id,
        source,
        kind,
        subject,
        key,
        time,
        content_type,
        dataschema,
        extensions,
    ] = texts;
    let event = Event::from_stored(&EventParts {
        id,
        source,
        kind,
        subject,
        time,
        content_type,
        dataschema,
        key,
        extensions,
        data: bytes::Bytes::copy_from_slice(copy.data),
    });
    let Some(destinations) = DestinationSet::parse(destinations) else {
        return Ok(None);
    };
    let attempts = attempts::from_text(column(6)?.as_str()?);
    let last = attempts.last();
    Ok(Some(DeadLetter {
        id: column(0)?.as_i64()?.cast_unsigned(),
        destination: DestinationId(u32::try_from(column(2)?.as_i64()?).unwrap_or(u32::MAX)),
        class: column(5)?.as_str()?.to_owned(),
        status: last.and_then(|last| last.status),
        reason: last.map_or_else(String::new, |last| last.reason.clone()),
        at: last.map_or(Timestamp::EPOCH, |last| last.at),
        redriving: column(4)?.as_i64()? == 1,
        event: Arc::new(StoredEvent {
            position: Position {
                sequence: Sequence(copy.sequence),
                ..context.place
            },
            accepted_at: Timestamp::from_micros(copy.accepted_at),
            destinations: Arc::new(destinations),
            key_hash: event
                .key()
                .map(|key| hash::key_hash(key, context.hash_seed)),
            event: Arc::new(event),
        }),
        attempts,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_disk_format_does_not_move() {
        let copy = Copy {
            sequence: 7,
            accepted_at: 1_000,
            texts: ["1,4", "id", "/shop", "order", "", "key", "", "", "", "{}"],
            data: b"data",
        };
        assert_eq!(format!("{:016x}", copy.check(42)), VECTOR);
        let moved = Copy {
            texts: ["1,4", "id/", "shop", "order", "", "key", "", "", "", "{}"],
            ..copy
        };
        assert_ne!(format!("{:016x}", moved.check(42)), VECTOR);
    }

    const VECTOR: &str = "e43a87fc85c4a2c5";
}
