//! The rules of dead letters: a delivery that is given up or set aside, and what operators make of it. A
//! letter either has a copy of its event, or refers to it: then the event is *held* where it was stored, as
//! for a pending delivery, until the letter ends.

use std::sync::Arc;

use wayhold_model::{DestinationId, LaneId, Sequence, StoredEvent, Timestamp};

use super::Memory;
use crate::delivery::{AttemptRecord, Resolution, SetAside};
use crate::progress::chunk::{self, Chunk};
use crate::progress::letter::{Content, LetterChange, LetterPlace, NewEdit, NewLetter};

impl Memory {
    /// Gives a delivery up and keeps it as a dead letter; its number, or `None` where the delivery was
    /// resolved before.
    pub(in crate::progress) fn dead_letter(
        &mut self,
        id: LaneId,
        destination: DestinationId,
        event: &Arc<StoredEvent>,
        last: AttemptRecord,
    ) -> Option<u64> {
        match planted!("letter-without-its-bit") {
            true => self.totals(id).dead += 1,
            false => self.resolve(id, event.position.sequence)?.totals.dead += 1,
        }
        if planted!("bit-without-its-letter") {
            return None;
        }
        Some(self.new_letter(NewLetter {
            lane: id,
            destination,
            content: Content::Copy(Arc::clone(event)),
            attempts: vec![last],
            redriving: false,
            edit: None,
        }))
    }

    /// Keeps a delivery that a replay gave up as a dead letter of the replay's lane; its number. The event's own delivery
    /// was resolved before, and no account but the lane's changes.
    pub(in crate::progress) fn dead_letter_of_replay(
        &mut self,
        lane: LaneId,
        destination: DestinationId,
        event: &Arc<StoredEvent>,
        last: AttemptRecord,
    ) -> u64 {
        self.totals(lane).dead += 1;
        self.new_letter(NewLetter {
            lane,
            destination,
            content: Content::Copy(Arc::clone(event)),
            attempts: vec![last],
            redriving: false,
            edit: None,
        })
    }

    /// Sets a delivery aside as a dead letter that refers to its event; its number, or `None` where the
    /// delivery was resolved before.
    pub(in crate::progress) fn set_aside(
        &mut self,
        id: LaneId,
        destination: DestinationId,
        sequence: Sequence,
        why: SetAside,
        at: Timestamp,
    ) -> Option<u64> {
        self.resolve(id, sequence)?.totals.dead += 1;
        self.refer(id, sequence);
        Some(self.new_letter(NewLetter {
            lane: id,
            destination,
            content: Content::Reference { sequence, why, at },
            attempts: Vec::new(),
            redriving: false,
            edit: None,
        }))
    }

    /// Ends an unresolved delivery by an operator's will; whether it was unresolved.
    pub(in crate::progress) fn discard_pending(&mut self, id: LaneId, sequence: Sequence) -> bool {
        let lane = self.resolve(id, sequence);
        lane.map(|lane| lane.totals.discarded += 1).is_some()
    }

    fn new_letter(&mut self, letter: NewLetter) -> u64 {
        let number = self.letters.take();
        self.next_letter = number + 1;
        self.changes
            .letters
            .insert(number, LetterChange::New(letter));
        number
    }

    /// Whether a letter lies here and is under redrive.
    pub(in crate::progress) fn is_redriving(&self, letter: u64) -> bool {
        self.redriving.contains_key(&letter)
    }

    /// Starts a redrive of a dead letter of that lane, with its event edited or as it is; `false` where one is
    /// under way.
    pub(in crate::progress) fn redrive(
        &mut self,
        letter: u64,
        place: LetterPlace,
        edit: Option<NewEdit>,
    ) -> bool {
        if self.redriving.contains_key(&letter) {
            return false;
        }
        self.redriving.insert(letter, place);
        let totals = self.totals(place.lane);
        totals.dead = totals.dead.saturating_sub(1);
        totals.redriving += 1;
        totals.redriven += 1;
        self.change_letter(
            letter,
            LetterChange::Changed {
                redriving: true,
                attempts: Vec::new(),
                edit,
            },
        );
        true
    }

    /// Ends a dead letter of that lane by an operator's will; `false` where a redrive is under way.
    pub(in crate::progress) fn discard(&mut self, letter: u64, place: LetterPlace) -> bool {
        if self.redriving.contains_key(&letter) {
            return false;
        }
        let totals = self.totals(place.lane);
        totals.dead = totals.dead.saturating_sub(1);
        totals.discarded += 1;
        self.remove_letter(letter, place);
        true
    }

