//! One ordering key of a lane: what of it is in flight, failed, waiting or held, and what goes next. A
//! key exists only while there is something to remember of it.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;

use wayhold_model::{Position, StoredEvent, Timestamp};

use super::retries::Retries;
use super::{Blocked, History, Next, OrderPolicy, Refill, Turn};
use crate::config::OnFailure;

/// Most positions remembered of one key: enough that fetching again is rare for a key that is merely
/// busy, and 10,000 blocked keys stay below 20 MiB.
pub(in crate::dispatch) const KEY_POSITIONS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Key {
    pub(super) in_flight: u32,
    // Whether the last of those in flight is still on its way to the destination. Only looked at where there may
    // be several.
    pub(super) preparing: bool,
    // Of those in flight, attempts after the first.
    retrying: u32,
    // Failed, and not due yet; failed, and due.
    pub(super) sleeping: Retries,
    pub(super) awake: Retries,
    // Not tried yet, in order; `beyond` follows after the last of them.
    waiting: VecDeque<Waiting>,
    waiting_count: u64,
    beyond: Option<Beyond>,
    pub(super) refilling: bool,
    // Dead letters that hold the key.
    pub(super) holds: Vec<Position>,
}

#[derive(Debug)]
struct Waiting {
    position: Position,
    event: Option<Arc<StoredEvent>>,
}

#[derive(Clone, Copy, Debug)]
struct Beyond {
    after: Position,
    through: Position,
}

#[derive(Clone, Debug)]
pub(super) struct Retry {
    pub(super) history: History,
    pub(super) at: Timestamp,
    /// The body, of a redrive: the store does not give it any more.
    pub(super) event: Option<Arc<StoredEvent>>,
}

impl Key {
    /// Whether a first attempt that was just read may go at once.
    pub(super) fn is_open(&self, policy: OrderPolicy) -> bool {
        self.has_room(policy)
            && !self.has_waiting()
            && self.awake.is_empty()
            && self.holds.is_empty()
            && (policy.on_failure == OnFailure::Park || self.sleeping.is_empty())
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
        self.waiting_count += 1;
        if let Some(beyond) = &mut self.beyond {
            beyond.through = position;
            return false;
        }
        if let Some(last) = self.waiting.back()
            && self.waiting.len() >= KEY_POSITIONS_MAX
        {
            self.beyond = Some(Beyond {
                after: last.position,
                through: position,
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
            .awake
            .iter()
            .find(|(position, retry)| !self.is_held(*position, retry))
            .map(|(position, _)| position);
        let ahead = match policy.on_failure {
            OnFailure::Block => self.ahead(policy),
            OnFailure::Park => awake,
        };
        let first = self.waiting.front().map(|waiting| waiting.position);
        match (first, ahead) {
            (Some(first), ahead)
                if self.holds.is_empty() && ahead.is_none_or(|ahead| first < ahead) =>
            {
                self.take_waiting(hash)
            }
            // Under `block` whatever is held, or still asleep, is what everything else waits for.
            (_, Some(ahead)) if awake == Some(ahead) => self.take_awake(hash, ahead),
            (None, None) if self.holds.is_empty() => self.ask_refill(hash),
            _ => Next::Nothing,
        }
    }

    /// What a first attempt must not overtake: under `block` every failed one before it.
    fn ahead(&self, policy: OrderPolicy) -> Option<Position> {
        let awake = self.awake.first();
        let sleeping = self.sleeping.first();
        match policy.on_failure {
            OnFailure::Block => awake.into_iter().chain(sleeping).min(),
            OnFailure::Park => awake,
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
        let is_held = history.letter.is_none() && self.holds.iter().any(|held| *held < position);
        is_held || self.ahead(policy).is_some_and(|ahead| ahead < position)
    }

    /// Whether a dead letter before it holds what failed and is due: it may never have been sent, as in a batch of
    /// which an earlier event was refused.
    fn is_held(&self, position: Position, retry: &Retry) -> bool {
        retry.history.letter.is_none() && self.holds.iter().any(|held| *held < position)
    }

    fn take_waiting(&mut self, hash: u64) -> Next {
        let Some(Waiting { position, event }) = self.waiting.pop_front() else {
            return Next::Nothing;
        };
        self.waiting_count = self.waiting_count.saturating_sub(1);
        self.begin_turn();
        Next::Turn(Turn {
            position,
            key: Some(hash),
            event,
            history: History::default(),
        })
    }

    fn take_awake(&mut self, hash: u64, position: Position) -> Next {
        let Some(retry) = self.awake.remove(position) else {
            return Next::Nothing;
        };
        self.begin_turn();
        self.retrying += u32::from(!retry.history.is_first());
        Next::Turn(Turn {
            position,
            key: Some(hash),
            event: retry.event,
            history: retry.history,
        })
    }

    fn ask_refill(&mut self, hash: u64) -> Next {
        let Some(Beyond { after, through }) = self.beyond.filter(|_| !self.refilling) else {
            return Next::Nothing;
        };
        self.refilling = true;
        Next::Refill(Refill {
            key: hash,
            after,
            through,
        })
    }

    pub(super) fn refill(&mut self, refill: Refill, positions: Vec<Position>) {
        self.refilling = false;
        let whole = positions.len() < KEY_POSITIONS_MAX;
        let after = if whole {
            Some(refill.through)
        } else {
            positions.last().copied()
        };
        // What was set aside while the refill ran lies behind `through` of the question.
        self.beyond = self.beyond.zip(after).and_then(|(beyond, after)| {
            (after < beyond.through).then_some(Beyond {
                after,
                through: beyond.through,
            })
        });
        let events = positions.into_iter().map(|position| Waiting {
            position,
            event: None,
        });
        self.waiting.extend(events);
        if self.beyond.is_none() {
            self.waiting_count = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        }
    }

    pub(super) fn end_turn(&mut self, history: History) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.retrying = self.retrying.saturating_sub(u32::from(!history.is_first()));
    }

    /// Whether first attempts are set aside.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.beyond.is_some()
    }

    /// What failed and waits to be tried again.
    pub(super) fn parked(&self) -> usize {
        self.sleeping.len() + self.awake.len()
    }

    /// What the key weighs against the lane's bound.
    pub(super) fn burden(&self) -> usize {
        let waits = self.has_waiting() || !self.holds.is_empty();
        self.parked().max(usize::from(waits))
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.retrying > 0
            || !self.sleeping.is_empty()
            || !self.awake.is_empty()
            || !self.holds.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
            && self.sleeping.is_empty()
            && self.awake.is_empty()
            && !self.has_waiting()
            && self.holds.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Position> {
        let waiting = self.waiting.front().map(|waiting| waiting.position);
        let sleeping = self.sleeping.first();
        let awake = self.awake.first();
        waiting.into_iter().chain(sleeping).chain(awake).min()
    }

    pub(super) fn describe(&self, hash: u64) -> Blocked {
        let [awake, sleeping] = [&self.awake, &self.sleeping].map(|all| all.iter().next());
        let retry = awake
            .into_iter()
            .chain(sleeping)
            .min_by_key(|(position, _)| *position);
        let held = self.holds.iter().min().copied();
        Blocked {
            key: hash,
            position: retry.map(|(position, _)| position).or(held),
            held: retry.is_none() && held.is_some(),
            attempts: retry.map_or(0, |(_, retry)| retry.history.attempts),
            retry_at: retry.map(|(_, retry)| retry.at),
            waiting: self.waiting_count,
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
