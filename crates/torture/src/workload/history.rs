//! What was asked of a store and what it answered, with the number of calls that the disk had seen by then.

use std::collections::{BTreeMap, BTreeSet};

use wayhold_model::{DestinationId, Position};

use super::DESTINATIONS;

/// One event to one destination, by index.
pub(crate) type Delivery = (usize, usize);

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Pending,
    /// Delivered, expired or discarded.
    Resolved,
    Dead,
    /// A dead letter that is being sent again.
    Redriving,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// The destinations have these numbers.
    Named(Vec<DestinationId>),
    /// The event is on its way in.
    Sent(usize),
    /// The event was acknowledged.
    Stored(usize, Position),
    /// The store was told that a delivery stands so from now on.
    Became(Delivery, Stage),
    /// Whether what it was told last of a delivery was done is not known, and will not be until it is told again.
    Unsure(Delivery),
    /// What it was told of this delivery was acknowledged as durable.
    DurableOf(Delivery),
    /// Everything that it was told of deliveries was.
    Durable,
    /// The destination was asked to pause or to run; `true`: paused.
    Pausing(usize, bool),
    /// And that was acknowledged.
    Paused(usize, bool),
    /// New events were asked to go to so many shards.
    Resharding(u16),
    /// They do, which was acknowledged.
    Sharded(u16),
    /// A command was asked to come so far.
    Leading(usize, usize),
    /// And that was acknowledged.
    Led(usize, usize),
    /// A backup with this number was begun, perhaps not for the first time.
    BackingUp(usize),
    /// And was acknowledged.
    BackedUp(usize),
}

/// All that happened, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    facts: Vec<(usize, Fact)>,
}

/// What must and what may be found on the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Numbers of the destinations, once they were acknowledged.
    pub(super) destinations: Vec<DestinationId>,
    /// When each event was sent: a place in the history.
    pub(super) sent: BTreeMap<usize, usize>,
    /// Where each acknowledged event lies, and when that was said.
    pub(super) stored: BTreeMap<usize, (Position, usize)>,
    /// Deliveries of which it is not known whether the last that was told was done.
    unsure: BTreeSet<Delivery>,
    /// Where each delivery may stand: how it was acknowledged last, and everything it was told since.
    stages: BTreeMap<Delivery, Vec<Stage>>,
    /// Whether each destination may be paused.
    pub(super) paused: BTreeMap<usize, Vec<bool>>,
    /// Over how many shards new events may be spread; empty before that was acknowledged.
    pub(super) shards: Vec<u16>,
    /// How far each command may have come: as was acknowledged last, and everything that was asked for since.
    pub(super) commands: BTreeMap<usize, Vec<usize>>,
    /// Backups that were begun, by number.
    pub(super) backups: BTreeMap<usize, Kept>,
}

/// What a backup must and may hold.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// Whether it was acknowledged, and so is there whole.
    pub(super) is_whole: bool,
    /// What a store that is made of it must and may hold.
    pub(super) holds: Expected,
}

impl History {
    /// Notes what happened after so many calls.
    pub(super) fn note(&mut self, calls: usize, fact: Fact) {
        self.facts.push((calls, fact));
    }

    /// What holds of a disk that saw only so many calls.
    pub(crate) fn until(&self, calls: usize) -> Expected {
        let mut expected = Expected::default();
        let seen = self.facts.iter().take_while(|(at, _)| *at <= calls);
        for (when, (_, fact)) in seen.enumerate() {
            expected.add(when, fact);
        }
        expected
    }

    /// What holds after all of it.
    pub(crate) fn all(&self) -> Expected {
        self.until(usize::MAX)
    }
}

impl Expected {
    fn add(&mut self, when: usize, fact: &Fact) {
        for kept in self.backups.values_mut().filter(|kept| !kept.is_whole) {
            kept.holds.add_beside(when, fact);
        }
        match fact {
            Fact::Named(destinations) => self.destinations.clone_from(destinations),
            Fact::Sent(event) => {
                self.sent.entry(*event).or_insert(when);
            }
            Fact::Stored(event, position) => {
                self.stored.entry(*event).or_insert((*position, when));
            }
            Fact::Became(delivery, stage) => {
                let stages = self.stages.entry(*delivery);
                stages.or_insert_with(|| vec![Stage::Pending]).push(*stage);
            }
            Fact::Unsure(delivery) => {
                self.unsure.insert(*delivery);
            }
            Fact::DurableOf(delivery) => {
                self.unsure.remove(delivery);
                self.durable(|one| one == delivery);
            }
            Fact::Durable => self.durable(|_| true),
            Fact::Pausing(destination, paused) => {
                let may = self.paused.entry(*destination);
                may.or_insert_with(|| vec![false]).push(*paused);
            }
            Fact::Paused(destination, paused) => {
                self.paused.insert(*destination, vec![*paused]);
            }
            Fact::Resharding(shards) => self.shards.push(*shards),
            Fact::Sharded(shards) => self.shards = vec![*shards],
            Fact::Leading(command, to) => {
                let may = self.commands.entry(*command);
                may.or_insert_with(|| vec![0]).push(*to);
            }
            Fact::Led(command, to) => {
                self.commands.insert(*command, vec![*to]);
            }
            Fact::BackingUp(number) => {
                let kept = Kept {
                    is_whole: false,
                    holds: self.restored(),
                };
                self.backups.insert(*number, kept);
            }
            Fact::BackedUp(number) => {
                if let Some(kept) = self.backups.get_mut(number) {
                    kept.is_whole = true;
                }
            }
        }
    }

    /// What a store holds that is made of a backup that begins now: everything that was acknowledged, with its
    /// destinations paused, and its new events in a generation of its own.
    fn restored(&self) -> Self {
        Self {
            paused: (0..DESTINATIONS).map(|one| (one, vec![true])).collect(),
            shards: Vec::new(),
            backups: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// What happens while a backup is made may be in it, and need not.
    fn add_beside(&mut self, when: usize, fact: &Fact) {
        if let Fact::Sent(_) | Fact::Became(..) | Fact::Leading(..) = fact {
            self.add(when, fact);
        }
    }

    fn durable(&mut self, concerns: impl Fn(&Delivery) -> bool) {
        for (delivery, stages) in &mut self.stages {
            // What is told of an event before it is stored concerns a later attempt to store it.
            if concerns(delivery)
                && self.stored.contains_key(&delivery.0)
                && !self.unsure.contains(delivery)
            {
                let before_last = stages.len().saturating_sub(1);
                stages.drain(..before_last);
            }
        }
    }

    /// Where a delivery may stand.
    pub(super) fn may(&self, delivery: Delivery) -> &[Stage] {
        self.stages
            .get(&delivery)
            .map_or(&[Stage::Pending], Vec::as_slice)
    }

    /// How many events were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        self.stored.len()
    }
}
