//! The reference: what the store should say, kept in the plainest way there is. It knows nothing of
//! segments, shards or files; only that what was not synced may be gone after a kill.

use std::collections::{BTreeMap, BTreeSet};

use wayhold_model::Position;

use super::steps::DESTINATIONS;

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Pending,
    Delivered,
    Expired,
    Dead,
    Discarded,
}

/// One delivery: what it may be found as after a kill, the newest last. The first is durable.
#[derive(Clone, Debug)]
struct Delivery(Vec<State>);

impl Delivery {
    fn now(&self) -> State {
        self.0.last().copied().unwrap_or(State::Pending)
    }
}

/// One accepted event.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) key: u64,
    pub(super) data: String,
    pub(super) position: Position,
    deliveries: Vec<Delivery>,
    /// Position of the step that accepted it: what a later step accepts of its key comes after it.
    step: usize,
    /// Destinations that it was set aside for: their dead letters refer to it.
    aside: BTreeSet<usize>,
}

/// All that was accepted, by number; the number is the event's id.
#[derive(Debug, Default)]
pub(super) struct Reference {
    accepted: BTreeMap<u64, Accepted>,
    /// Destinations' redrives that ended as another dead letter or otherwise; only counted.
    pub(super) next: u64,
}

/// How many deliveries of a destination stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) accepted: u64,
    pub(super) pending: u64,
    pub(super) delivered: u64,
    pub(super) dead: u64,
    pub(super) expired: u64,
    pub(super) discarded: u64,
}

impl Reference {
    /// The next event's number.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// An event was accepted in a step.
    ///
    /// # Errors
    /// A later acceptance lies before an earlier one of its key.
    pub(super) fn accept(
        &mut self,
        number: u64,
        key: u64,
        data: String,
        position: Position,
        step: usize,
    ) -> Result<(), String> {
        if key != 0
            && let Some((other, before)) = self
                .accepted
                .iter()
                .find(|(_, one)| one.key == key && one.step < step && one.position >= position)
        {
            return Err(format!(
                "event {number} of key {key} lies at {position}, not after event {other} at {}, \
                 which was accepted before",
                before.position
            ));
        }
        let deliveries = vec![Delivery(vec![State::Pending]); DESTINATIONS];
        let event = Accepted {
            key,
            data,
            position,
            deliveries,
            step,
            aside: BTreeSet::new(),
        };
        match self.accepted.insert(number, event) {
            None => Ok(()),
            Some(_) => Err(format!("event {number} was accepted twice")),
        }
    }

    /// A delivery was set aside as it was accepted: a dead letter, or still pending after a kill.
    pub(super) fn set_aside(&mut self, number: u64, to: usize) {
        self.set(number, to, State::Dead);
        if let Some(event) = self.accepted.get_mut(&number) {
            event.aside.insert(to);
        }
    }

    /// What is set aside for a destination.
    pub(super) fn aside(&self, to: usize) -> BTreeSet<u64> {
        let mut dead = self.that_are(to, State::Dead);
        dead.retain(|number| {
            self.accepted
                .get(number)
                .is_some_and(|event| event.aside.contains(&to))
        });
        dead
    }

    pub(super) fn get(&self, number: u64) -> Option<&Accepted> {
        self.accepted.get(&number)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Accepted)> {
        self.accepted.iter().map(|(number, event)| (*number, event))
    }

    /// One of them.
    pub(super) fn pick(&self, pick: u64) -> Option<(u64, &Accepted)> {
        let count = self.accepted.len();
        let at = usize::try_from(pick % u64::try_from(count.max(1)).ok()?).ok()?;
        self.iter().nth(at)
    }

    pub(super) fn state(&self, number: u64, to: usize) -> Option<State> {
        Some(self.accepted.get(&number)?.deliveries.get(to)?.now())
    }

    /// A delivery now stands elsewhere; not durable yet.
    pub(super) fn set(&mut self, number: u64, to: usize, state: State) {
        if let Some(delivery) = self.delivery(number, to) {
            delivery.0.push(state);
        }
    }

    /// Everything that was recorded for a destination is durable.
    pub(super) fn synced(&mut self, to: usize) {
        for event in self.accepted.values_mut() {
            if let Some(delivery) = event.deliveries.get_mut(to) {
                *delivery = Delivery(vec![delivery.now()]);
            }
        }
    }

    /// After a kill a delivery was found to stand so; that is durable now.
    ///
    /// # Errors
    /// It cannot stand so.
    pub(super) fn found(&mut self, number: u64, to: usize, state: State) -> Result<(), String> {
        let Some(delivery) = self.delivery(number, to) else {
            return Err(format!("event {number} was never accepted"));
        };
        if !delivery.0.contains(&state) {
            return Err(format!(
                "delivery {to} of event {number} was found {state:?}, where it may be {:?}",
                delivery.0
            ));
        }
        delivery.0 = vec![state];
        if state != State::Dead
            && let Some(event) = self.accepted.get_mut(&number)
        {
            event.aside.remove(&to);
        }
        Ok(())
    }

    fn delivery(&mut self, number: u64, to: usize) -> Option<&mut Delivery> {
        self.accepted.get_mut(&number)?.deliveries.get_mut(to)
    }

    /// Numbers of a destination's deliveries that stand so.
    pub(super) fn that_are(&self, to: usize, state: State) -> BTreeSet<u64> {
        let is_so = |event: &Accepted| event.deliveries.get(to).map(Delivery::now) == Some(state);
        let those = self.iter().filter(|(_, event)| is_so(event));
        those.map(|(number, _)| number).collect()
    }

    pub(super) fn counts(&self, to: usize) -> Counts {
        let mut counts = Counts::default();
        for event in self.accepted.values() {
            counts.accepted += 1;
            *match event
                .deliveries
                .get(to)
                .map_or(State::Pending, Delivery::now)
            {
                State::Pending => &mut counts.pending,
                State::Delivered => &mut counts.delivered,
                State::Expired => &mut counts.expired,
                State::Dead => &mut counts.dead,
                State::Discarded => &mut counts.discarded,
            } += 1;
        }
        counts
    }
}
