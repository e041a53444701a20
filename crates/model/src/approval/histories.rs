//! Random histories of one command, held against an oracle that shares nothing with what it judges: no command
//! becomes ready without exactly what its policy asks, and everything without effect is a refusal with a record.

use std::sync::OnceLock;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::facts::actor_for_tests as actor;
use super::*;
use crate::ledger::ActorKind;
use crate::time::Timestamp;

const HOUR: u64 = 3600;

/// Everybody who tries to decide: name, kind, labels.
const PEOPLE: [(&str, ActorKind, &[&str]); 9] = [
    ("anna", ActorKind::Person, &["buyer"]),
    ("alan", ActorKind::Person, &["buyer"]),
    ("bert", ActorKind::Person, &["finance"]),
    ("cleo", ActorKind::Person, &["buyer", "finance"]),
    ("dora", ActorKind::Person, &["head"]),
    ("emil", ActorKind::Person, &[]),
    // Whom the command is for, and two that are no people.
    ("olaf", ActorKind::Person, &["buyer", "finance", "head"]),
    ("bot", ActorKind::Model, &["buyer", "finance", "head"]),
    ("robo", ActorKind::Service, &["buyer", "finance", "head"]),
];

const AMOUNTS: [i64; 4] = [50, 300, 1000, 3000];

#[derive(Clone, Copy, Debug)]
enum Op {
    Approve {
        who: usize,
        stale: bool,
    },
    Reject {
        who: usize,
        stale: bool,
    },
    /// A decision that was made before, once more and as it was.
    Replay {
        nth: usize,
    },
    Edit {
        who: usize,
        amount: usize,
    },
    Wait {
        hours: u64,
    },
    /// Other policies come into force.
    Reload {
        policies: usize,
    },
    /// The destination becomes another.
    Move,
    Cancel,
}

fn some_op() -> impl Strategy<Value = Op> {
    let who = 0..PEOPLE.len();
    prop_oneof![
        10 => (who.clone(), prop::bool::weighted(0.1)).prop_map(|(who, stale)| Op::Approve { who, stale }),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, stale)| Op::Reject { who, stale }),
        2 => (0_usize..20).prop_map(|nth| Op::Replay { nth }),
        2 => (who, 0..AMOUNTS.len()).prop_map(|(who, amount)| Op::Edit { who, amount }),
        2 => prop::sample::select(vec![1, 20, 49]).prop_map(|hours| Op::Wait { hours }),
        1 => (0_usize..3).prop_map(|policies| Op::Reload { policies }),
        1 => Just(Op::Move),
        1 => Just(Op::Cancel),
    ]
}

/// What is judged: one command and its requests, put together as the server does it.
struct Subject {
    policies: usize,
    amount: i64,
    editors: Vec<String>,
    version: u8,
    now: u64,
    request: Option<Request>,
    released: u32,
    ended: bool,
    refusals: usize,
    decisions: Vec<(usize, bool, Digest)>,
}

impl Subject {
    fn digest(&self) -> Digest {
        Digest::of(format!("{} {}", self.amount, self.version).as_bytes())
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now * 1_000_000)
    }

    fn verdict(&self) -> Verdict {
        policies(self.policies).evaluate(&Facts {
            kind: "po".to_owned(),
            arguments: json!({ "amount": self.amount }),
            amount: None,
            principal: actor("bot", ActorKind::Model),
            labels: Vec::new(),
            on_behalf_of: "olaf".to_owned(),
            model: String::new(),
            risk: Risk::Medium,
            reversibility: Reversibility::Compensatable,
            destination: "erp".to_owned(),
        })
    }

    fn open(&mut self, verdict: &Verdict) {
        let mut excluded: Vec<_> = vec!["bot".to_owned(), "olaf".to_owned()];
        excluded.extend(self.editors.clone());
        let binding = Binding {
            command: "c1".to_owned(),
            bound: self.digest(),
            presented: self.digest(),
            policies: policies(self.policies).digest(),
            excluded: excluded.into_iter().collect(),
        };
        let (opened, _) = Request::open("a".to_owned(), verdict, binding, self.time());
        self.request = None;
        match opened {
            Opened::Ready(release) => self.release(&release),
            Opened::Asked(request) => self.request = Some(*request),
            Opened::Denied(_) => self.ended = true,
        }
    }

    fn release(&mut self, release: &Release) {
        assert!(release.is_for("c1", &self.digest()), "another command left");
        self.released += 1;
    }

    fn take(&mut self, progress: Progress) {
        if let Some(release) = &progress.release {
            self.release(release);
        }
        self.ended |= matches!(progress.request.state, State::Rejected | State::Expired);
        self.request = Some(progress.request);
    }

    fn decide(&mut self, who: usize, yes: bool, seen: Digest) -> bool {
        self.decisions.push((who, yes, seen));
        let (name, kind, labels) = PEOPLE[who];
        let by = Approver {
            actor: actor(name, kind),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            channel: "api",
        };
        let Some(request) = &self.request else {
            return false;
        };
        let result = if yes {
            request.approve(&by, &seen, "", self.time())
        } else {
            request.reject(&by, &seen, "no", self.time())
        };
        match result {
            Ok(progress) => {
                self.take(progress);
                true
            }
            Err(refusal) => {
                let record = request.refused("approve", &by, &seen, refusal);
                assert_eq!(record.kind, "approval.refused");
                self.refusals += 1;
                false
            }
        }
    }

    fn pending(&self) -> bool {
        let state = self.request.as_ref().map(|request| request.state);
        state == Some(State::Pending)
    }

    fn elapse(&mut self) {
        let Some(request) = &self.request else {
            return;
        };
        match request.elapse(self.time()) {
            Elapsed::Nothing => {}
            Elapsed::Released(progress)
            | Elapsed::Escalated(progress)
            | Elapsed::Expired(progress) => self.take(progress),
        }
    }

    fn edit(&mut self, who: usize, amount: usize) {
        self.amount = AMOUNTS[amount];
        self.version += 1;
        self.editors.push(PEOPLE[who].0.to_owned());
        let by = actor(PEOPLE[who].0, PEOPLE[who].1);
        let new = self.digest();
        let old = self.request.take();
        let void = old.and_then(|request| request.void(&Void::Edited { by, new }));
        self.request = void.map(|progress| progress.request);
        let verdict = self.verdict();
        self.open(&verdict);
    }

    fn reconsider(&mut self, moved: bool) {
        let verdict = self.verdict();
        let request = self.request.as_ref();
        if let Some(asked) = request.and_then(|request| request.reconsider(&verdict, moved)) {
            let why = if moved {
                Void::DestinationChanged
            } else {
                Void::PolicyChanged
            };
            self.request = request.and_then(|r| r.void(&why)).map(|p| p.request);
            self.open(&asked);
        }
    }
}

