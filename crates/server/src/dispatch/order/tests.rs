//! Order as scenarios, then random histories against what must hold of every one of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use wayhold_model::{DestinationSet, Event, EventParts, Generation, Sequence, ShardId};

use super::*;

fn at(sequence: u64) -> Position {
    Position {
        generation: Generation(1),
        shard: ShardId(0),
        sequence: Sequence(sequence),
    }
}

fn event(sequence: u64, key: Option<u64>) -> Arc<StoredEvent> {
    let parts = EventParts {
        id: "1",
        source: "/t",
        kind: "t",
        ..EventParts::default()
    };
    Arc::new(StoredEvent {
        position: at(sequence),
        accepted_at: Timestamp::EPOCH,
        destinations: Arc::new(DestinationSet::new([])),
        key_hash: key,
        event: Arc::new(Event::new(&parts).unwrap()),
    })
}

fn fresh(sequence: u64, key: Option<u64>) -> Delivery {
    Delivery {
        event: event(sequence, key),
        attempts: 0,
        retry_at: None,
    }
}

fn policy(on_failure: OnFailure, on_dead_letter: OnDeadLetter) -> OrderPolicy {
    OrderPolicy {
        on_failure,
        on_dead_letter,
        in_flight_per_key: 1,
        blocked_max: 100,
    }
}

fn blocking() -> Order {
    Order::new(policy(OnFailure::Block, OnDeadLetter::Release))
}

fn parking() -> Order {
    Order::new(policy(OnFailure::Park, OnDeadLetter::Release))
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_micros(secs * 1_000_000)
}

const FIRST: History = History {
    attempts: 0,
    letter: None,
    after_unknown: false,
};
const SECOND: History = History {
    attempts: 1,
    letter: None,
    after_unknown: false,
};

impl Order {
    /// Offers a first attempt; whether it may go at once.
    fn goes(&mut self, sequence: u64, key: Option<u64>) -> bool {
        self.offer(fresh(sequence, key), None).is_some()
    }

    fn turn(&mut self) -> Option<u64> {
        let released = |order: &mut Self| match order.next_released() {
            Next::Turn(turn) => Some(turn.position.sequence.0),
            Next::Refill(refill) => panic!("unexpected {refill:?}"),
            Next::Nothing => None,
        };
        match self.next_retry() {
            Next::Turn(turn) => Some(turn.position.sequence.0),
            Next::Refill(refill) => panic!("unexpected {refill:?}"),
            Next::Nothing => released(self),
        }
    }
}

#[test]
fn a_later_event_waits_for_the_earlier_of_its_key_and_other_keys_do_not() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    assert!(order.goes(3, Some(8)));
    assert_eq!(order.turn(), None);
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(8), FIRST);
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), None);
    assert!(order.keys.is_empty(), "an idle key is forgotten");
}

#[test]
fn events_without_a_key_never_wait_for_each_other() {
    let mut order = blocking();
    assert!((1..=50).all(|sequence| order.goes(sequence, None)));
    order.failed(&event(1, None), FIRST, SECOND, secs(5));
    assert!(order.goes(51, None));
    order.wake(secs(4));
    assert_eq!(order.turn(), None);
    order.wake(secs(5));
    assert_eq!(order.turn(), Some(1));
}

#[test]
fn a_failed_delivery_holds_its_key_under_block() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(30));
    assert!(!order.goes(2, Some(7)));
    assert!(order.goes(3, Some(8)));
    order.wake(secs(29));
    assert_eq!(order.turn(), None);
    assert_eq!(order.blocked_count(), 1);
    assert_eq!(order.ahead_of(at(2), 7), Some(at(1)));
    order.wake(secs(30));
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.blocked_count(), 0);
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn a_failed_delivery_is_set_aside_under_park_and_comes_back_alone() {
    let mut order = parking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(30));
    assert_eq!(order.turn(), Some(2));
    order.wake(secs(30));
    assert_eq!(
        order.turn(),
        None,
        "one in flight per key, also among retries"
    );
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(1));
    assert!(!order.goes(3, Some(7)));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.turn(), Some(3));
}

