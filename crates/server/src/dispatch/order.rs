//! The order of one lane: which keys are in flight, which are blocked, and whose turn is next. Pure
//! bookkeeping without IO or clock; the lane acts on what it says.
//!
//! Every delivery the lane reads is *offered*. It either gets its turn at once or is set aside behind its
//! key. A turn ends in exactly one of `resolved`, `failed`, `dead_lettered` or `put_back`. A due time only
//! wakes: what goes next within a key is decided by position, so a later event cannot overtake a failed
//! one by being due earlier. Events without a key have no order and never wait for each other.
//!
//! A key costs constant memory: at most [`KEY_POSITIONS_MAX`] positions are remembered, of what lies
//! beyond only where it begins and ends; the lane fetches it again (`Refill`) when its turn comes. After
//! a restart the same structure grows again from what the store returns as unresolved.

mod follow;
mod key;
mod retries;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use wayhold_model::{Position, StoredEvent, Timestamp};
use wayhold_store::Delivery;

use self::key::{HashedAlready, Key};
use self::retries::Retry;
use crate::config::{OnDeadLetter, OnFailure};

pub(super) use self::key::KEY_POSITIONS_MAX;

/// Most bytes of event bodies kept with what is set aside, per lane, so that a busy key need not look
/// each event up again. Beyond it only positions are kept.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// What of a destination's policy concerns order.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderPolicy {
    pub(super) on_failure: OnFailure,
    pub(super) on_dead_letter: OnDeadLetter,
    pub(super) in_flight_per_key: u32,
    /// Most blocked keys and waiting retries before the lane stops reading ahead.
    pub(super) blocked_max: usize,
}

/// A delivery whose turn it is. It counts as in flight for its key until it is handed back.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) position: Position,
    pub(super) key: Option<u64>,
    /// The body, where it was at hand.
    pub(super) event: Option<Arc<StoredEvent>>,
    pub(super) history: History,
}

/// What happened to a delivery before this turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Attempts made before that count.
    pub(super) attempts: u32,
    /// Attempts since the last of these that did not count, in this run.
    pub(super) put_off: u32,
    /// The dead letter that this turn redrives.
    pub(super) letter: Option<Redrive>,
    /// Whether the attempt before may have arrived all the same.
    pub(super) after_unknown: bool,
}

/// The redrive of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redrive {
    /// The letter's number.
    pub(super) letter: u64,
    /// Attempts made before the redrive: it gets the whole retry policy anew.
    pub(super) attempts_before: u32,
    /// Whether a replay gave it up: such a letter holds nobody, whatever becomes of it.
    pub(super) of_replay: bool,
}

impl History {
    /// Whether this turn is a first attempt.
    pub(super) fn is_first(&self) -> bool {
        self.attempts == 0 && self.put_off == 0 && self.letter.is_none()
    }
}

/// Positions of a key to fetch again: unresolved ones in `(after, through]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    pub(super) key: u64,
    pub(super) after: Position,
    pub(super) through: Position,
}

/// What comes of asking for the next set-aside delivery.
#[derive(Debug)]
pub(super) enum Next {
    /// This one.
    Turn(Turn),
    /// First fetch these; the key waits meanwhile.
    Refill(Refill),
    /// Nothing set aside may go now.
    Nothing,
}

/// A key that waits for a failed or dead delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) key: u64,
    /// The delivery that blocks; `None` while its next attempt is in flight.
    pub(super) position: Option<Position>,
    /// Whether it blocks as a dead letter that an operator must redrive or discard.
    pub(super) held: bool,
    pub(super) attempts: u32,
    pub(super) retry_at: Option<Timestamp>,
    /// Deliveries of the key that wait behind it and were read so far.
    pub(super) waiting: u64,
}

/// The order keeper of one lane.
#[derive(Debug)]
pub(super) struct Order {
    policy: OrderPolicy,
    // Keys with something in flight or set aside. Key hashes are seeded XXH3 already.
    keys: HashMap<u64, Key, BuildHasherDefault<HashedAlready>>,
    // Failed deliveries without a key.
    loose: BTreeMap<Position, Retry>,
    alarms: BinaryHeap<Reverse<Alarm>>,
    // Who may have a retry to send, and which keys may have a first attempt to send. Entries may be
    // stale: each is judged when it is taken, and none is added without a retry or turn that ended.
    due: VecDeque<Due>,
    released: VecDeque<u64>,
    burden: usize,
    // Deliveries that failed and wait to be tried again.
    parked: usize,
    blocked: usize,
    kept_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alarm {
    at: Timestamp,
    position: Position,
    key: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Key(u64),
    Loose(Position),
}

impl Order {
    pub(super) fn new(policy: OrderPolicy) -> Self {
        Self {
            policy,
            keys: HashMap::default(),
            loose: BTreeMap::new(),
            alarms: BinaryHeap::new(),
            due: VecDeque::new(),
            released: VecDeque::new(),
            burden: 0,
            parked: 0,
            blocked: 0,
            kept_bytes: 0,
        }
    }

