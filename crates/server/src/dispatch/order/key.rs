//! One ordering key of a lane: what of it is in flight, failed, waiting or held, and what goes next. A
//! key exists only while there is something to remember of it.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;

use wayhold_model::{Position, StoredEvent};

use super::retries::{Retries, Retry};
use super::{Blocked, History, Next, OrderPolicy, Refill, Turn};
use crate::config::OnFailure;

/// Most positions remembered of one key: enough that fetching again is rare for a key that is merely
/// busy, and 10,000 blocked keys stay below 20 MiB.
pub(in crate::dispatch) const KEY_POSITIONS_MAX: usize = 64;

/// There may be as many as deliveries wait to be tried again, so it is small: see the test below.
#[derive(Debug, Default)]
pub(super) struct Key {
    pub(super) in_flight: u32,
    // Of those in flight, attempts after the first.
    retrying: u32,
    // Whether the last of those in flight is still on its way to the destination. Only looked at where there may
    // be several.
    pub(super) preparing: bool,
    pub(super) retries: Retries,
    // Not tried yet, in order; what lies beyond follows after the last of them.
    waiting: VecDeque<Waiting>,
    rare: Option<Box<Rare>>,
}

/// What few keys have.
#[derive(Debug, Default)]
struct Rare {
    // Dead letters that hold the key.
    holds: BTreeSet<Position>,
    beyond: Option<Beyond>,
}

#[derive(Debug)]
struct Waiting {
    position: Position,
    event: Option<Arc<StoredEvent>>,
}

/// Deliveries that wait and are not remembered one by one.
#[derive(Clone, Copy, Debug)]
struct Beyond {
    after: Position,
    through: Position,
    count: u64,
    refilling: bool,
}

impl Key {
    /// Whether a first attempt that was just read may go at once.
    pub(super) fn is_open(&self, policy: OrderPolicy) -> bool {
        self.has_room(policy)
            && !self.has_waiting()
            && !self.retries.has_due()
            && !self.is_held()
            && (policy.on_failure == OnFailure::Park || self.retries.is_empty())
    }

    /// Whether one more may be in flight.
    pub(super) fn has_room(&self, policy: OrderPolicy) -> bool {
        self.in_flight == 0 || self.in_flight < policy.in_flight_per_key && !self.preparing
    }

    /// One more is in flight.
    pub(super) fn begin_turn(&mut self) {
        self.in_flight += 1;
        self.preparing = true;
    }

    /// Remembers a delivery that must wait; says whether its body was kept.
    pub(super) fn set_aside(
        &mut self,
        position: Position,
        event: Option<Arc<StoredEvent>>,
    ) -> bool {
        if let Some(beyond) = self.beyond_mut() {
            beyond.through = position;
            beyond.count += 1;
            return false;
        }
        if let Some(last) = self.waiting.back()
            && self.waiting.len() >= KEY_POSITIONS_MAX
        {
            let after = last.position;
            self.rare().beyond = Some(Beyond {
                after,
                through: position,
                count: 1,
                refilling: false,
            });
            return false;
        }
        let kept = event.is_some();
        self.waiting.push_back(Waiting { position, event });
        kept
    }

    pub(super) fn next(&mut self, hash: u64, policy: OrderPolicy) -> Next {
        if !self.has_room(policy) {
            return Next::Nothing;
        }
        let awake = self
            .retries
            .due()
            .find(|(position, retry)| !self.waits_for_dead(*position, retry))
            .map(|(position, _)| position);
        let ahead = match policy.on_failure {
            OnFailure::Block => self.ahead(policy),
            OnFailure::Park => awake,
        };
        let first = self.waiting.front().map(|waiting| waiting.position);
        match (first, ahead) {
            (Some(first), ahead) if !self.is_held() && ahead.is_none_or(|ahead| first < ahead) => {
                self.take_waiting(hash)
            }
            // Under `block` whatever is held, or still asleep, is what everything else waits for.
            (_, Some(ahead)) if awake == Some(ahead) => self.take_awake(hash, ahead),
            (None, None) if !self.is_held() => self.ask_refill(hash),
            _ => Next::Nothing,
        }
    }

    /// What a first attempt must not overtake: under `block` every failed one before it.
    fn ahead(&self, policy: OrderPolicy) -> Option<Position> {
        match policy.on_failure {
            OnFailure::Block => self.retries.first().map(|(position, _)| position),
            OnFailure::Park => self.retries.first_due(),
        }
    }

    /// Whether a turn that was given must wait after all, since something before it failed, died or was redriven
    /// while it was on its way.
    pub(super) fn must_wait(
        &self,
        position: Position,
        history: History,
        policy: OrderPolicy,
    ) -> bool {
        let waits_for_dead = history.letter.is_none() && self.is_held_before(position);
        waits_for_dead || self.ahead(policy).is_some_and(|ahead| ahead < position)
    }

    /// Whether a dead letter before it holds what failed and is due: it may never have been sent, as in a batch of
    /// which an earlier event was refused.
    fn waits_for_dead(&self, position: Position, retry: &Retry) -> bool {
        !retry.is_redrive() && self.is_held_before(position)
    }

