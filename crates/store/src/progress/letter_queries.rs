//! What is asked of the dead letters of one shard: a few of them by number, by what they have in common, or how
//! many there are of each cause.

use rusqlite::{OptionalExtension, params};
use wayhold_model::{DestinationId, Position, Sequence};

use crate::delivery::DeadLetter;
use crate::progress::dead_letters::{EventSource, LetterAt, LetterError, LetterGroup, LetterQuery};
use crate::progress::handle::Progress;
use crate::progress::letter_edits::{self, Edited};
use crate::progress::letter_rows::{LetterRow, read};

/// What the letters that are wanted keep of their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Any,
    Copy,
    Reference,
}

/// Rows that one look at a shard's letters goes through, however few of them are wanted: a moment's work.
pub(super) const ROWS_PER_LOOK: i64 = 4_096;

/// What one look found.
pub(super) struct Found {
    pub(super) letters: Vec<DeadLetter>,
    /// Up to this number everything was looked at; `None` where there is nothing more.
    pub(super) reached: Option<u64>,
}

/// Which letters to read.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) query: LetterQuery,
    pub(super) content: Content,
    pub(super) below: u64,
    pub(super) max: usize,
}

impl Progress {
    /// The first `max` sound letters of this shard above `after`, among the next [`ROWS_PER_LOOK`].
    pub(super) fn look_at_letters(
        &self,
        wanted: &Wanted,
        mut after: Option<u64>,
        events: &EventSource,
    ) -> Result<Found, LetterError> {
        let reached = self.end_of_look(wanted, after)?;
        let wanted = Wanted {
            below: reached.map_or(wanted.below, |last| last + 1),
            ..wanted.clone()
        };
        let mut letters = Vec::new();
        loop {
            let rows = self.letters_after(&wanted, after)?;
            // Damaged ones make a page shorter; it is filled up, since a short page says that it is the
            // last.
            let is_last = rows.len() < wanted.max;
            after = rows.last().map(|row| row.id).or(after);
            letters.extend(self.undamaged(rows, events));
            if is_last || letters.len() >= wanted.max {
                return Ok(Found { letters, reached });
            }
        }
    }