    /// Whether reading further ahead keeps memory within its bound.
    pub(super) fn may_read_ahead(&self) -> bool {
        self.burden < self.policy.blocked_max
    }

    /// Keys that wait for a failed or dead delivery.
    pub(super) fn blocked_count(&self) -> usize {
        self.blocked
    }

    /// A delivery as read, in reading order; `retry_at` in the lane's own time. Its turn if it may go now.
    pub(super) fn offer(
        &mut self,
        delivery: Delivery,
        retry_at: Option<Timestamp>,
    ) -> Option<Turn> {
        let Delivery {
            event, attempts, ..
        } = delivery;
        let position = event.position;
        let key = event.key_hash;
        let history = History {
            attempts,
            ..History::default()
        };
        if attempts > 0 || retry_at.is_some() {
            let at = retry_at.unwrap_or(Timestamp::EPOCH);
            self.sleep(position, key, Retry::new(history, None, at));
            return None;
        }
        if let Some(hash) = key
            && !self.admit(hash, &event)
        {
            return None;
        }
        Some(Turn {
            position,
            key,
            event: Some(event),
            history,
        })
    }

    /// A first attempt of a key: takes it in flight, or sets it aside.
    fn admit(&mut self, hash: u64, event: &Arc<StoredEvent>) -> bool {
        let policy = self.policy;
        let slot = match self.keys.entry(hash) {
            Entry::Vacant(slot) => {
                slot.insert(Key::default()).begin_turn();
                return true;
            }
            Entry::Occupied(slot) => slot,
        };
        if slot.get().is_open(policy) || wayhold_store::planted!("key-order-ignored") {
            slot.into_mut().begin_turn();
            return true;
        }
        let size = event.event.size();
        let keep = self.kept_bytes + size <= KEPT_BYTES_MAX;
        let body = keep.then(|| Arc::clone(event));
        let kept = self.change(hash, |key| key.set_aside(event.position, body));
        self.kept_bytes += if kept { size } else { 0 };
        false
    }

    /// Wakes what is due. Call before asking for turns.
    pub(super) fn wake(&mut self, now: Timestamp) {
        while let Some(Reverse(alarm)) = self.alarms.peek().copied()
            && alarm.at <= now
        {
            self.alarms.pop();
            let Some(hash) = alarm.key else {
                self.due.push_back(Due::Loose(alarm.position));
                continue;
            };
            if let Some(key) = self.keys.get_mut(&hash) {
                key.retries.wake(alarm.position);
                self.due.push_back(Due::Key(hash));
            }
        }
    }

    /// When something sleeping is due next.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.alarms.peek().map(|Reverse(alarm)| alarm.at)
    }

    /// The next retry or redrive whose turn it is.
    pub(super) fn next_retry(&mut self) -> Next {
        while let Some(due) = self.due.pop_front() {
            let next = match due {
                Due::Key(hash) => self.next_of(hash),
                Due::Loose(position) => self.take_loose(position),
            };
            if !matches!(next, Next::Nothing) {
                return next;
            }
        }
        Next::Nothing
    }

    /// The next first attempt of a key that was set aside.
    pub(super) fn next_released(&mut self) -> Next {
        // Under `park` each of them may fail and stay beside the others of its key, however many there
        // are. Enough that failed must end first; they come due by themselves.
        if self.policy.on_failure == OnFailure::Park && self.parked >= self.policy.blocked_max {
            return Next::Nothing;
        }
        while let Some(hash) = self.released.pop_front() {
            // Retries have their own share of the lane, see `next_retry`.
            if self
                .keys
                .get(&hash)
                .is_some_and(|key| key.retries.has_due())
            {
                self.due.push_back(Due::Key(hash));
                continue;
            }
            let next = self.next_of(hash);
            if !matches!(next, Next::Nothing) {
                return next;
            }
        }
        Next::Nothing
    }

    fn take_loose(&mut self, position: Position) -> Next {
        let Some(retry) = self.loose.remove(&position) else {
            return Next::Nothing;
        };
        self.burden -= 1;
        self.parked -= 1;
        Next::Turn(retry.into_turn(position, None))
    }