    fn take_waiting(&mut self, hash: u64) -> Next {
        let Some(Waiting { position, event }) = self.waiting.pop_front() else {
            return Next::Nothing;
        };
        self.begin_turn();
        Next::Turn(Turn {
            position,
            key: Some(hash),
            event,
            history: History::default(),
        })
    }

    fn take_awake(&mut self, hash: u64, position: Position) -> Next {
        let Some(retry) = self.retries.remove(position) else {
            return Next::Nothing;
        };
        self.begin_turn();
        let turn = retry.into_turn(position, Some(hash));
        self.retrying += u32::from(!turn.history.is_first());
        Next::Turn(turn)
    }

    fn ask_refill(&mut self, hash: u64) -> Next {
        let Some(beyond) = self.beyond_mut().filter(|beyond| !beyond.refilling) else {
            return Next::Nothing;
        };
        beyond.refilling = true;
        Next::Refill(Refill {
            key: hash,
            after: beyond.after,
            through: beyond.through,
        })
    }

    /// What was asked for could not be read.
    pub(super) fn refill_failed(&mut self) {
        if let Some(beyond) = self.beyond_mut() {
            beyond.refilling = false;
        }
    }

    pub(super) fn refill(&mut self, refill: Refill, positions: Vec<Position>) {
        let whole = positions.len() < KEY_POSITIONS_MAX;
        let after = if whole {
            Some(refill.through)
        } else {
            positions.last().copied()
        };
        let count = self.waiting_count();
        let events = positions.into_iter().map(|position| Waiting {
            position,
            event: None,
        });
        self.waiting.extend(events);
        let left = count.saturating_sub(self.waiting.len() as u64);
        // What was set aside while the refill ran lies behind `through` of the question.
        if let Some(rare) = &mut self.rare {
            rare.beyond = rare.beyond.zip(after).and_then(|(beyond, after)| {
                (after < beyond.through).then_some(Beyond {
                    after,
                    through: beyond.through,
                    count: left,
                    refilling: false,
                })
            });
        }
    }

    pub(super) fn end_turn(&mut self, history: History) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.retrying = self.retrying.saturating_sub(u32::from(!history.is_first()));
    }

    /// Whether first attempts are set aside.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.beyond().is_some()
    }

    /// How many they are, as far as they were read.
    fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64 + self.beyond().map_or(0, |beyond| beyond.count)
    }

    fn beyond(&self) -> Option<&Beyond> {
        self.rare.as_ref().and_then(|rare| rare.beyond.as_ref())
    }

    fn beyond_mut(&mut self) -> Option<&mut Beyond> {
        self.rare.as_mut().and_then(|rare| rare.beyond.as_mut())
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// A dead letter holds it from now on.
    pub(super) fn hold(&mut self, position: Position) {
        self.rare().holds.insert(position);
    }

    /// That dead letter holds it no longer.
    pub(super) fn release(&mut self, position: Position) {
        if let Some(rare) = &mut self.rare {
            rare.holds.remove(&position);
        }
    }

    /// No dead letter holds it any longer.
    pub(super) fn release_all(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.holds.clear();
        }
    }

    /// Dead letters that hold it, in order.
    pub(super) fn holds(&self) -> impl Iterator<Item = Position> {
        let holds = self.rare.as_ref().map(|rare| rare.holds.iter());
        holds.into_iter().flatten().copied()
    }

    fn is_held(&self) -> bool {
        self.holds().next().is_some()
    }

    fn is_held_before(&self, position: Position) -> bool {
        self.holds().next().is_some_and(|held| held < position)
    }

    /// What failed and waits to be tried again.
    pub(super) fn parked(&self) -> usize {
        self.retries.len()
    }

    /// What the key weighs against the lane's bound.
    pub(super) fn burden(&self) -> usize {
        let waits = self.has_waiting() || self.is_held();
        self.parked().max(usize::from(waits))
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.retrying > 0 || !self.retries.is_empty() || self.is_held()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.retries.is_empty() && !self.has_waiting() && !self.is_held()
    }

    pub(super) fn oldest(&self) -> Option<Position> {
        let waiting = self.waiting.front().map(|waiting| waiting.position);
        let retry = self.retries.first().map(|(position, _)| position);
        waiting.into_iter().chain(retry).min()
    }

    pub(super) fn describe(&self, hash: u64) -> Blocked {
        let retry = self.retries.first();
        let held = self.holds().next();
        Blocked {
            key: hash,
            position: retry.map(|(position, _)| position).or(held),
            held: retry.is_none() && held.is_some(),
            attempts: retry.map_or(0, |(_, retry)| retry.history().attempts),
            retry_at: retry.map(|(_, retry)| retry.at),
            waiting: self.waiting_count(),
        }
    }
}

/// Takes a hash for what it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HashedAlready(u64);

impl Hasher for HashedAlready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only u64 keys are hashed; anything else still gets a lawful, if poor, hash.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_one_delivery_that_waits_lies_in_an_eighth_of_an_event_of_a_kibibyte() {
        // The alarm that wakes it, the free places of the table of keys and what progress keeps of it are beside that.
        assert!(size_of::<(u64, Key)>() <= 128);
    }
}
