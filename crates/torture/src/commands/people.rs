//! Who works with the server: a service that proposes, again and again under one key until it is answered; a person
//! who approves, one who takes some back, and one who erases what they said.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::black_box::client::{Answer, Client};
use crate::black_box::ending::joined;
use crate::black_box::seed::Seed;
use crate::black_box::server::Server;

/// Services that propose at the same time.
const PROPOSERS: u64 = 4;

/// The kinds that they propose.
const KINDS: [&str; 4] = [
    "keyed_auto",
    "keyed_approved",
    "asked_auto",
    "asked_approved",
];

/// How long a request that nobody answered is left alone.
const AGAIN: Duration = Duration::from_millis(20);

/// One in so many is taken back, where nothing of it happened yet.
const TAKEN_BACK: u64 = 6;

/// How many commands are younger than the one whose arguments are erased, so that most have ended by then.
const YOUNGER: usize = 20;

/// How long a service waits between two proposals: there must be some at every point where the server dies.
const PACE: Duration = Duration::from_millis(100);

/// How long proposing everything may take once nothing is killed any more.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tokens of everybody.
#[derive(Clone)]
pub(super) struct People {
    address: SocketAddr,
    proposer: String,
    approver: String,
    operator: String,
}

/// What was proposed: keys and ids, as they were answered.
pub(super) type Proposed = Vec<(String, String)>;

/// Commitments of what was erased, as it was answered.
pub(super) type Erased = Vec<String>;

/// Everybody at work.
pub(super) struct Load {
    proposers: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
    proposed: Arc<Mutex<Proposed>>,
    erased: Arc<Mutex<Erased>>,
    enough: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    count: u64,
}

impl People {
    /// Makes their tokens, that of whoever may do everything first.
    pub(super) fn hire(server: &Server) -> Self {
        let make = |authorization: &str, name: &str, kind: &str, roles: &[&str]| {
            let body = json!({ "name": name, "type": kind, "roles": roles }).to_string();
            let head = format!("{authorization}Content-Type: application/json\r\n");
            let answer = Client::new(server.address).post("/v1/tokens", &head, body.as_bytes());
            match answer {
                Ok(answer) if answer.status < 300 => {
                    answer.json()["token"].as_str().unwrap().to_owned()
                }
                other => server.fail(&format!("makes no token: {other:?}")),
            }
        };
        let operator = make("", "olga", "person", &["admin", "read", "operate", "audit"]);
        let by = authorization(&operator);
        Self {
            address: server.address,
            proposer: make(&by, "bot", "service", &["propose", "read"]),
            approver: make(&by, "ada", "person", &["approve", "read"]),
            operator,
        }
    }

    /// Begins proposing so many commands, and more until there are enough; approving, taking back and erasing.
    pub(super) fn work(&self, seed: u64, count: u64) -> Load {
        let proposed = Arc::<Mutex<Proposed>>::default();
        let (enough, stop) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let proposers = (0..PROPOSERS).map(|one| {
            let (people, proposed) = (self.clone(), Arc::clone(&proposed));
            let enough = Arc::clone(&enough);
            let numbers = (one..).step_by(usize::try_from(PROPOSERS).unwrap());
            std::thread::spawn(move || {
                for number in numbers {
                    if number >= count && enough.load(Ordering::Relaxed) {
                        return;
                    }
                    people.propose(seed, number, &proposed);
                    std::thread::sleep(PACE);
                }
            })
        });
        let proposers = proposers.collect();
        let (approver, approving) = (self.clone(), Arc::clone(&stop));
        let (operator, operating) = (self.clone(), Arc::clone(&stop));
        let (eraser, erasing) = (self.clone(), Arc::clone(&stop));
        let erased = Arc::<Mutex<Erased>>::default();
        let (seen, known, gone) = (
            Arc::clone(&proposed),
            Arc::clone(&proposed),
            Arc::clone(&erased),
        );
        let others = vec![
            std::thread::spawn(move || approver.approve_until(&approving)),
            std::thread::spawn(move || operator.take_back_until(seed, &seen, &operating)),
            std::thread::spawn(move || eraser.erase_until(&known, &gone, &erasing)),
        ];
        Load {
            proposers,
            others,
            proposed,
            erased,
            enough,
            stop,
            count,
        }
    }

