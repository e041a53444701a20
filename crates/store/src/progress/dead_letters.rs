//! Dead letters: their rows in the state file, and what operators do with them. Every action is in the
//! audit trail before it is done: a crash in between leaves an entry of something that was not done, and
//! never a change that nobody answers for.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use wayhold_model::{DestinationId, Event, Position, StoredEvent, Timestamp};

use crate::catalog::{Catalog, CatalogError};
use crate::delivery::{DeadLetter, EditedLetter, LetterEdit};
use crate::progress::handle::Progress;
use crate::progress::letter::NewEdit;
use crate::progress::letter_edits::Edited;
use crate::progress::letter_queries::{Content, Wanted};
use crate::progress::letter_rows::LetterRow;

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

/// A letter that was ended, and the key that it may have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedLetter {
    /// Whose it was.
    pub destination: DestinationId,
    /// Where its event was stored.
    pub position: Position,
    /// Hash of its key; `None` where it has none, refers to its event, is damaged, or a replay gave it up.
    pub key_hash: Option<u64>,
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

    /// Starts sending a dead letter again: from now on it counts as pending. Durable when it returns;
    /// handing it to its lane is the caller's part.
    ///
    /// # Errors
    /// Any `LetterError`; then it is not being sent.
    pub fn redrive(&self, id: u64, by: &str) -> Result<DeadLetter, LetterError> {
        self.redrive_as(id, None, by)
    }

    /// The same with another event in the letter's place, which has the identity and the ordering key of the
    /// letter's own. That one is kept, also once the edited one has arrived; see `edit`.
    ///
    /// # Errors
    /// As `redrive`, or `Another`.
    pub fn redrive_edited(
        &self,
        id: u64,
        edited: Event,
        reason: &str,
        (by, at): (&str, Timestamp),
    ) -> Result<DeadLetter, LetterError> {
        let edited = Arc::new(edited);
        self.redrive_as(id, Some((edited, reason, at)), by)
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

    fn redrive_as(
        &self,
        id: u64,
        edited: Option<(Arc<Event>, &str, Timestamp)>,
        by: &str,
    ) -> Result<DeadLetter, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let (shard, row) = self.idle(id)?;
        let place = row.place;
        let letter = row.whole(&*self.events);
        let mut letter = letter.ok_or(LetterError::Damaged { id })?;
        let subject = id.to_string();
        let mut edit = None;
        if let Some((event, reason, at)) = edited {
            let own = &letter.event.event;
            let identity = |event: &Event| (event.id() == own.id(), event.source() == own.source());
            if identity(&event) != (true, true) || event.key() != own.key() {
                return Err(LetterError::Another { id });
            }
            self.catalog
                .audit(by, "dead_letter.edited", &subject, Some(reason))?;
            let event = Arc::new(StoredEvent {
                event,
                ..StoredEvent::clone(&letter.event)
            });
            let made = Arc::new(LetterEdit {
                event,
                at,
                by: by.to_owned(),
                reason: reason.to_owned(),
            });
            edit = Some(NewEdit {
                destination: letter.destination,
                original: Arc::clone(&letter.event),
                edit: Arc::clone(&made),
            });
            letter.edit = Some(made);
        }
        self.catalog
            .audit(by, "dead_letter.redriven", &subject, None)?;
        failpoint!("redrive.audited");
        if !shard.change(|memory| memory.redrive(id, place, edit)) {
            return Err(LetterError::Redriving { id });
        }
        failpoint!("redrive.before-durable");
        if let Err(error) = shard.require_durable() {
            // Nobody will send it: it is a dead letter as before, and can be redriven again.
            shard.change(|memory| memory.give_up_redrive(id));
            return Err(error);
        }
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

    /// Starts sending these letters again, which the caller has put into the audit trail; those that ended or are
    /// under redrive already, and damaged ones, are left out. Durable when it returns; handing them to their
    /// lanes is the caller's part.
    ///
    /// # Errors
    /// `Unavailable`, and none of those that lie in one shard is being sent; those of others may be.
    pub fn redrive_some(&self, letters: &[LetterAt]) -> Result<Vec<DeadLetter>, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut redriven = Vec::with_capacity(letters.len());
        for (shard, here) in self.by_shard(letters) {
            let rows = shard.idle_letters(&here)?;
            let places: Vec<_> = rows.iter().map(|row| (row.id, row.place)).collect();
            let whole = shard.undamaged(rows, &*self.events);
            let started: Vec<_> = shard.change(|memory| {
                let started = places.into_iter().filter(|(id, place)| {
                    whole.iter().any(|letter| letter.id == *id) && memory.redrive(*id, *place, None)
                });
                started.map(|(id, _)| id).collect()
            });
            if let Err(error) = shard.require_durable() {
                shard.change(|memory| {
                    for id in started {
                        memory.give_up_redrive(id);
                    }
                });
                return Err(error);
            }
            let is_started = |letter: &DeadLetter| started.contains(&letter.id);
            redriven.extend(
                whole
                    .into_iter()
                    .filter(is_started)
                    .map(|letter| DeadLetter {
                        redriving: true,
                        ..letter
                    }),
            );
        }
        Ok(redriven)
    }

    /// Which of these are under redrive.
    pub fn under_redrive(&self, letters: &[LetterAt]) -> BTreeSet<u64> {
        let mut under_way = BTreeSet::new();
        for (shard, here) in self.by_shard(letters) {
            let ids = here.into_iter().map(|letter| letter.id);
            under_way.extend(ids.filter(|id| shard.is_redriving(*id)));
        }
        under_way
    }

    /// Ends these letters for good, which the caller has put into the audit trail; those that ended or are under
    /// redrive are left out. Durable when it returns.
    ///
    /// # Errors
    /// `Unavailable`, and some may have ended.
    pub fn discard_some(&self, letters: &[LetterAt]) -> Result<Vec<EndedLetter>, LetterError> {
        let _one_at_a_time = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ended = Vec::with_capacity(letters.len());
        for (shard, here) in self.by_shard(letters) {
            let rows = shard.idle_letters(&here)?;
            let discarded = shard.change(|memory| {
                let rows = rows.into_iter();
                rows.filter(|row| memory.discard(row.id, row.place))
                    .collect::<Vec<_>>()
            });
            shard.require_durable()?;
            ended.extend(discarded.iter().filter_map(|row| {
                let letter = here.iter().find(|letter| letter.id == row.id)?;
                let is_own = row.place.lane.replay().is_none();
                let event = row.sound().and_then(|(.., event)| event);
                Some(EndedLetter {
                    destination: letter.destination,
                    position: letter.position,
                    key_hash: event.filter(|_| is_own).and_then(|event| event.key_hash),
                })
            }));
        }
        Ok(ended)
    }

    /// The shards that these letters lie in, each with its own.
    fn by_shard(&self, letters: &[LetterAt]) -> impl Iterator<Item = (Progress, Vec<LetterAt>)> {
        (self.shards)().into_iter().filter_map(|shard| {
            let here = letters.iter().copied();
            let here: Vec<_> = here
                .filter(|letter| shard.has_place(letter.position))
                .collect();
            (!here.is_empty()).then_some((shard, here))
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
            query: LetterQuery {
                destination: Some(which.destination),
                class: which.class.clone(),
                fingerprint: None,
            },
            content,
            // What becomes a letter meanwhile is left for the next time.
            below: self.next_number(),
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

    /// Above the number of every letter that there is or was.
    pub fn next_number(&self) -> u64 {
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