/// Three sets of policies: normal, stricter, none that asks anything.
fn policies(set: usize) -> &'static Policies {
    static SETS: OnceLock<[Policies; 3]> = OnceLock::new();
    &SETS.get_or_init(|| [0, 1, 2].map(policies_of))[set]
}

fn policies_of(set: usize) -> Policies {
    let expires = Duration::from_secs(48 * HOUR);
    let people = |labels: &[&str]| {
        let labels: Vec<_> = labels.iter().map(|&label| label.to_owned()).collect();
        let on_expiry = OnExpiry::Escalate {
            to: "head".to_owned(),
            wait: expires,
        };
        Requirement::Approvers(Quorum::new(labels.len(), &labels, expires, on_expiry).unwrap())
    };
    let policy = |when: &str, require| Policy {
        name: when.to_owned(),
        when: Question::compile(when).unwrap(),
        require,
    };
    Policies::new(match set {
        0 => vec![
            policy("arguments.amount > 2000", people(&["buyer", "finance"])),
            policy("arguments.amount > 500", people(&["buyer"])),
            policy("arguments.amount <= 100", Requirement::Auto),
        ],
        1 => vec![policy(
            "arguments.amount > 100",
            people(&["buyer", "finance"]),
        )],
        _ => vec![policy("true", Requirement::Auto)],
    })
}

/// The judge. It knows the story, not the machine.
#[derive(Default)]
struct Oracle {
    /// 0 nothing, 1 an hour's sixth, 2 a buyer, 3 a buyer and another person of finance.
    level: u8,
    asked_at: u64,
    /// Who said yes to the command as it is, in the time that was given.
    yes: Vec<usize>,
    wanted_by: Vec<usize>,
    /// Nothing more can come of it.
    over: bool,
}

impl Oracle {
    fn level_of(policies: usize, amount: i64) -> u8 {
        match (policies, amount) {
            (0, 2001..) => 3,
            (0, 501..) => 2,
            (0, ..=100) => 0,
            (1, 101..) => 3,
            (0 | 1, _) => 1,
            _ => 0,
        }
    }

    fn ask(&mut self, level: u8, now: u64) {
        (self.level, self.asked_at) = (level, now);
        self.yes.clear();
    }

    /// Whether the story so far lets the command leave now.
    fn satisfied(&self, now: u64) -> bool {
        let is = |who: usize, label: &str| {
            let escalated = now >= self.asked_at + 48 * HOUR;
            let labels = PEOPLE[who].2;
            labels.contains(&label) || (escalated && labels.contains(&"head"))
        };
        match self.level {
            0 => true,
            1 => now >= self.asked_at + 600,
            2 => self.yes.iter().any(|&who| is(who, "buyer")),
            _ => self.yes.iter().any(|&one| {
                let other = |&two: &usize| one != two && is(two, "finance");
                is(one, "buyer") && self.yes.iter().any(other)
            }),
        }
    }

    fn may(&self, who: usize, now: u64) -> bool {
        let in_time = self.level < 2 || now < self.asked_at + 96 * HOUR;
        PEOPLE[who].1 == ActorKind::Person && !self.wanted_by.contains(&who) && in_time
    }
}