    /// Proposes one until it is answered.
    fn propose(&self, seed: u64, number: u64, proposed: &Mutex<Proposed>) {
        let key = format!("s{seed}-{number}");
        let kind = KINDS[usize::try_from(number).unwrap() % KINDS.len()];
        let body = json!({ "kind": kind, "arguments": { "n": number } }).to_string();
        let head = format!(
            "{}Content-Type: application/json\r\nIdempotency-Key: \"{key}\"\r\n",
            authorization(&self.proposer)
        );
        let begun = Instant::now();
        let mut client = Client::new(self.address);
        loop {
            let answer = client.post("/v1/commands", &head, body.as_bytes());
            if let Ok(answer) = answer
                && answer.status == 202
            {
                let id = answer.json()["id"].as_str().unwrap().to_owned();
                proposed.lock().unwrap().push((key, id));
                return;
            }
            if begun.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn approve_until(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let waiting = self.ask(&self.approver, "/v1/approvals?limit=100");
            for one in waiting.map(items).unwrap_or_default() {
                let (id, digest) = (one["id"].as_str().unwrap(), &one["digest"]);
                let target = format!("/v1/approvals/{id}/approve");
                self.tell(&self.approver, &target, &json!({ "digest": digest }));
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn take_back_until(&self, seed: u64, proposed: &Mutex<Proposed>, stop: &AtomicBool) {
        let seed = Seed::new(seed ^ 0xcac);
        while !stop.load(Ordering::Relaxed) {
            let newest = proposed.lock().unwrap().last().map(|(_, id)| id.clone());
            if let Some(id) = newest.filter(|_| seed.one_in(TAKEN_BACK)) {
                let target = format!("/v1/commands/{id}/cancel");
                self.tell(&self.operator, &target, &json!({ "reason": "not wanted" }));
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn erase_until(&self, proposed: &Mutex<Proposed>, erased: &Mutex<Erased>, stop: &AtomicBool) {
        let mut next = 0;
        while !stop.load(Ordering::Relaxed) {
            let old = {
                let proposed = proposed.lock().unwrap();
                let old = proposed.iter().rev().skip(YOUNGER).rev().nth(next);
                old.map(|(_, id)| id.clone())
            };
            // Nobody answered: whether it was erased is not known, and it is asked for again.
            if let Some((commitment, status)) = old.and_then(|id| self.erase(&id)) {
                next += 1;
                if status == 200 {
                    erased.lock().unwrap().push(commitment);
                }
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Erases the arguments of a command; their commitment, and what was answered. `None` where nobody answered.
    fn erase(&self, id: &str) -> Option<(String, u16)> {
        let stream = format!("/v1/ledger?limit=1&stream=cmd:{id}");
        let accepted = items(self.ask(&self.operator, &stream)?).into_iter().next();
        let accepted = accepted?;
        let commit = accepted.pointer("/body/args/commit").unwrap();
        let body = json!({ "commit": commit, "reason": "asked for" }).to_string();
        let head = format!(
            "{}Content-Type: application/json\r\n",
            authorization(&self.operator)
        );
        let target = format!("/v1/ledger/{}/erase", accepted["idx"]);
        let answer = Client::new(self.address).post(&target, &head, body.as_bytes());
        Some((commit.as_str().unwrap().to_owned(), answer.ok()?.status))
    }

    /// States of commands that have not ended, by id.
    pub(super) fn open(&self) -> BTreeMap<String, String> {
        let open =
            "accepted,pending_approval,ready,sending,retry_wait,unknown,reconciling,compensating";
        let list = self.ask(
            &self.operator,
            &format!("/v1/commands?limit=200&state={open}"),
        );
        let one = |one: Value| {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            (text("id"), format!("{} {}", text("state"), text("reason")))
        };
        match list {
            Some(list) => items(list).into_iter().map(one).collect(),
            // Nobody answered: then nobody knows, and it is asked again.
            None => BTreeMap::from([("unknown".to_owned(), "no answer".to_owned())]),
        }
    }

    /// Asks whoever may see everything.
    pub(super) fn see(&self, target: &str) -> Option<Value> {
        self.ask(&self.operator, target)
    }

    fn ask(&self, token: &str, target: &str) -> Option<Value> {
        let answer = Client::new(self.address).get_as(target, &authorization(token));
        let answer: Answer = answer.ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    fn tell(&self, token: &str, target: &str, body: &Value) {
        let head = format!("{}Content-Type: application/json\r\n", authorization(token));
        // What was refused or cut off is seen again, or was decided meanwhile.
        drop(Client::new(self.address).post(target, &head, body.to_string().as_bytes()));
    }
}

impl Load {
    /// Whether not everything is proposed yet.
    pub(super) fn goes_on(&self) -> bool {
        (self.proposed.lock().unwrap().len() as u64) < self.count
    }

    /// Waits until everything is proposed; those who approve and take back go on.
    pub(super) fn proposed(&mut self, server: &Server) -> Proposed {
        self.enough.store(true, Ordering::Relaxed);
        self.proposers.drain(..).for_each(joined);
        let proposed = self.proposed.lock().unwrap().clone();
        let missing = self.count.saturating_sub(proposed.len() as u64);
        if missing > 0 {
            server.fail(&format!("does not accept {missing} commands"));
        }
        proposed
    }

    /// Ends everybody's work; what was erased.
    pub(super) fn end(self) -> Erased {
        self.stop.store(true, Ordering::Relaxed);
        self.others.into_iter().for_each(joined);
        self.erased.lock().unwrap().clone()
    }
}

fn authorization(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn items(list: Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}
