//! Dead letters: their rows in the state file, and what operators do with them. Every action is in the
//! audit trail before it is done: a crash in between leaves an entry of something that was not done, and
//! never a change that nobody answers for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{OptionalExtension, params};
use thiserror::Error;
use wayhold_model::{DestinationId, Position, StoredEvent};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::DeadLetter;
use crate::progress::handle::Progress;
use crate::progress::letter_rows::{LetterRow, read};

/// Letters that an action on many takes at once: one transaction, and no more than that in memory.
const LETTERS_PER_STEP: usize = 4_096;

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
#[derive(Clone)]
pub struct DeadLetters {
    /// Gives progress of every shard there is; all number their letters together.
    shards: Arc<ProgressSource>,
    catalog: Arc<Catalog>,
    /// Gives the events that letters refer to.
    events: Arc<EventSource>,
    /// Operators' actions one after the other, so that what was checked still holds when it is done.
    actions: Arc<Mutex<()>>,
}

/// Gives the progress of every shard there is at the moment.
pub(crate) type ProgressSource = dyn Fn() -> Vec<Progress> + Send + Sync;

/// Reads the event at a position.
pub(crate) type EventSource = dyn Fn(Position) -> Option<Arc<StoredEvent>> + Send + Sync;

/// Dead letters of one destination that an operator acts on together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterSelection {
    /// Whose.
    pub destination: DestinationId,
    /// Only those of this class.
    pub class: Option<String>,
}

impl std::fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetters").finish_non_exhaustive()
    }
}

impl DeadLetters {
    pub(crate) fn new(
        shards: Arc<ProgressSource>,
        catalog: Arc<Catalog>,
        events: Arc<EventSource>,
    ) -> Self {
        Self {
            shards,
            catalog,
            events,
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
        self.list_wanted(destination, Content::Any, after, max)
    }

    /// The same without letters that refer to their events: those do not hold their keys.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn list_copies(
        &self,
        destination: DestinationId,
        after: Option<u64>,
        max: usize,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        self.list_wanted(Some(destination), Content::Copy, after, max)
    }

    fn list_wanted(
        &self,
        destination: Option<DestinationId>,
        content: Content,
        after: Option<u64>,
        max: usize,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        // Only numbers that were given before the first shard is read: a letter that came about while
        // the others are read might be shown before an earlier one of another shard, which whoever goes
        // on after it would never see.
        let below = self.next_letter();
        let wanted = Wanted {
            destination,
            class: None,
            content,
            below,
            max,
        };
        let mut letters = Vec::new();
        for shard in (self.shards)() {
            letters.extend(shard.list_letters(&wanted, after, &*self.events)?);
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
        for shard in (self.shards)() {
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
        row.whole(&*self.events).ok_or(LetterError::Damaged { id })
    }

    /// Starts sending a dead letter again: from now on it counts as pending. Durable when it returns;
    /// handing it to its lane is the caller's part.
    ///
    /// # Errors
    /// Any `LetterError`; nothing was done unless it is `Unavailable`.
    pub fn redrive(&self, id: u64, by: &str) -> Result<DeadLetter, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let (shard, row) = self.idle(id)?;
        let place = row.place;
        let letter = row.whole(&*self.events);
        let letter = letter.ok_or(LetterError::Damaged { id })?;
        self.catalog
            .audit(by, "dead_letter.redriven", &id.to_string(), None)?;
        failpoint!("redrive.audited");
        if !shard.change(|memory| memory.redrive(id, place)) {
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
        if !shard.change(|memory| memory.discard(id, row.place)) {
            return Err(LetterError::Redriving { id });
        }
        shard.require_durable()
    }

    /// Makes the deliveries of all letters that refer to their events pending again, as if they had never
    /// been tried; how many. Letters with a copy, and those under redrive, stay. Durable when it returns; a
    /// crash in between leaves some of them letters, and doing it again takes the rest. Reading the lane
    /// from its beginning is the caller's part.
    ///
    /// # Errors
    /// `Audit`, and nothing was done; `Unavailable`, and some may be pending.
    pub fn revive(&self, which: &LetterSelection, by: &str) -> Result<u64, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        self.audit_many(by, "dead_letters.redriven", which, None)?;
        self.each_step(which, Content::Reference, |shard, rows| {
            shard.change(|memory| {
                let revived = rows.iter().filter(|row| {
                    let sequence = row.place.referred;
                    sequence.is_some_and(|sequence| memory.revive(row.id, row.place.lane, sequence))
                });
                revived.count() as u64
            })
        })
    }

    /// Ends letters that refer to their events for good; how many. Letters with a copy, and those under
    /// redrive, stay. Durable when it returns; a crash in
    /// between leaves some, and doing it again takes the rest.
    ///
    /// # Errors
    /// `Audit`, and nothing was done; `Unavailable`, and some may be discarded.
    pub fn discard_all(
        &self,
        which: &LetterSelection,
        by: &str,
        reason: &str,
    ) -> Result<u64, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        self.audit_many(by, "dead_letters.discarded", which, Some(reason))?;
        self.each_step(which, Content::Reference, |shard, rows| {
            shard.change(|memory| {
                let discarded = rows.iter().filter(|row| memory.discard(row.id, row.place));
                discarded.count() as u64
            })
        })
    }