fn run(ops: &[Op], amount: usize) -> Result<(), TestCaseError> {
    let mut subject = Subject {
        policies: 0,
        amount: AMOUNTS[amount],
        editors: Vec::new(),
        version: 0,
        now: 1,
        request: None,
        released: 0,
        ended: false,
        refusals: 0,
        decisions: Vec::new(),
    };
    let verdict = subject.verdict();
    subject.open(&verdict);
    let mut oracle = Oracle {
        wanted_by: vec![6, 7],
        ..Oracle::default()
    };
    oracle.ask(Oracle::level_of(0, subject.amount), subject.now);
    for op in ops {
        let waiting = subject.pending();
        let refusals = subject.refusals;
        let (who, yes, seen) = match *op {
            Op::Approve { who, stale } | Op::Reject { who, stale } => {
                let other = Digest::of(b"another command");
                let seen = if stale { other } else { subject.digest() };
                (who, matches!(op, Op::Approve { .. }), seen)
            }
            Op::Replay { nth } => match subject.decisions.get(nth) {
                Some(&decision) => decision,
                None => continue,
            },
            Op::Edit { .. } | Op::Wait { .. } | Op::Reload { .. } | Op::Move | Op::Cancel => {
                disturb(op, &mut subject, &mut oracle)?;
                check(&subject, &mut oracle)?;
                continue;
            }
        };
        let right = seen == subject.digest();
        let had_request = subject.request.is_some();
        let taken = subject.decide(who, yes, seen);
        if taken {
            prop_assert!(waiting && right && oracle.may(who, subject.now), "{op:?}");
            if yes {
                prop_assert!(!oracle.yes.contains(&who), "twice: {op:?}");
                prop_assert!(oracle.level >= 2, "nobody was asked: {op:?}");
                oracle.yes.push(who);
            } else {
                // Also by whoever said yes before: a change of mind is safe.
                oracle.over = true;
            }
        } else if had_request {
            prop_assert_eq!(subject.refusals, refusals + 1, "a refusal without a record");
        }
        check(&subject, &mut oracle)?;
    }
    Ok(())
}

/// Something other than a decision happens, to the subject and to the story.
fn disturb(op: &Op, subject: &mut Subject, oracle: &mut Oracle) -> Result<(), TestCaseError> {
    let waiting = subject.pending();
    match *op {
        Op::Edit { who, amount } => {
            if waiting && PEOPLE[who].1 == ActorKind::Person {
                subject.edit(who, amount);
                oracle.wanted_by.push(who);
                let level = Oracle::level_of(subject.policies, subject.amount);
                oracle.ask(level, subject.now);
            }
        }
        Op::Wait { hours } => {
            subject.now += hours * HOUR;
            subject.elapse();
            // The timer runs once for each deadline that passed.
            let escalated = subject.now >= oracle.asked_at + 48 * HOUR;
            if waiting && oracle.level >= 2 && escalated && subject.pending() {
                // Its second deadline counts from when it was noticed.
                let due = subject.request.as_ref().map(|request| request.due_at);
                let due = due.map_or(0, |due| due.as_micros() / 1_000_000);
                prop_assert!(due > subject.now && due <= subject.now + 48 * HOUR);
                oracle.asked_at = due - 96 * HOUR;
            }
            if waiting && oracle.level >= 2 && subject.now >= oracle.asked_at + 96 * HOUR {
                oracle.over = true;
                prop_assert!(subject.ended, "a request outlived its time");
            }
        }
        Op::Reload { policies } => {
            subject.policies = policies;
            let level = Oracle::level_of(policies, subject.amount);
            if waiting && level > oracle.level {
                oracle.ask(level, subject.now);
            }
            subject.reconsider(false);
        }
        Op::Move => {
            if waiting {
                let level = Oracle::level_of(subject.policies, subject.amount);
                oracle.ask(level.max(oracle.level), subject.now);
            }
            subject.reconsider(true);
        }
        Op::Cancel => {
            let why = Void::Cancelled {
                by: actor("emil", ActorKind::Person),
                reason: String::new(),
            };
            if let Some(progress) = subject.request.as_ref().and_then(|r| r.void(&why)) {
                subject.request = Some(progress.request);
                subject.ended = true;
                oracle.over = true;
            }
        }
        Op::Approve { .. } | Op::Reject { .. } | Op::Replay { .. } => {}
    }
    Ok(())
}

/// What left is what may leave, once; what may leave did.
fn check(subject: &Subject, oracle: &mut Oracle) -> Result<(), TestCaseError> {
    let left = subject.released > 0;
    if !oracle.over {
        prop_assert_eq!(
            left,
            oracle.satisfied(subject.now),
            "level {}",
            oracle.level
        );
    }
    prop_assert!(subject.released <= 1, "it left twice");
    prop_assert!(!(left && subject.ended), "it left and was refused");
    prop_assert!(
        !(left && subject.pending()),
        "it left and is still asked for"
    );
    if left {
        // What left stays left, whatever becomes of policies and time.
        oracle.over = true;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nothing_leaves_without_exactly_what_its_policy_asks(
        ops in prop::collection::vec(some_op(), 0..24),
        amount in 0..AMOUNTS.len(),
    ) {
        run(&ops, amount)?;
    }
}