#[test]
fn due_times_wake_but_positions_decide() {
    // Two in flight per key: the later one fails first and is due first.
    let mut order = Order::new(OrderPolicy {
        in_flight_per_key: 2,
        ..policy(OnFailure::Block, OnDeadLetter::Release)
    });
    assert!(order.goes(1, Some(7)));
    assert!(order.goes(2, Some(7)));
    order.failed(&event(2, Some(7)), FIRST, SECOND, secs(1));
    order.failed(&event(1, Some(7)), FIRST, SECOND, secs(9));
    order.wake(secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(9));
    assert_eq!(order.turn(), Some(1));
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn a_redriven_delivery_goes_before_any_unsent_later_event_of_its_key() {
    for mut order in [blocking(), parking()] {
        assert!(order.goes(1, Some(7)));
        assert!(!order.goes(2, Some(7)));
        assert!(!order.goes(3, Some(7)));
        order.dead_lettered(at(1), Some(7), FIRST);
        assert_eq!(order.turn(), Some(2), "released");
        order.redrive(
            &event(1, Some(7)),
            Redrive {
                letter: 1,
                attempts_before: 1,
            },
        );
        assert_eq!(order.turn(), None);
        order.resolved(Some(7), FIRST);
        assert_eq!(order.turn(), Some(1));
        let redriven = History {
            attempts: 1,
            letter: Some(Redrive {
                letter: 1,
                attempts_before: 1,
            }),
            after_unknown: false,
        };
        order.resolved(Some(7), redriven);
        assert_eq!(order.turn(), Some(3));
    }
}

#[test]
fn a_dead_letter_holds_its_key_until_it_is_redriven_or_discarded() {
    let hold = || Order::new(policy(OnFailure::Block, OnDeadLetter::Hold));
    let mut order = hold();
    assert!(order.goes(1, Some(7)));
    order.dead_lettered(at(1), Some(7), FIRST);
    assert!(!order.goes(2, Some(7)));
    assert_eq!(order.turn(), None);
    assert!(order.top_blocked(1)[0].held);
    order.redrive(
        &event(1, Some(7)),
        Redrive {
            letter: 1,
            attempts_before: 1,
        },
    );
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), SECOND);
    assert_eq!(order.turn(), Some(2));

    let mut order = hold();
    order.found_dead(at(1), Some(7));
    assert!(!order.goes(2, Some(7)));
    order.discarded(at(1), Some(7));
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(7), FIRST);
    assert!(order.keys.is_empty());
}

#[test]
fn after_a_restart_the_same_structure_grows_again() {
    let mut order = blocking();
    let cut_off = Delivery {
        event: event(1, Some(7)),
        attempts: 2,
        retry_at: None,
    };
    assert!(order.offer(cut_off, None).is_none());
    let failed = Delivery {
        event: event(2, Some(8)),
        attempts: 1,
        retry_at: Some(secs(9)),
    };
    assert!(order.offer(failed, Some(secs(9))).is_none());
    assert!(!order.goes(3, Some(7)));
    assert!(!order.goes(4, Some(8)));
    order.wake(secs(1));
    let Next::Turn(turn) = order.next_retry() else {
        panic!("no turn")
    };
    assert_eq!((turn.position, turn.history.attempts), (at(1), 2));
    assert_eq!(order.turn(), None);
    order.wake(secs(9));
    assert_eq!(order.turn(), Some(2));
}

#[test]
fn a_key_costs_constant_memory_and_what_lies_beyond_is_fetched_again() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    let last = 10 * KEY_POSITIONS_MAX as u64;
    for sequence in 2..=last {
        assert!(!order.goes(sequence, Some(7)));
    }
    assert!(order.top_blocked(1).is_empty(), "busy is not blocked");
    for sequence in 2..2 + KEY_POSITIONS_MAX as u64 {
        order.resolved(Some(7), FIRST);
        assert_eq!(order.turn(), Some(sequence));
    }
    order.resolved(Some(7), FIRST);
    let Next::Refill(refill) = order.next_released() else {
        panic!("no refill")
    };
    let after = 1 + KEY_POSITIONS_MAX as u64;
    assert_eq!(
        refill,
        Refill {
            key: 7,
            after: at(after),
            through: at(last)
        }
    );
    // What is read meanwhile lies behind; nothing starts before the answer.
    assert!(!order.goes(last + 1, Some(7)));
    assert_eq!(order.turn(), None);
    order.refilled(refill, vec![at(after + 1), at(after + 2)]);
    assert_eq!(order.turn(), Some(after + 1));
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(after + 2));
    order.resolved(Some(7), FIRST);
    let Next::Refill(refill) = order.next_released() else {
        panic!("no refill")
    };
    assert_eq!(
        refill,
        Refill {
            key: 7,
            after: at(last),
            through: at(last + 1)
        }
    );
    order.refill_failed(refill, secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(1));
    assert!(matches!(order.next_retry(), Next::Refill(again) if again == refill));
    order.refilled(refill, vec![]);
    assert!(order.keys.is_empty());
}