    fn audit_many(
        &self,
        by: &str,
        action: &str,
        which: &LetterSelection,
        reason: Option<&str>,
    ) -> Result<(), LetterError> {
        let record = self.catalog.destination(which.destination);
        let name = record.map_or_else(String::new, |record| record.name);
        let class = which.class.as_deref().unwrap_or("every class");
        let reason = match reason {
            Some(reason) => format!("{class}: {reason}"),
            None => class.to_owned(),
        };
        self.catalog.audit(by, action, &name, Some(&reason))?;
        Ok(())
    }

    /// Acts on letters a few at a time, each step durable before the next.
    fn each_step(
        &self,
        which: &LetterSelection,
        content: Content,
        act: impl Fn(&Progress, &[LetterRow]) -> u64,
    ) -> Result<u64, LetterError> {
        let wanted = Wanted {
            destination: Some(which.destination),
            class: which.class.clone(),
            content,
            // What becomes a letter meanwhile is left for the next time.
            below: self.next_letter(),
            max: LETTERS_PER_STEP,
        };
        let mut done = 0;
        for shard in (self.shards)() {
            // Earlier actions must be in the file, since that is where letters are looked at.
            shard.require_durable()?;
            let mut after = None;
            loop {
                let rows = shard.letters_after(&wanted, after)?;
                let Some(last) = rows.last() else { break };
                after = Some(last.id);
                done += act(&shard, &rows);
                shard.require_durable()?;
            }
        }
        Ok(done)
    }

    /// A letter that is not under redrive, and the shard that has it.
    fn idle(&self, id: u64) -> Result<(Progress, LetterRow), LetterError> {
        let (shard, _) = self.row(id)?;
        // Earlier actions must be in the file, since that is where the letter is looked at.
        shard.require_durable()?;
        match shard.read_letter(id)? {
            None => Err(LetterError::NotFound { id }),
            Some(row) if row.redriving => Err(LetterError::Redriving { id }),
            Some(row) => Ok((shard, row)),
        }
    }

    /// Above every number that was given.
    fn next_letter(&self) -> u64 {
        (self.shards)().first().map_or(0, Progress::next_letter)
    }

    /// A letter, and the shard that has it: nothing but the shards themselves knows which one that is,
    /// and people ask rarely.
    fn row(&self, id: u64) -> Result<(Progress, LetterRow), LetterError> {
        let mut failure = LetterError::NotFound { id };
        for shard in (self.shards)() {
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

/// What the letters that are wanted keep of their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Any,
    Copy,
    Reference,
}

/// Which letters to read.
struct Wanted {
    destination: Option<DestinationId>,
    class: Option<String>,
    content: Content,
    below: u64,
    max: usize,
}

impl Progress {
    /// The first `max` sound letters of this shard above `after`.
    fn list_letters(
        &self,
        wanted: &Wanted,
        mut after: Option<u64>,
        events: &EventSource,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        let mut letters = Vec::new();
        loop {
            let rows = self.letters_after(wanted, after)?;
            // Damaged ones make a page shorter; it is filled up, since a short page says that it is the
            // last.
            let is_last = rows.len() < wanted.max;
            after = rows.last().map(|row| row.id).or(after);
            letters.extend(self.undamaged(rows, events));
            if is_last || letters.len() >= wanted.max {
                return Ok(letters);
            }
        }
    }

    fn letters_after(
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
                     AND (?6 IS NULL OR referred = ?6) ORDER BY id LIMIT ?4",
                )?
                .query_map(
                    params![
                        after.map_or(-1, u64::cast_signed),
                        wanted.below.cast_signed(),
                        wanted.destination.map(|id| id.0),
                        i64::try_from(wanted.max).unwrap_or(i64::MAX),
                        wanted.class,
                        referred,
                    ],
                    |row| read(row, context),
                )?
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