    /// Whose turn it is within a key.
    fn next_of(&mut self, hash: u64) -> Next {
        if !self.keys.contains_key(&hash) {
            return Next::Nothing;
        }
        let policy = self.policy;
        let next = self.change(hash, |key| key.next(hash, policy));
        if let Next::Turn(turn) = &next {
            if let Some(event) = turn.event.as_ref().filter(|_| turn.history.is_first()) {
                self.kept_bytes -= event.event.size();
            }
            // With several in flight per key the next one may be free to go as well.
            self.requeue(hash);
        }
        next
    }

    /// Lets a key's next one be judged, after something of it ended.
    fn requeue(&mut self, hash: u64) {
        let Some(key) = self.keys.get(&hash) else {
            return;
        };
        if !key.has_room(self.policy) {
            return;
        }
        if key.retries.has_due() {
            self.due.push_back(Due::Key(hash));
        } else if key.has_waiting() {
            self.released.push_back(hash);
        }
    }

    /// Whether a turn that was given must not be taken after all: where a key may have several in flight, one
    /// before it may have failed since. It is put back then.
    pub(super) fn must_wait(&self, position: Position, key: Option<u64>, history: History) -> bool {
        let key = key.filter(|_| self.policy.in_flight_per_key > 1);
        let key = key.and_then(|hash| self.keys.get(&hash));
        key.is_some_and(|key| key.must_wait(position, history, self.policy))
    }

    /// The turn's delivery was handed to the destination, or will not be in this turn. Where a key may have
    /// several in flight, only then the next one gets its turn: what takes a moment to be fetched or recorded
    /// is not overtaken on the way.
    pub(super) fn handed_over(&mut self, key: Option<u64>) {
        if let Some(hash) = key.filter(|_| self.policy.in_flight_per_key > 1)
            && let Some(key) = self.keys.get_mut(&hash)
        {
            key.preparing = false;
            self.requeue(hash);
        }
    }

    /// The turn's delivery is resolved and holds nothing.
    pub(super) fn resolved(&mut self, key: Option<u64>, history: History) {
        if let Some(hash) = key {
            self.change(hash, |key| key.end_turn(history));
            self.requeue(hash);
        }
    }

    /// The turn's attempt failed and is repeated from `at` on: `history` led to it, `after` comes of it.
    pub(super) fn failed(
        &mut self,
        event: &Arc<StoredEvent>,
        history: History,
        after: History,
        at: Timestamp,
    ) {
        let (position, key) = (event.position, event.key_hash);
        let event = Some(Arc::clone(event));
        self.try_again(
            Turn {
                position,
                key,
                event,
                history,
            },
            after,
            at,
        );
    }

    /// The turn was not taken (its event could not be read, or the lane was paused meanwhile); it comes
    /// again from `at` on.
    pub(super) fn put_back(&mut self, turn: Turn, at: Timestamp) {
        let history = turn.history;
        self.try_again(turn, history, at);
    }

    fn try_again(&mut self, turn: Turn, after: History, at: Timestamp) {
        let Turn {
            position,
            key,
            event,
            history,
        } = turn;
        if let Some(hash) = key {
            self.change(hash, |key| key.end_turn(history));
        }
        self.sleep(position, key, Retry::new(after, event, at));
        if let Some(hash) = key {
            self.requeue(hash);
        }
    }

    /// The turn's delivery became a dead letter.
    pub(super) fn dead_lettered(&mut self, position: Position, key: Option<u64>, history: History) {
        let of_replay = history.letter.is_some_and(|redrive| redrive.of_replay);
        if !of_replay {
            self.found_dead(position, key);
        }
        self.resolved(key, history);
    }

    /// A dead letter, which holds its key where the policy says so.
    pub(super) fn found_dead(&mut self, position: Position, key: Option<u64>) {
        if let Some(hash) = key
            && self.policy.on_dead_letter == OnDeadLetter::Hold
        {
            self.change(hash, |key| key.hold(position));
        }
    }

    /// A dead letter is sent again, before anything of its key that was not sent yet.
    pub(super) fn redrive(&mut self, event: &Arc<StoredEvent>, redrive: Redrive) {
        let position = event.position;
        let history = History {
            attempts: redrive.attempts_before,
            letter: Some(redrive),
            ..History::default()
        };
        let retry = Retry::new(history, Some(Arc::clone(event)), Timestamp::EPOCH);
        match event.key_hash {
            Some(hash) => {
                self.change(hash, |key| {
                    if !redrive.of_replay {
                        key.release(position);
                    }
                    key.retries.add_due(position, retry);
                });
                self.due.push_back(Due::Key(hash));
            }
            None => self.sleep(position, None, retry),
        }
    }