#[test]
fn reading_ahead_stops_at_the_bound_and_goes_on_below_it() {
    let mut order = Order::new(OrderPolicy {
        blocked_max: 2,
        ..policy(OnFailure::Block, OnDeadLetter::Release)
    });
    for sequence in 1..=2 {
        assert!(order.may_read_ahead());
        assert!(order.goes(sequence, Some(sequence)));
        order.failed(&event(sequence, Some(sequence)), FIRST, SECOND, secs(1));
    }
    assert!(!order.may_read_ahead());
    order.wake(secs(1));
    assert_eq!(order.turn(), Some(1));
    assert!(order.may_read_ahead());
}

#[test]
fn an_event_that_could_not_be_read_keeps_its_place() {
    let mut order = blocking();
    assert!(order.goes(1, Some(7)));
    assert!(!order.goes(2, Some(7)));
    let turn = Turn {
        position: at(1),
        key: Some(7),
        event: None,
        history: FIRST,
    };
    order.put_back(turn, secs(1));
    assert_eq!(order.turn(), None);
    order.wake(secs(1));
    assert_eq!(order.turn(), Some(1));
    order.resolved(Some(7), FIRST);
    assert_eq!(order.turn(), Some(2));
    order.resolved(Some(7), FIRST);
    assert!(order.keys.is_empty());
}

/// A lane in miniature: it acts on what the order says, against a destination whose answers are drawn,
/// and checks every start against the rules.
struct World {
    policy: OrderPolicy,
    order: Order,
    now: u64,
    // By sequence.
    keys: Vec<Option<u64>>,
    read: usize,
    resolved: BTreeSet<u64>,
    // Attempts of what failed at least once.
    attempts: BTreeMap<u64, u32>,
    dead: BTreeSet<u64>,
    redriving: BTreeSet<u64>,
    // Redrives that were sent at least once.
    redriven: BTreeSet<u64>,
    in_flight: Vec<Turn>,
}

const IN_FLIGHT_MAX: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Deliver(usize),
    Fail(usize, u64),
    Refuse(usize),
    Sleep(u64),
    Redrive(usize),
    Discard(usize),
    Restart,
}

impl World {
    fn new(policy: OrderPolicy, keys: Vec<Option<u64>>) -> Self {
        Self {
            policy,
            order: Order::new(policy),
            now: 1,
            keys,
            read: 0,
            resolved: BTreeSet::new(),
            attempts: BTreeMap::new(),
            dead: BTreeSet::new(),
            redriving: BTreeSet::new(),
            redriven: BTreeSet::new(),
            in_flight: Vec::new(),
        }
    }

    fn key(&self, sequence: u64) -> Option<u64> {
        self.keys[usize::try_from(sequence).unwrap()]
    }

    fn is_done(&self) -> bool {
        self.resolved.len() == self.keys.len() && self.redriving.is_empty()
    }

    fn next(&mut self) -> Option<Turn> {
        self.order.wake(secs(self.now));
        loop {
            let next = match self.order.next_retry() {
                Next::Nothing => self.order.next_released(),
                next => next,
            };
            match next {
                Next::Turn(turn) => return Some(turn),
                Next::Refill(refill) => self.refill(refill),
                Next::Nothing => break,
            }
        }
        while self.order.may_read_ahead() && self.read < self.keys.len() {
            let sequence = self.read as u64;
            self.read += 1;
            if self.resolved.contains(&sequence) {
                continue;
            }
            let attempts = self.attempts.get(&sequence).copied().unwrap_or(0);
            let event = event(sequence, self.key(sequence));
            let delivery = Delivery {
                event,
                attempts,
                retry_at: None,
            };
            if let Some(turn) = self.order.offer(delivery, None) {
                return Some(turn);
            }
        }
        None
    }