    /// The number of the last letter that a look goes to; `None` where it goes to the end.
    fn end_of_look(&self, wanted: &Wanted, after: Option<u64>) -> Result<Option<u64>, LetterError> {
        let end = self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT id FROM dead_letters WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT 1 OFFSET ?3",
                )?
                .query_row(
                    params![
                        after.map_or(-1, u64::cast_signed),
                        wanted.below.cast_signed(),
                        ROWS_PER_LOOK - 1,
                    ],
                    |row| row.get::<_, i64>(0),
                )
                .optional()
        })?;
        Ok(end.map(i64::cast_unsigned))
    }

    pub(super) fn letters_after(
        &self,
        wanted: &Wanted,
        after: Option<u64>,
    ) -> Result<Vec<LetterRow>, LetterError> {
        let context = self.letter_context();
        let referred = match wanted.content {
            Content::Any => None,
            Content::Copy => Some(false),
            Content::Reference => Some(true),
        };
        self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT * FROM dead_letters WHERE id > ?1 AND id < ?2
                     AND (?3 IS NULL OR destination = ?3) AND (?5 IS NULL OR class = ?5)
                     AND (?6 IS NULL OR referred = ?6) AND (?7 IS NULL OR fingerprint = ?7)
                     ORDER BY id LIMIT ?4",
                )?
                .query_map(
                    params![
                        after.map_or(-1, u64::cast_signed),
                        wanted.below.cast_signed(),
                        wanted.query.destination.map(|id| id.0),
                        i64::try_from(wanted.max).unwrap_or(i64::MAX),
                        wanted.query.class,
                        referred,
                        wanted.query.fingerprint,
                    ],
                    |row| read(row, context),
                )?
                .map(|row| row?.with_edit(connection, context))
                .collect::<rusqlite::Result<Vec<_>>>()
        })
    }

    /// Whether there is any dead letter, under redrive or not. Blocking.
    ///
    /// # Errors
    /// As of any look at them: then nobody knows.
    pub(crate) fn has_letters(&self) -> Result<bool, LetterError> {
        // Earlier changes must be in the file, since that is where it is looked.
        self.require_durable()?;
        self.read_letters(|connection| {
            let any = "SELECT EXISTS (SELECT 1 FROM dead_letters)";
            connection.query_row(any, [], |row| row.get(0))
        })
    }

    pub(super) fn count_letters(&self) -> Result<Vec<(DestinationId, String, u64)>, LetterError> {
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

    /// Letters of one cause together, those under redrive left out.
    pub(super) fn group_letters(
        &self,
        destination: Option<DestinationId>,
    ) -> Result<Vec<LetterGroup>, LetterError> {
        self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT destination, class, fingerprint, count(*), min(id), max(id)
                     FROM dead_letters
                     WHERE redriving = 0 AND (?1 IS NULL OR destination = ?1)
                     GROUP BY destination, class, fingerprint",
                )?
                .query_map([destination.map(|id| id.0)], |row| {
                    let [count, oldest, newest] =
                        [row.get::<_, i64>(3)?, row.get(4)?, row.get(5)?].map(i64::cast_unsigned);
                    Ok(LetterGroup {
                        destination: DestinationId(row.get(0)?),
                        class: row.get(1)?,
                        fingerprint: row.get(2)?,
                        count,
                        oldest,
                        newest,
                    })
                })?
                .collect()
        })
    }

    /// Where the next `max` letters lie that are not under redrive.
    pub(super) fn letter_places(
        &self,
        query: &LetterQuery,
        (after, below): (Option<u64>, u64),
        max: usize,
    ) -> Result<Vec<LetterAt>, LetterError> {
        let place = self.letter_context().place;
        self.read_letters(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, destination, sequence FROM dead_letters
                     WHERE id > ?1 AND id < ?2 AND redriving = 0
                     AND (?3 IS NULL OR destination = ?3) AND (?4 IS NULL OR class = ?4)
                     AND (?5 IS NULL OR fingerprint = ?5) ORDER BY id LIMIT ?6",
                )?
                .query_map(
                    params![
                        after.map_or(-1, u64::cast_signed),
                        below.cast_signed(),
                        query.destination.map(|id| id.0),
                        query.class,
                        query.fingerprint,
                        i64::try_from(max).unwrap_or(i64::MAX),
                    ],
                    |row| {
                        Ok(LetterAt {
                            id: row.get::<_, i64>(0)?.cast_unsigned(),
                            destination: DestinationId(row.get(1)?),
                            position: Position {
                                sequence: Sequence(row.get::<_, i64>(2)?.cast_unsigned()),
                                ..place
                            },
                        })
                    },
                )?
                .collect()
        })
    }

    /// The letters of these numbers that are not under redrive.
    pub(super) fn idle_letters(&self, letters: &[LetterAt]) -> Result<Vec<LetterRow>, LetterError> {
        // Earlier actions must be in the file, since that is where letters are looked at.
        self.require_durable()?;
        let context = self.letter_context();
        self.read_letters(|connection| {
            let mut one = connection.prepare_cached("SELECT * FROM dead_letters WHERE id = ?")?;
            let mut rows = Vec::with_capacity(letters.len());
            for letter in letters {
                let row = one.query_row([letter.id.cast_signed()], |row| read(row, context));
                if let Some(row) = row.optional()?.filter(|row| !row.redriving) {
                    rows.push(row.with_edit(connection, context)?);
                }
            }
            Ok(rows)
        })
    }

    /// Whether a position lies in this shard.
    pub(super) fn has_place(&self, position: Position) -> bool {
        let place = self.letter_context().place;
        (place.generation, place.shard) == (position.generation, position.shard)
    }

    pub(super) fn read_letter(&self, id: u64) -> Result<Option<LetterRow>, LetterError> {
        let context = self.letter_context();
        self.read_letters(|connection| {
            connection
                .prepare_cached("SELECT * FROM dead_letters WHERE id = ?")?
                .query_row([id.cast_signed()], |row| read(row, context))
                .optional()?
                .map(|row| row.with_edit(connection, context))
                .transpose()
        })
    }

    /// What a letter's event was edited to.
    pub(super) fn read_edit(&self, id: u64) -> Result<Edited, LetterError> {
        let context = self.letter_context();
        self.read_letters(|connection| letter_edits::read(connection, id, context))
    }

    pub(super) fn require_durable(&self) -> Result<(), LetterError> {
        self.durable_soon().map_err(|error| {
            let reason = self.trouble();
            LetterError::Unavailable {
                reason: reason.unwrap_or_else(|| error.to_string()),
            }
        })
    }
}