    /// An operator discarded a dead letter: it holds its key no longer.
    pub(super) fn discarded(&mut self, position: Position, key: Option<u64>) {
        if let Some(hash) = key
            && self.keys.contains_key(&hash)
        {
            self.change(hash, |key| key.release(position));
            self.requeue(hash);
        }
    }

    /// What a refill found: the next positions of the key, at most [`KEY_POSITIONS_MAX`].
    pub(super) fn refilled(&mut self, refill: Refill, positions: Vec<Position>) {
        self.change(refill.key, |key| key.refill(refill, positions));
        self.requeue(refill.key);
    }

    /// A refill could not be read: it is asked for again from `at` on.
    pub(super) fn refill_failed(&mut self, refill: Refill, at: Timestamp) {
        self.change(refill.key, Key::refill_failed);
        self.alarms.push(Reverse(Alarm {
            at,
            position: refill.after,
            key: Some(refill.key),
        }));
    }

    /// What stays when the lane reads everything from the beginning again, with nothing in flight: dead
    /// letters that hold their keys, and redrives. The rest comes back as the store returns it.
    pub(super) fn rewind(&mut self) {
        let before = std::mem::replace(self, Self::new(self.policy));
        debug_assert!(before.keys.values().all(|key| key.in_flight == 0));
        let is_redrive = |(_, retry): &(Position, Retry)| retry.is_redrive();
        for (position, retry) in before.loose.into_iter().filter(is_redrive) {
            self.sleep(position, None, retry);
        }
        for (hash, key) in before.keys {
            for held in key.holds() {
                self.change(hash, |again| again.hold(held));
            }
            for (position, retry) in key.retries.into_all().filter(is_redrive) {
                self.sleep(position, Some(hash), retry);
            }
        }
    }

    fn sleep(&mut self, position: Position, key: Option<u64>, retry: Retry) {
        let at = retry.at;
        self.alarms.push(Reverse(Alarm { at, position, key }));
        match key {
            Some(hash) => self.change(hash, |key| key.retries.sleep(position, retry)),
            None => {
                let added = usize::from(self.loose.insert(position, retry).is_none());
                self.burden += added;
                self.parked += added;
            }
        }
    }

    /// The keys that most deliveries wait behind, at most `max`, longest queue first.
    pub(super) fn top_blocked(&self, max: usize) -> Vec<Blocked> {
        let mut all: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, key)| key.is_blocked())
            .map(|(hash, key)| key.describe(*hash))
            .collect();
        all.sort_unstable_by_key(|blocked| (Reverse(blocked.waiting), blocked.position));
        all.truncate(max);
        all
    }

    /// The earliest delivery set aside: what is in flight and unread is not in it.
    pub(super) fn oldest(&self) -> Option<Position> {
        let keyed = self.keys.values().filter_map(Key::oldest).min();
        let loose = self.loose.keys().next().copied();
        keyed.into_iter().chain(loose).min()
    }

    /// What a delivery of this key waits for: the earliest failed, dead or waiting one before it.
    pub(super) fn ahead_of(&self, position: Position, key: u64) -> Option<Position> {
        let key = self.keys.get(&key)?;
        let held = key.holds().next();
        held.into_iter()
            .chain(key.oldest())
            .min()
            .filter(|ahead| *ahead < position)
    }

    /// Deliveries that failed and wait to be tried again.
    pub(super) fn retries(&self) -> usize {
        self.parked
    }

    /// Changes a key and keeps the sums over all keys in step; an idle key is forgotten.
    fn change<R>(&mut self, hash: u64, change: impl FnOnce(&mut Key) -> R) -> R {
        let mut slot = match self.keys.entry(hash) {
            Entry::Occupied(slot) => slot,
            Entry::Vacant(slot) => slot.insert_entry(Key::default()),
        };
        let key = slot.get_mut();
        let weigh = |key: &Key| (key.burden(), key.parked(), usize::from(key.is_blocked()));
        let before = weigh(key);
        let result = change(key);
        let after = weigh(key);
        self.burden = self.burden - before.0 + after.0;
        self.parked = self.parked - before.1 + after.1;
        self.blocked = self.blocked - before.2 + after.2;
        if key.is_idle() {
            slot.remove();
        }
        result
    }
}

#[cfg(test)]
mod tests;