    fn refill(&mut self, refill: Refill) {
        let range = refill.after.sequence.0 + 1..=refill.through.sequence.0;
        let unresolved = range
            .filter(|s| self.key(*s) == Some(refill.key) && !self.resolved.contains(s))
            .map(at)
            .take(KEY_POSITIONS_MAX);
        let positions = unresolved.collect();
        self.order.refilled(refill, positions);
    }

    fn start(&mut self) {
        while self.in_flight.len() < IN_FLIGHT_MAX
            && let Some(turn) = self.next()
        {
            self.check(&turn);
            if turn.history.letter.is_some() {
                self.redriven.insert(turn.position.sequence.0);
            }
            self.in_flight.push(turn);
        }
    }

    /// The promise of order, stated without the structure that keeps it.
    fn check(&self, turn: &Turn) {
        let sequence = turn.position.sequence.0;
        let mut others = self.in_flight.iter().map(|other| other.position.sequence.0);
        assert!(
            !others.any(|other| other == sequence),
            "{sequence} is in flight already"
        );
        let redriving = self.redriving.contains(&sequence);
        assert_eq!(turn.history.letter.is_some(), redriving);
        assert!(
            redriving || !self.resolved.contains(&sequence),
            "{sequence} is resolved"
        );
        let expected = self.attempts.get(&sequence).copied().unwrap_or(0);
        assert_eq!(turn.history.attempts, expected, "attempts of {sequence}");
        let Some(key) = turn.key else { return };
        let of_key = |s: &u64| self.key(*s) == Some(key);
        let in_flight = self.in_flight.iter().filter(|t| t.key == Some(key)).count();
        assert!(
            in_flight < self.policy.in_flight_per_key as usize,
            "{key} is in flight"
        );
        if !turn.history.is_first() {
            return;
        }
        let block = self.policy.on_failure == OnFailure::Block;
        let aside = |s: &u64| !block && self.attempts.contains_key(s);
        let in_order = self.policy.in_flight_per_key > 1 || {
            let mut earlier = (0..sequence).filter(of_key);
            earlier.all(|s| self.resolved.contains(&s) || aside(&s))
        };
        assert!(in_order, "{sequence} overtook an earlier one of {key}");
        let under_way = |s: u64| self.in_flight.iter().any(|t| t.position.sequence.0 == s);
        for redriven in self
            .redriving
            .iter()
            .filter(|s| of_key(s) && **s < sequence)
        {
            let went = under_way(*redriven) || aside(redriven) && self.redriven.contains(redriven);
            assert!(went, "{redriven} was redriven before {sequence} was sent");
        }
        if self.policy.on_dead_letter == OnDeadLetter::Hold {
            let held = self.dead.iter().any(of_key);
            assert!(!held, "{key} is held");
        }
    }

    fn step(&mut self, step: Step) {
        let pick = |len: usize, index: usize| (len > 0).then(|| index % len.max(1));
        match step {
            Step::Start => self.start(),
            Step::Deliver(index) => {
                if let Some(index) = pick(self.in_flight.len(), index) {
                    let turn = self.in_flight.swap_remove(index);
                    let sequence = turn.position.sequence.0;
                    self.resolved.insert(sequence);
                    self.redriving.remove(&sequence);
                    self.order.resolved(turn.key, turn.history);
                }
            }
            Step::Fail(index, wait) => {
                if let Some(index) = pick(self.in_flight.len(), index) {
                    let turn = self.in_flight.swap_remove(index);
                    let after = History {
                        attempts: turn.history.attempts + 1,
                        ..turn.history
                    };
                    self.attempts
                        .insert(turn.position.sequence.0, after.attempts);
                    let due = secs(self.now + wait);
                    self.order.failed(
                        &event(turn.position.sequence.0, turn.key),
                        turn.history,
                        after,
                        due,
                    );
                }
            }
            Step::Refuse(index) => {
                if let Some(index) = pick(self.in_flight.len(), index) {
                    let turn = self.in_flight.swap_remove(index);
                    let sequence = turn.position.sequence.0;
                    self.attempts.insert(sequence, turn.history.attempts + 1);
                    self.resolved.insert(sequence);
                    self.redriving.remove(&sequence);
                    self.dead.insert(sequence);
                    self.order
                        .dead_lettered(turn.position, turn.key, turn.history);
                }
            }
            Step::Sleep(secs) => self.now += secs,
            Step::Redrive(index) => {
                if let Some(sequence) = self.take_dead(index) {
                    self.redriving.insert(sequence);
                    self.redriven.remove(&sequence);
                    self.order
                        .redrive(&event(sequence, self.key(sequence)), self.redrive(sequence));
                }
            }
            Step::Discard(index) => {
                if let Some(sequence) = self.take_dead(index) {
                    self.order.discarded(at(sequence), self.key(sequence));
                }
            }
            Step::Restart => self.restart(),
        }
        assert!(
            self.order.burden
                <= self.policy.blocked_max + IN_FLIGHT_MAX + self.dead.len() + self.redriving.len()
        );
    }