    /// Ends a redrive. One that is not under way (any more) changes nothing.
    pub(in crate::progress) fn settle_letter(&mut self, letter: u64, resolution: Resolution) {
        let Some(place) = self.redriving.remove(&letter) else {
            return;
        };
        let totals = self.totals(place.lane);
        totals.redriving = totals.redriving.saturating_sub(1);
        match resolution {
            Resolution::Delivered => totals.delivered += 1,
            Resolution::Expired => totals.expired += 1,
            Resolution::DeadLettered(attempt) => {
                totals.dead += 1;
                let change = LetterChange::Changed {
                    redriving: false,
                    attempts: vec![attempt],
                    edit: None,
                };
                return self.change_letter(letter, change);
            }
        }
        self.remove_letter(letter, place);
    }

    /// Ends a redrive without an attempt; one that is not under way changes nothing.
    pub(in crate::progress) fn give_up_redrive(&mut self, letter: u64) {
        let Some(place) = self.redriving.remove(&letter) else {
            return;
        };
        let totals = self.totals(place.lane);
        totals.redriving = totals.redriving.saturating_sub(1);
        totals.dead += 1;
        self.change_letter(
            letter,
            LetterChange::Changed {
                redriving: false,
                attempts: Vec::new(),
                edit: None,
            },
        );
    }

    /// Ends a dead letter under redrive for good; one that is not under way changes nothing.
    pub(in crate::progress) fn discard_redrive(&mut self, letter: u64) {
        if let Some(place) = self.redriving.get(&letter).copied() {
            self.give_up_redrive(letter);
            self.discard(letter, place);
        }
    }

    /// Letters of a lane that are under redrive.
    pub(in crate::progress) fn redriving_of(&self, lane: LaneId) -> Vec<u64> {
        let of_lane = self
            .redriving
            .iter()
            .filter(|(_, place)| place.lane == lane);
        of_lane.map(|(letter, _)| *letter).collect()
    }

    /// Makes the delivery of a letter that refers to its event pending again, as if it had never been
    /// tried; `false` where the letter has ended or a redrive is under way.
    pub(in crate::progress) fn revive(
        &mut self,
        letter: u64,
        id: LaneId,
        sequence: Sequence,
    ) -> bool {
        if self.redriving.contains_key(&letter) || !self.release(id, sequence) {
            return false;
        }
        let lane = self.lanes.entry(id).or_default();
        let number = chunk::number_of(sequence.0);
        if let Some(chunk) = lane.chunks.get_mut(&number) {
            chunk.clear(sequence.0);
            self.changes.chunks.insert((id, number));
        }
        let totals = self.totals(id);
        totals.dead = totals.dead.saturating_sub(1);
        totals.redriven += 1;
        self.change_letter(letter, LetterChange::Removed);
        true
    }

    /// Takes over dead letters that were saved from a damaged file: their deliveries are resolved.
    pub(in crate::progress) fn take_over_letter(
        &mut self,
        place: LetterPlace,
        sequence: Sequence,
        redriving: bool,
    ) {
        let id = place.lane;
        self.resolve(id, sequence);
        if place.referred.is_some() {
            self.refer(id, sequence);
        }
        if !redriving {
            self.totals(id).dead += 1;
        }
    }

    /// Keeps the event of a letter where it lies.
    fn refer(&mut self, id: LaneId, sequence: Sequence) {
        let number = chunk::number_of(sequence.0);
        let lane = self.lanes.entry(id).or_default();
        let chunk = lane.referred.entry(number).or_insert_with(Chunk::new);
        chunk.set(sequence.0);
        self.changes.referred.insert((id, number));
    }

    /// Lets the event of a letter go; whether it was held.
    fn release(&mut self, id: LaneId, sequence: Sequence) -> bool {
        let number = chunk::number_of(sequence.0);
        let lane = self.lanes.entry(id).or_default();
        let Some(chunk) = lane.referred.get_mut(&number) else {
            return false;
        };
        let was_held = chunk.clear(sequence.0);
        if chunk.is_empty() {
            lane.referred.remove(&number);
        }
        self.changes.referred.insert((id, number));
        was_held
    }

    /// A letter has ended: nothing is held for it any more.
    fn remove_letter(&mut self, letter: u64, place: LetterPlace) {
        if let Some(sequence) = place.referred {
            self.release(place.lane, sequence);
        }
        self.change_letter(letter, LetterChange::Removed);
    }

    fn change_letter(&mut self, letter: u64, change: LetterChange) {
        let change = match self.changes.letters.remove(&letter) {
            Some(before) => before.then(change),
            None => change,
        };
        self.changes.letters.insert(letter, change);
    }
}
