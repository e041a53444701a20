//! Dead letters, looked at: one by its number, pages, groups of one cause, and where they lie. What operators do with
//! them is in `letter_actions`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};

use thiserror::Error;
use wayhold_model::{DestinationId, Position, StoredEvent};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::{DeadLetter, EditedLetter};
use crate::progress::handle::Progress;
use crate::progress::letter_edits::Edited;
use crate::progress::letter_queries::{Content, Wanted};
use crate::progress::letter_rows::LetterRow;

/// Letters that an action on many takes at once: one transaction, and no more than that in memory.
pub(super) const LETTERS_PER_STEP: usize = 4_096;

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
    /// What was to be sent in its place is another event: identity and ordering key stay as they are.
    #[error("dead letter {id}: expected an event of the same id, source and ordering key")]
    Another {
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
    pub(super) shards: Arc<ProgressSource>,
    pub(super) catalog: Arc<Catalog>,
    /// Gives the events that letters refer to.
    pub(super) events: Arc<EventSource>,
    /// Operators' actions one after the other, so that what was checked still holds when it is done.
    pub(super) actions: Arc<Mutex<()>>,
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

/// What a list of dead letters is asked for; what is `None` may be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterQuery {
    /// Whose.
    pub destination: Option<DestinationId>,
    /// Only those of this class.
    pub class: Option<String>,
    /// Only those whose error has this fingerprint.
    pub fingerprint: Option<String>,
}

/// What one look at dead letters found.
#[derive(Debug, Default)]
pub struct LetterPage {
    /// Oldest first.
    pub letters: Vec<DeadLetter>,
    /// Number after which to go on, where there may be more.
    pub next: Option<u64>,
}

/// Dead letters of one cause: the same destination, class and fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterGroup {
    /// Whose.
    pub destination: DestinationId,
    /// Name of the class.
    pub class: String,
    /// Fingerprint of the error.
    pub fingerprint: String,
    /// How many there are.
    pub count: u64,
    /// Number of the oldest.
    pub oldest: u64,
    /// Number of the newest.
    pub newest: u64,
}

/// One of the letters that an action on many takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterAt {
    /// Its number.
    pub id: u64,
    /// Whose it is.
    pub destination: DestinationId,
    /// Where its event was stored: the order of a key is that of these.
    pub position: Position,
}

impl LetterAt {
    /// Where a letter lies.
    pub fn of(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id,
            destination: letter.destination,
            position: letter.event.position,
        }
    }
}

impl LetterGroup {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.oldest = self.oldest.min(other.oldest);
        self.newest = self.newest.max(other.newest);
    }
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
        let query = LetterQuery {
            destination,
            ..LetterQuery::default()
        };
        self.list_all(&self.wanted(query, Content::Any, max), after)
    }

    /// At most `max` of those that a query asks for, with a number above `after`, oldest first. Looks at a bounded
    /// number of letters, so that a page may be short, and even empty, without being the last.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn page(
        &self,
        query: LetterQuery,
        after: Option<u64>,
        max: usize,
    ) -> Result<LetterPage, LetterError> {
        self.look(&self.wanted(query, Content::Any, max), after)
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
        let query = LetterQuery {
            destination: Some(destination),
            ..LetterQuery::default()
        };
        self.list_all(&self.wanted(query, Content::Copy, max), after)
    }

    fn wanted(&self, query: LetterQuery, content: Content, max: usize) -> Wanted {
        // Only numbers that were given before the first shard is read: a letter that came about while
        // the others are read might be shown before an earlier one of another shard, which whoever goes
        // on after it would never see.
        let below = self.next_number();
        Wanted {
            query,
            content,
            below,
            max,
        }
    }

    /// As many looks as it takes.
    fn list_all(
        &self,
        wanted: &Wanted,
        mut after: Option<u64>,
    ) -> Result<Vec<DeadLetter>, LetterError> {
        let mut letters = Vec::new();
        loop {
            let page = self.look(wanted, after)?;
            letters.extend(page.letters);
            if page.next.is_none() || letters.len() >= wanted.max {
                letters.truncate(wanted.max);
                return Ok(letters);
            }
            after = page.next;
        }
    }

    fn look(&self, wanted: &Wanted, after: Option<u64>) -> Result<LetterPage, LetterError> {
        let mut letters = Vec::new();
        let mut reached: Option<u64> = None;
        for shard in (self.shards)() {
            let found = shard.look_at_letters(wanted, after, &*self.events)?;
            letters.extend(found.letters);
            reached = reached.into_iter().chain(found.reached).min();
        }
        // Beyond that other shards may have earlier ones that were not looked at.
        letters.retain(|letter| reached.is_none_or(|reached| letter.id <= reached));
        letters.sort_unstable_by_key(|letter| letter.id);
        letters.truncate(wanted.max);
        let is_full = letters.len() == wanted.max;
        let last = letters.last().filter(|_| is_full);
        Ok(LetterPage {
            next: last.map(|last| last.id).or(reached),
            letters,
        })
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

    /// Dead letters of one cause together, those under redrive left out; the largest group first.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn groups(
        &self,
        destination: Option<DestinationId>,
    ) -> Result<Vec<LetterGroup>, LetterError> {
        let mut groups: BTreeMap<_, LetterGroup> = BTreeMap::new();
        for shard in (self.shards)() {
            for group in shard.group_letters(destination)? {
                let cause = (
                    group.destination,
                    group.class.clone(),
                    group.fingerprint.clone(),
                );
                match groups.entry(cause) {
                    Entry::Vacant(slot) => drop(slot.insert(group)),
                    Entry::Occupied(mut slot) => slot.get_mut().add(&group),
                }
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| Reverse(group.count));
        Ok(groups)
    }

    /// One dead letter.
    ///
    /// # Errors
    /// `NotFound`, `Damaged` or `Unavailable`.
    pub fn get(&self, id: u64) -> Result<DeadLetter, LetterError> {
        let (_, row) = self.row(id)?;
        row.whole(&*self.events).ok_or(LetterError::Damaged { id })
    }

    /// What an operator made of a letter's event, whether the letter has ended or not; `None` where nothing was
    /// edited.
    ///
    /// # Errors
    /// `Damaged` or `Unavailable`.
    pub fn edit(&self, id: u64) -> Result<Option<EditedLetter>, LetterError> {
        for shard in (self.shards)() {
            match shard.read_edit(id)? {
                Edited::Not => {}
                Edited::So(edited) => return Ok(Some(edited)),
                Edited::Damaged => return Err(LetterError::Damaged { id }),
            }
        }
        Ok(None)
    }

    /// Where the letters with numbers below `below` lie that a query asks for and that are not under redrive: at
    /// most `max`, in no order.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn places(
        &self,
        query: &LetterQuery,
        below: u64,
        max: usize,
    ) -> Result<Vec<LetterAt>, LetterError> {
        let mut places = Vec::new();
        for shard in (self.shards)() {
            let mut after = None;
            loop {
                let step = LETTERS_PER_STEP.min(max.saturating_sub(places.len()));
                let found = shard.letter_places(query, (after, below), step)?;
                let Some(last) = found.last() else { break };
                after = Some(last.id);
                places.extend(found);
            }
        }
        Ok(places)
    }

    /// Above the number of every letter that there is or was.
    pub fn next_number(&self) -> u64 {
        (self.shards)().first().map_or(0, Progress::next_letter)
    }

    /// A letter, and the shard that has it: nothing but the shards themselves knows which one that is,
    /// and people ask rarely.
    pub(super) fn row(&self, id: u64) -> Result<(Progress, LetterRow), LetterError> {
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
