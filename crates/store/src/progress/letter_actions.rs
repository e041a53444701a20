//! What operators do with dead letters: one, or many at a time. Every action is in the audit trail before it is
//! done: a crash in between leaves an entry of something that was not done, and never a change that nobody answers
//! for.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use wayhold_model::{DestinationId, Event, Position, StoredEvent, Timestamp};

use crate::delivery::{DeadLetter, LetterEdit};
use crate::progress::dead_letters::{
    DeadLetters, LETTERS_PER_STEP, LetterAt, LetterError, LetterQuery, LetterSelection,
};
use crate::progress::handle::Progress;
use crate::progress::letter::NewEdit;
use crate::progress::letter_queries::{Content, Wanted};
use crate::progress::letter_rows::LetterRow;

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

impl DeadLetters {
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
}
