//! Rows of dead letters in the state file: a copy of the event with a checksum, or where it lies.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use wayhold_model::event::EventParts;
use wayhold_model::{
    DestinationId, DestinationSet, Event, FailureClass, LaneId, Position, Sequence, StoredEvent,
    Timestamp, error_print, hash,
};

use crate::delivery::{AttemptRecord, DeadLetter, LetterEdit, SetAside};
use crate::progress::attempts;
use crate::progress::letter::{Content, LetterPlace, NewLetter};
use crate::progress::letter_edits::{self, Edited};

/// Gives the event at a position, where it can be read; damage is named by the shard that it lies in.
pub(super) type Events<'a> = dyn Fn(Position) -> Option<Arc<StoredEvent>> + 'a;

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
    pub(super) place: LetterPlace,
    pub(super) redriving: bool,
    /// `None` where the row is damaged.
    told: Option<Told>,
    edit: Option<Arc<LetterEdit>>,
}

/// What a sound row tells.
#[derive(Debug)]
struct Told {
    destination: DestinationId,
    position: Position,
    class: String,
    fingerprint: String,
    attempts: Vec<AttemptRecord>,
    given_up_at: Timestamp,
    /// `None` where the letter refers to it.
    event: Option<Arc<StoredEvent>>,
}

impl LetterRow {
    /// Whom it is of, where its event lies, and the copy of that where it has one; `None` where it is damaged.
    pub(super) fn sound(&self) -> Option<(DestinationId, Position, Option<Arc<StoredEvent>>)> {
        let told = self.told.as_ref()?;
        Some((told.destination, told.position, told.event.clone()))
    }

    /// Brings what its event was edited to; an edit that is damaged makes the letter damaged, since nothing else
    /// may be sent in its place.
    pub(super) fn with_edit(
        mut self,
        connection: &Connection,
        context: LetterContext,
    ) -> rusqlite::Result<Self> {
        match letter_edits::read(connection, self.id, context)? {
            Edited::Not => {}
            Edited::Damaged => self.told = None,
            Edited::So(edited) => self.edit = Some(Arc::new(edited.edit)),
        }
        Ok(self)
    }

    /// The letter with its event; `None` where either is damaged.
    pub(super) fn whole(self, events: &Events<'_>) -> Option<DeadLetter> {
        let Told {
            destination,
            position,
            class,
            fingerprint,
            attempts,
            given_up_at,
            event,
        } = self.told?;
        let event = event.or_else(|| events(position))?;
        let why = SetAside::from_class(&class);
        let last = attempts.last().filter(|_| why.is_none());
        Some(DeadLetter {
            id: self.id,
            event,
            destination,
            status: last.and_then(|last| last.status),
            reason: match why {
                Some(why) => why.reason().to_owned(),
                None => last.map_or_else(String::new, |last| last.reason.clone()),
            },
            at: last.map_or(given_up_at, |last| last.at),
            class,
            fingerprint,
            attempts,
            redriving: self.redriving,
            referred: self.place.referred.is_some(),
            replay: self.place.lane.replay(),
            edit: self.edit,
        })
    }
}

/// Hands over every letter, oldest first, one at a time.
pub(super) fn each(
    connection: &Connection,
    context: LetterContext,
    mut take: impl FnMut(LetterRow),
) -> rusqlite::Result<()> {
    let mut letters = connection.prepare("SELECT * FROM dead_letters ORDER BY id")?;
    let mut rows = letters.query([])?;
    while let Some(row) = rows.next()? {
        take(read(row, context)?);
    }
    Ok(())
}

/// The letters of a destination that are under redrive, those of replays to it too, oldest first.
pub(super) fn read_redriving(
    connection: &Connection,
    destination: DestinationId,
    context: LetterContext,
) -> rusqlite::Result<Vec<LetterRow>> {
    connection
        .prepare_cached(
            "SELECT * FROM dead_letters WHERE redriving = 1 AND destination = ? ORDER BY id",
        )?
        .query_map([destination.0], |row| read(row, context))?
        .map(|row| row?.with_edit(connection, context))
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
    let (copy, referred, given_up_at) = match &letter.content {
        Content::Copy(stored) => (Copy::of(stored), false, Timestamp::EPOCH),
        Content::Reference { sequence, at, .. } => (Copy::absent(*sequence, *at), true, *at),
    };
    let (class, fingerprint) = match &letter.content {
        // What was set aside and has failed since says how.
        Content::Reference { why, .. } if history.is_empty() => {
            (why.class().name(), why.fingerprint())
        }
        _ => class_of(history),
    };
    let accepted_at = if referred { 0 } else { copy.accepted_at };
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
             (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            id.cast_signed(),
            letter.lane.0,
            letter.destination.0,
            copy.sequence.cast_signed(),
            letter.redriving,
            class,
            attempts::to_text(history),
            copy.check(seed),
            accepted_at.cast_signed(),
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
            referred,
            given_up_at.as_micros().cast_signed(),
            fingerprint,
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
    let mut set =
        connection.prepare_cached("UPDATE dead_letters SET redriving = ? WHERE id = ?")?;
    set.execute(params![redriving, id])?;
    // Why it was set aside stays said until an attempt fails for good.
    if new.is_empty() {
        return Ok(());
    }
    let known: Option<String> = connection
        .prepare_cached("SELECT attempts FROM dead_letters WHERE id = ?")?
        .query_row([id], |row| row.get(0))
        .optional()?;
    let mut history = attempts::from_text(&known.unwrap_or_default());
    history.extend_from_slice(new);
    let (class, fingerprint) = class_of(&history);
    connection
        .prepare_cached(
            "UPDATE dead_letters SET class = ?, fingerprint = ?, attempts = ? WHERE id = ?",
        )?
        .execute(params![class, fingerprint, attempts::to_text(&history), id])?;
    Ok(())
}

/// Gives letters of a file of before there were fingerprints theirs.
pub(super) fn fill_fingerprints(connection: &Connection) -> rusqlite::Result<()> {
    let mut set = connection.prepare("UPDATE dead_letters SET fingerprint = ? WHERE id = ?")?;
    let mut letters = connection.prepare("SELECT id, class, attempts FROM dead_letters")?;
    let mut rows = letters.query([])?;
    while let Some(row) = rows.next()? {
        let class: String = row.get(1)?;
        let attempts = attempts::from_text(row.get_ref(2)?.as_str().unwrap_or_default());
        let fingerprint = match (SetAside::from_class(&class), attempts.last()) {
            (Some(why), _) => why.fingerprint(),
            // Its class may be an outcome, which is not the attempt's.
            (None, Some(last)) => {
                error_print::fingerprint(&class, last.status, &last.reason, last.answer.as_deref())
            }
            (None, None) => error_print::fingerprint(&class, None, "", None),
        };
        set.execute(params![fingerprint, row.get::<_, i64>(0)?])?;
    }
    Ok(())
}

/// Microseconds since the epoch as SQLite holds them.
pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.cast_unsigned())
}

