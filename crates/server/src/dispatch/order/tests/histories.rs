//! Any history of starts, outcomes, redrives and restarts, against the rules stated plainly.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

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
    // Turns that take a while to be fetched: handed over, or put back, after the next step.
    late: Vec<Turn>,
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
            late: Vec::new(),
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
        while self.in_flight.len() + self.late.len() < IN_FLIGHT_MAX
            && let Some(turn) = self.next()
        {
            self.check(&turn);
            match turn.position.sequence.0 % 3 {
                0 => self.late.push(turn),
                _ => self.hand_over(turn),
            }
        }
    }

    /// A turn whose event is at hand goes out, unless what happened meanwhile makes it wait.
    fn hand_over(&mut self, turn: Turn) {
        self.order.handed_over(turn.key);
        let (position, history) = (turn.position, turn.history);
        if self.order.must_wait(position, turn.key, history) {
            self.order.put_back(turn, secs(self.now));
            return;
        }
        self.check_sent(&turn);
        if history.letter.is_some() {
            self.redriven.insert(position.sequence.0);
        }
        self.in_flight.push(turn);
    }

    /// Under `block` whatever comes before a first attempt in its key is resolved or on its way before it, however
    /// many may be in flight.
    fn check_sent(&self, turn: &Turn) {
        let sequence = turn.position.sequence.0;
        if self.policy.on_failure == OnFailure::Park || turn.key.is_none() {
            return;
        }
        let sent = |s: u64| self.in_flight.iter().any(|t| t.position.sequence.0 == s);
        let mut earlier = (0..sequence).filter(|s| self.key(*s) == turn.key);
        let in_order = earlier.all(|s| self.resolved.contains(&s) || sent(s));
        let is_redrive = turn.history.letter.is_some();
        assert!(
            in_order || is_redrive,
            "{sequence} was sent before an earlier one"
        );
    }

    /// The promise of order, stated without the structure that keeps it.
    fn check(&self, turn: &Turn) {
        let sequence = turn.position.sequence.0;
        let mut others = self.in_flight.iter().chain(&self.late);
        assert!(
            !others.any(|other| other.position.sequence.0 == sequence),
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
        let under_way = self.in_flight.iter().chain(&self.late);
        let in_flight = under_way.filter(|t| t.key == Some(key)).count();
        assert!(
            in_flight < self.policy.in_flight_per_key as usize,
            "{key} is in flight"
        );
        assert!(
            !self.late.iter().any(|late| late.key == turn.key),
            "{sequence} may overtake an earlier one of {key} on the way"
        );
        let is_hold = self.policy.on_dead_letter == OnDeadLetter::Hold;
        if is_hold && !redriving {
            let held = self.dead.iter().any(|s| of_key(s) && *s < sequence);
            assert!(!held, "{sequence} is held by a dead letter before it");
        }
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
        if is_hold && self.policy.in_flight_per_key == 1 {
            let held = self.dead.iter().any(of_key);
            assert!(!held, "{key} is held");
        }
    }

    fn step(&mut self, step: Step) {
        let late = std::mem::take(&mut self.late);
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
            Step::Restart => return self.restart(),
        }
        for turn in late {
            self.hand_over(turn);
        }
        // Reading ahead ends at the bound, and so do first attempts beside what failed under `park`: keys
        // that wait and deliveries that failed are each bounded.
        let letters = self.dead.len() + self.redriving.len();
        assert!(self.order.parked <= self.policy.blocked_max + IN_FLIGHT_MAX + letters);
        assert!(self.order.burden <= 2 * self.policy.blocked_max + IN_FLIGHT_MAX + letters);
    }

    fn redrive(&self, sequence: u64) -> Redrive {
        let attempts_before = self.attempts.get(&sequence).copied().unwrap_or(0);
        Redrive {
            letter: sequence,
            attempts_before,
            of_replay: false,
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
        self.late.clear();
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
            self.step(Step::Sleep(60));
            self.step(Step::Start);
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