    fn redrive(&self, sequence: u64) -> Redrive {
        let attempts_before = self.attempts.get(&sequence).copied().unwrap_or(0);
        Redrive {
            letter: sequence,
            attempts_before,
        }
    }

    fn take_dead(&mut self, index: usize) -> Option<u64> {
        let index = (!self.dead.is_empty()).then(|| index % self.dead.len())?;
        let sequence = self.dead.iter().nth(index).copied()?;
        self.dead.remove(&sequence);
        Some(sequence)
    }

    /// What was in flight is lost, and with it the attempt that was under way.
    fn restart(&mut self) {
        self.order = Order::new(self.policy);
        self.in_flight.clear();
        self.read = 0;
        for sequence in &self.dead {
            self.order.found_dead(at(*sequence), self.key(*sequence));
        }
        for sequence in self.redriving.clone() {
            self.order
                .redrive(&event(sequence, self.key(sequence)), self.redrive(sequence));
        }
    }

    /// The destination recovers and an operator redrives every letter: everything must end.
    fn finish(&mut self) {
        for _ in 0..20 * self.keys.len() + 200 {
            self.now += 60;
            self.start();
            while !self.in_flight.is_empty() {
                self.step(Step::Deliver(0));
            }
            while !self.dead.is_empty() {
                self.step(Step::Redrive(0));
            }
            if self.is_done() {
                break;
            }
        }
        assert!(self.is_done(), "not everything was delivered");
        assert!(self.order.keys.is_empty() && self.order.loose.is_empty());
        assert_eq!(
            (self.order.burden, self.order.blocked, self.order.kept_bytes),
            (0, 0, 0)
        );
        assert!(self.order.due.len() <= self.keys.len());
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Start),
        6 => any::<usize>().prop_map(Step::Deliver),
        3 => (any::<usize>(), 0..40_u64).prop_map(|(index, wait)| Step::Fail(index, wait)),
        1 => any::<usize>().prop_map(Step::Refuse),
        3 => (0..30_u64).prop_map(Step::Sleep),
        1 => any::<usize>().prop_map(Step::Redrive),
        1 => any::<usize>().prop_map(Step::Discard),
        1 => Just(Step::Restart),
    ]
}

fn any_policy() -> impl Strategy<Value = OrderPolicy> {
    let on_failure = prop_oneof![Just(OnFailure::Block), Just(OnFailure::Park)];
    let on_dead_letter = prop_oneof![Just(OnDeadLetter::Release), Just(OnDeadLetter::Hold)];
    let in_flight = prop_oneof![3 => Just(1_u32), 1 => 2..4_u32];
    let blocked_max = prop_oneof![Just(2_usize), Just(5), Just(10_000)];
    (on_failure, on_dead_letter, in_flight, blocked_max).prop_map(
        |(on_failure, on_dead_letter, in_flight_per_key, blocked_max)| OrderPolicy {
            on_failure,
            on_dead_letter,
            in_flight_per_key,
            blocked_max,
        },
    )
}

/// Many keys, few, or nearly one, so that some histories outgrow what is remembered of a key.
fn keys() -> impl Strategy<Value = Vec<Option<u64>>> {
    prop_oneof![Just(20_u64), Just(4), Just(1)]
        .prop_flat_map(|keys| prop::collection::vec(prop::option::weighted(0.9, 0..keys), 1..300))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_order_and_loses_nothing(
        policy in any_policy(),
        keys in keys(),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut world = World::new(policy, keys);
        for step in steps {
            world.step(step);
        }
        world.finish();
    }
}