/// Class and fingerprint of a letter are those of its last attempt.
fn class_of(history: &[AttemptRecord]) -> (&'static str, String) {
    match history.last() {
        Some(last) => (last.class.name(), last.fingerprint()),
        None => {
            let class = FailureClass::Unclassified.name();
            (class, error_print::fingerprint(class, None, "", None))
        }
    }
}

/// The copy of an event within a letter, as far as its checksum covers it.
pub(super) struct Copy<'a> {
    pub(super) sequence: u64,
    pub(super) accepted_at: u64,
    pub(super) texts: [&'a str; 10],
    pub(super) data: &'a [u8],
}

impl<'a> Copy<'a> {
    pub(super) fn of(stored: &'a StoredEvent) -> Self {
        let event = &stored.event;
        Self {
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
        }
    }

    /// Of a letter that refers to its event: the time is that of giving up, everything else is empty.
    fn absent(sequence: Sequence, given_up_at: Timestamp) -> Self {
        Self {
            sequence: sequence.0,
            accepted_at: given_up_at.as_micros(),
            texts: [""; 10],
            data: &[],
        }
    }

    /// XXH3-64 of: sequence and time of acceptance (8 bytes each, little endian), then each text and the
    /// data preceded by its length (8 bytes, little endian).
    pub(super) fn check(&self, seed: u64) -> i64 {
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

pub(super) fn read(row: &Row<'_>, context: LetterContext) -> rusqlite::Result<LetterRow> {
    let sequence = Sequence(row.get::<_, i64>("sequence")?.cast_unsigned());
    let referred = row.get::<_, bool>("referred")?;
    let told = read_told(row, referred, context).unwrap_or_default();
    Ok(LetterRow {
        id: row.get::<_, i64>("id")?.cast_unsigned(),
        place: LetterPlace {
            lane: LaneId(row.get("lane")?),
            // A damaged row may name another letter's event, which must not be let go.
            referred: (referred && told.is_some()).then_some(sequence),
        },
        redriving: row.get("redriving")?,
        told,
        edit: None,
    })
}

/// `None`, or an error of a column, where the row is damaged.
fn read_told(
    row: &Row<'_>,
    referred: bool,
    context: LetterContext,
) -> Result<Option<Told>, rusqlite::types::FromSqlError> {
    const FIRST_TEXT: usize = 10;
    let column = |index: usize| {
        row.get_ref(index)
            .map_err(|_| rusqlite::types::FromSqlError::InvalidType)
    };
    let sequence = Sequence(column(3)?.as_i64()?.cast_unsigned());
    let given_up_at = timestamp(column(22)?.as_i64()?);
    let mut texts = [""; 10];
    for (index, text) in texts.iter_mut().enumerate() {
        *text = column(FIRST_TEXT + index)?.as_str()?;
    }
    let copy = match referred {
        true => Copy::absent(sequence, given_up_at),
        false => Copy {
            sequence: sequence.0,
            accepted_at: column(8)?.as_i64()?.cast_unsigned(),
            texts,
            data: column(20)?.as_blob()?,
        },
    };
    if copy.check(context.hash_seed) != column(7)?.as_i64()? {
        return Ok(None);
    }
    let position = Position {
        sequence,
        ..context.place
    };
    let event = match referred {
        true => None,
        false => match event_of(&copy, position, context.hash_seed) {
            Some(event) => Some(Arc::new(event)),
            None => return Ok(None),
        },
    };
    Ok(Some(Told {
        destination: DestinationId(u32::try_from(column(2)?.as_i64()?).unwrap_or(u32::MAX)),
        position,
        class: column(5)?.as_str()?.to_owned(),
        fingerprint: column(23)?.as_str()?.to_owned(),
        attempts: attempts::from_text(column(6)?.as_str()?),
        given_up_at,
        event,
    }))
}

/// The event of a copy that matches its checksum.
pub(super) fn event_of(copy: &Copy<'_>, position: Position, hash_seed: u64) -> Option<StoredEvent> {
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
    ] = copy.texts;
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
    Some(StoredEvent {
        position,
        accepted_at: Timestamp::from_micros(copy.accepted_at),
        destinations: Arc::new(DestinationSet::parse(destinations)?),
        key_hash: event.key().map(|key| hash::key_hash(key, hash_seed)),
        event: Arc::new(event),
    })
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
