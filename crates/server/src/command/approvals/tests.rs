//! Approvals over a real store: decisions that race, restarts, edits, limits and halts, judged by the ledger alone.

mod histories;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use wayhold_model::Timestamp;
use wayhold_model::approval::{Amount, Limit, Per, Policies, Policy, Question, Requirement};
use wayhold_model::approval::{OnExpiry, Quorum};
use wayhold_model::command::{Reversibility, Risk};
use wayhold_model::ledger::ActorKind;
use wayhold_store::Options;
use wayhold_store::commands::NewCommand;

use super::*;
use crate::command::gate::{Rulebook, may_leave};

const HOUR: Duration = Duration::from_secs(3600);

/// A clock that tests turn.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

struct Rig {
    folder: TempDir,
    approvals: Approvals,
    clock: Arc<Hand>,
    commands: AtomicU64,
}

fn open(folder: &Path, book: Rulebook, clock: &Arc<Hand>) -> Approvals {
    let options = Options {
        min_free: Some(0),
        reserve_bytes: 1024 * 1024,
        ..Options::default()
    };
    let shared: Arc<dyn Clock> = Arc::<Hand>::clone(clock);
    let (store, _) = Store::open(folder, options, Arc::clone(&shared)).unwrap();
    Approvals::new(store, Gate::new(book), shared)
}

impl Rig {
    fn new(book: Rulebook) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(Hand(AtomicU64::new(1_800_000_000_000_000)));
        let approvals = open(folder.path(), book, &clock);
        Self {
            folder,
            approvals,
            clock,
            commands: AtomicU64::new(0),
        }
    }

    /// Closes the store and opens it again.
    fn restart(self, book: Rulebook) -> Self {
        self.approvals.store.stop();
        let Self {
            folder,
            approvals,
            clock,
            commands,
        } = self;
        drop(approvals);
        let approvals = open(folder.path(), book, &clock);
        Self {
            folder,
            approvals,
            clock,
            commands,
        }
    }

    fn wait(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap();
        self.clock.0.fetch_add(micros, Ordering::SeqCst);
    }

    async fn propose(&self, amount: i64) -> (CommandId, State) {
        let n = self.commands.fetch_add(1, Ordering::SeqCst);
        let mut random = [0; 10];
        random[..8].copy_from_slice(&n.to_be_bytes());
        let id = CommandId::at(self.clock.now(), random);
        let arguments = json!({ "amount": amount }).to_string();
        let new = NewCommand {
            id,
            kind: "po_create".to_owned(),
            kind_version: "1".to_owned(),
            destination: "erp".to_owned(),
            principal: "bot".to_owned(),
            risk: Risk::Low,
            reversibility: Reversibility::Compensatable,
            order_key: None,
            digest: digest(&arguments).0,
            arguments,
            detail: "{}".to_owned(),
            expires_at: None,
            needs: Vec::new(),
            compensates: None,
            replays: None,
        };
        let subject = Subject {
            command: id,
            digest: Digest(new.digest),
            editors: [].into(),
        };
        let asked = self
            .approvals
            .gate
            .ask(facts(amount), subject, self.clock.now());
        let asked = asked.unwrap();
        let accepted = record(id, "command.accepted", &Actor::system("test"), &json!({})).unwrap();
        let settled = self
            .approvals
            .change(move |change| Ok(asked.keep(change, &new, (&accepted, &[]))?));
        (id, settled.await.unwrap())
    }

    async fn request(&self, command: CommandId) -> RequestRow {
        let rows = self.approvals.look(move |view| view.requests_of(command));
        rows.await.unwrap().into_iter().next().unwrap()
    }

    async fn state(&self, command: CommandId) -> State {
        let state = self.approvals.look(move |view| view.state(command));
        state.await.unwrap().unwrap()
    }

    async fn decide(
        &self,
        who: usize,
        yes: bool,
        row: &RequestRow,
    ) -> Result<RequestRow, ApprovalError> {
        self.approvals
            .decide(
                row.request.id.clone(),
                decision(who, yes, row.request.bound),
            )
            .await
    }

    /// The records of a command.
    async fn records(&self, command: CommandId) -> Vec<Value> {
        let stream = format!("cmd:{command}");
        let rows = self
            .approvals
            .look(move |view| view.records_of(&stream, 0, 10_000));
        let rows = rows.await.unwrap().into_iter();
        rows.map(|row| serde_json::from_slice(&row.record).unwrap())
            .collect()
    }
}

fn digest(arguments: &str) -> Digest {
    Digest::of(format!("po_create 1 erp {arguments}").as_bytes())
}

fn somebody(name: &str, kind: ActorKind) -> Actor {
    Actor {
        kind,
        id: name.to_owned(),
        on_behalf_of: None,
        auth: None,
    }
}

fn facts(amount: i64) -> Facts {
    Facts {
        kind: "po_create".to_owned(),
        arguments: json!({ "amount": amount }),
        amount: Amount::parse(&amount.to_string()),
        principal: somebody("bot", ActorKind::Model),
        labels: Vec::new(),
        on_behalf_of: "olaf".to_owned(),
        model: "m".to_owned(),
        risk: Risk::Low,
        reversibility: Reversibility::Compensatable,
        destination: "erp".to_owned(),
    }
}

const PEOPLE: [(&str, ActorKind, &[&str]); 8] = [
    ("anna", ActorKind::Person, &["approve", "buyer"]),
    ("alan", ActorKind::Person, &["approve", "buyer"]),
    ("bert", ActorKind::Person, &["approve", "finance"]),
    ("cleo", ActorKind::Person, &["approve", "buyer", "finance"]),
    ("emil", ActorKind::Person, &["approve"]),
    ("olaf", ActorKind::Person, &["approve", "buyer", "finance"]),
    ("bot", ActorKind::Model, &["approve", "buyer", "finance"]),
    ("robo", ActorKind::Service, &["approve", "buyer", "finance"]),
];

fn decision(who: usize, yes: bool, seen: Digest) -> Decision {
    let (name, kind, labels) = PEOPLE[who];
    Decision {
        yes,
        by: Approver {
            actor: somebody(name, kind),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            channel: "api",
        },
        seen,
        comment: "because".to_owned(),
    }
}

fn people(labels: &[&str]) -> Requirement {
    let labels: Vec<_> = labels.iter().map(|&label| label.to_owned()).collect();
    Requirement::Approvers(Quorum::new(labels.len(), &labels, HOUR * 48, OnExpiry::Deny).unwrap())
}

/// Above 2000 a buyer and one of finance, above 500 a buyer, below 10 a window of an hour, else nobody.
fn book() -> Rulebook {
    book_of(&[
        ("amount > 2000", people(&["buyer", "finance"])),
        ("amount > 500", people(&["buyer"])),
        ("amount < 10", Requirement::Delayed { window: HOUR }),
        ("true", Requirement::Auto),
    ])
}

fn book_of(policies: &[(&str, Requirement)]) -> Rulebook {
    let policies = policies.iter().map(|(when, require)| Policy {
        name: (*when).to_owned(),
        when: Question::compile(when).unwrap(),
        require: require.clone(),
    });
    let policies = Policies::new(policies.collect());
    Rulebook {
        policies_digest: policies.digest(),
        policies,
        limits: Vec::new(),
        announces: false,
        kinds: BTreeMap::new(),
        destinations: BTreeMap::new(),
    }
}

fn limited(count: u64, amount: &str) -> Rulebook {
    Rulebook {
        limits: vec![Limit {
            name: "daily".to_owned(),
            when: None,
            per: vec![Per::Principal],
            count: Some(count),
            amount: Amount::parse(amount),
            within: HOUR * 24,
        }],
        ..book()
    }
}

/// Holds the records of a command against the story that they must tell, knowing nothing of the machine. Says how
/// many refusals there are.
fn judge(records: &[Value], amounts: &[i64], state: State) -> usize {
    let (mut yes, mut ready, mut refusals) = (BTreeMap::<String, Vec<String>>::new(), 0, 0);
    let (mut forbidden, mut asked) = (vec![], false);
    let mut amounts = amounts.iter();
    let mut amount = *amounts.next().unwrap();
    for record in records {
        let body = &record["body"];
        match record["type"].as_str().unwrap() {
            "approval.requested" => {
                forbidden = body["forbid"].as_array().unwrap().clone();
                asked = true;
                yes.clear();
            }
            "approval.granted" => {
                let actor = &record["actor"];
                assert_eq!(actor["type"], "person", "{record}");
                assert!(asked && !forbidden.contains(&actor["id"]), "{record}");
                let labels = body["labels"].as_array().unwrap().iter();
                let labels = labels.map(|label| label.as_str().unwrap().to_owned());
                let who = actor["id"].as_str().unwrap().to_owned();
                assert!(
                    yes.insert(who, labels.collect()).is_none(),
                    "twice: {record}"
                );
            }
            "approval.edited" => {
                amount = *amounts.next().unwrap();
                yes.clear();
                asked = false;
            }
            "approval.invalidated" | "approval.cancelled" | "approval.expired" => asked = false,
            "approval.denied" => asked = false,
            "approval.refused" => refusals += 1,
            "command.state" if body["to"] == "ready" => {
                ready += 1;
                let has = |who: &String, label: &str| yes[who].iter().any(|one| one == label);
                let buyers: Vec<_> = yes.keys().filter(|who| has(who, "buyer")).collect();
                match amount {
                    2001.. => assert!(
                        buyers
                            .iter()
                            .any(|one| yes.keys().any(|two| *one != two && has(two, "finance"))),
                        "{records:#?}"
                    ),
                    501.. => assert!(!buyers.is_empty(), "{records:#?}"),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let consumed = records
        .iter()
        .filter(|one| one["type"] == "approval.consumed");
    assert!(consumed.count() <= 1, "{records:#?}");
    assert_eq!(ready, usize::from(state == State::Ready), "{records:#?}");
    refusals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_decisions_that_race_exactly_as_many_count_as_are_asked_for() {
    let rig = Rig::new(book());
    for round in 0..8 {
        let (id, state) = rig.propose(3000).await;
        assert_eq!(state, State::PendingApproval);
        let row = rig.request(id).await;
        let all = (0..PEOPLE.len() * 3).map(|n| rig.decide((n + round) % PEOPLE.len(), true, &row));
        let all = join_all(all).await;
        let taken = all.iter().filter(|one| one.is_ok()).count();
        assert_eq!(taken, 2, "a buyer and one of finance");
        assert_eq!(rig.state(id).await, State::Ready);
        let refusals = judge(&rig.records(id).await, &[3000], State::Ready);
        assert_eq!(refusals, all.len() - 2, "every refusal is a record");
    }
}

#[tokio::test]
async fn what_waits_outlives_a_restart_and_ends_when_its_time_is_over() {
    let rig = Rig::new(book());
    let (window, state) = rig.propose(5).await;
    assert_eq!(state, State::PendingApproval);
    let (waiting, _) = rig.propose(3000).await;
    let (kept, _) = rig.propose(600).await;
    let row = rig.request(waiting).await;
    rig.decide(0, true, &row).await.unwrap();
    let rig = rig.restart(book());
    assert_eq!(rig.request(waiting).await.request.grants.len(), 1);
    assert_eq!(rig.approvals.elapse_due().await.unwrap(), 0);
    rig.wait(HOUR);
    assert_eq!(rig.approvals.elapse_due().await.unwrap(), 1);
    assert_eq!(rig.state(window).await, State::Ready);
    let row = rig.request(kept).await;
    rig.decide(0, true, &row).await.unwrap();
    let rig = rig.restart(book());
    rig.wait(HOUR * 47);
    assert_eq!(rig.approvals.elapse_due().await.unwrap(), 1);
    assert_eq!(rig.state(waiting).await, State::Expired);
    assert_eq!(rig.state(kept).await, State::Ready);
    let row = rig.request(waiting).await;
    let late = rig.decide(2, true, &row).await;
    assert!(
        matches!(late, Err(ApprovalError::Refused { .. })),
        "{late:?}"
    );
    judge(&rig.records(waiting).await, &[3000], State::Expired);
}

fn edited(rig_amount: i64, seen: Digest, by: &str) -> Edit {
    let arguments = json!({ "amount": rig_amount }).to_string();
    Edit {
        by: somebody(by, ActorKind::Person),
        seen,
        facts: facts(rig_amount),
        digest: digest(&arguments),
        arguments,
        order_key: None,
    }
}

#[tokio::test]
async fn an_edit_asks_again_and_the_editor_may_not_answer() {
    let rig = Rig::new(book());
    let (id, _) = rig.propose(3000).await;
    let before = rig.request(id).await;
    rig.decide(0, true, &before).await.unwrap();
    let seen = before.request.bound;
    let state = rig
        .approvals
        .edit(id, edited(900, seen, "cleo"))
        .await
        .unwrap();
    assert_eq!(state, State::PendingApproval);
    let stale = rig.approvals.edit(id, edited(901, seen, "bert")).await;
    assert!(
        matches!(stale, Err(ApprovalError::Other { .. })),
        "{stale:?}"
    );
    let after = rig.request(id).await;
    assert_ne!(after.request.bound, seen);
    for (who, row) in [(2, &before), (3, &after), (2, &after)] {
        let answer = rig.decide(who, true, row).await;
        assert!(
            matches!(answer, Err(ApprovalError::Refused { .. })),
            "{answer:?}"
        );
    }
    rig.decide(1, true, &after).await.unwrap();
    assert_eq!(rig.state(id).await, State::Ready);
    let edits = rig
        .approvals
        .look(move |view| view.edits_of(id))
        .await
        .unwrap();
    assert_eq!((edits.len(), edits[0].digest), (1, seen));
    assert_eq!(judge(&rig.records(id).await, &[3000, 900], State::Ready), 3);
}

#[tokio::test]
async fn other_policies_and_another_destination_ask_again() {
    let rig = Rig::new(book());
    assert_eq!(rig.approvals.publish().await.unwrap(), Some(1));
    assert_eq!(rig.approvals.publish().await.unwrap(), None);
    let (id, _) = rig.propose(600).await;
    // Easier ones change nothing of themselves.
    rig.approvals
        .gate
        .follow(book_of(&[("true", Requirement::Auto)]));
    assert_eq!(rig.approvals.publish().await.unwrap(), Some(2));
    assert_eq!(rig.approvals.reconsider_all().await.unwrap(), 0);
    let first = rig.request(id).await;
    // Stricter ones count before the next decision, whether or not anybody judged the request anew.
    rig.approvals
        .gate
        .follow(book_of(&[("true", people(&["buyer", "finance"]))]));
    let late = rig.decide(0, true, &first).await;
    assert!(
        matches!(late, Err(ApprovalError::Refused { .. })),
        "{late:?}"
    );
    let second = rig.request(id).await;
    rig.decide(0, true, &second).await.unwrap();
    assert_eq!(rig.state(id).await, State::PendingApproval);
    let moved = Rulebook {
        destinations: [("erp".to_owned(), Digest([7; 32]))].into(),
        ..book_of(&[("true", people(&["buyer", "finance"]))])
    };
    rig.approvals.gate.follow(moved);
    assert_eq!(rig.approvals.reconsider_all().await.unwrap(), 1);
    assert_eq!(rig.approvals.reconsider_all().await.unwrap(), 0);
    let third = rig.request(id).await;
    assert!(third.request.grants.is_empty());
    rig.decide(3, true, &third).await.unwrap();
    rig.decide(2, true, &third).await.unwrap();
    assert_eq!(rig.state(id).await, State::Ready);
    let reasons: Vec<_> = rig
        .records(id)
        .await
        .into_iter()
        .filter(|record| record["type"] == "approval.invalidated")
        .map(|record| record["body"]["reason"].clone())
        .collect();
    assert_eq!(reasons, ["policy_changed", "destination_changed"]);
}

#[tokio::test]
async fn limits_hold_over_restarts_and_give_back_what_never_left() {
    let rig = Rig::new(limited(3, "2000"));
    let (refused, _) = rig.propose(600).await;
    let (_, second) = rig.propose(100).await;
    assert_eq!(second, State::Ready);
    let row = rig.request(refused).await;
    rig.decide(0, false, &row).await.unwrap();
    let rig = rig.restart(limited(3, "2000"));
    assert_eq!(
        rig.propose(1900).await.1,
        State::PendingApproval,
        "a buyer is asked"
    );
    let (beyond, state) = rig.propose(1).await;
    assert_eq!(state, State::Denied, "beyond the amount");
    let records = rig.records(beyond).await;
    assert_eq!(records[0]["type"], "command.accepted");
    assert_eq!(
        records[1]["body"]["reason_codes"],
        json!(["limit", "amount"])
    );
    rig.wait(HOUR * 25);
    for _ in 0..3 {
        assert_eq!(rig.propose(100).await.1, State::Ready);
    }
    assert_eq!(rig.propose(100).await.1, State::Denied, "beyond the count");
}

#[tokio::test]
async fn what_is_halted_stays_until_it_is_let_go_on() {
    let rig = Rig::new(book());
    let (id, _) = rig.propose(100).await;
    let may = async || {
        let look = rig.approvals.look(move |view| {
            let command = view.command(id)?;
            command.map(|command| may_leave(view, &command)).transpose()
        });
        look.await.unwrap().flatten()
    };
    let by = || somebody("dora", ActorKind::Person);
    for (scope, name) in [
        (Per::Principal, "bot"),
        (Per::Kind, "po_create"),
        (Per::Destination, "erp"),
    ] {
        let what = || (scope, name.to_owned());
        let why = || "prices are wrong".to_owned();
        assert_eq!(may().await, None);
        assert!(rig.approvals.halt(what(), by(), why()).await.unwrap());
        assert!(!rig.approvals.halt(what(), by(), why()).await.unwrap());
        let told = may().await.unwrap();
        assert!(told.contains(name) && told.contains("dora"), "{told}");
        assert_eq!(rig.approvals.halts().await.unwrap().len(), 1);
        assert!(rig.approvals.go_on(what(), by(), why()).await.unwrap());
        assert!(!rig.approvals.go_on(what(), by(), why()).await.unwrap());
    }
    let set = rig
        .approvals
        .look(|view| view.records_of("killswitch:kind:po_create", 0, 10));
    assert_eq!(
        set.await.unwrap().len(),
        2,
        "only what changed something is a record"
    );
}

#[tokio::test]
async fn whoever_is_to_decide_hears_of_it_once_and_again_when_it_is_escalated() {
    let escalating = |wait| {
        let expires = HOUR;
        let to = "head".to_owned();
        let quorum = Quorum::new(1, &[], expires, OnExpiry::Escalate { to, wait });
        Requirement::Approvers(quorum.unwrap())
    };
    let announcing = || Rulebook {
        announces: true,
        ..book_of(&[("true", escalating(HOUR))])
    };
    let rig = Rig::new(announcing());
    let names = ["pager".to_owned()];
    let records = rig.approvals.store.catalog().sync_destinations(&names);
    let pager = records.unwrap()[0].id;
    rig.propose(1).await;
    rig.propose(2).await;
    let told = async |expected| {
        let told = rig.approvals.announce("pager").await.unwrap();
        assert_eq!(told, expected);
        rig.approvals.store.totals(pager).accepted
    };
    assert_eq!(told(2).await, 2);
    assert_eq!(told(0).await, 2);
    rig.wait(HOUR);
    assert_eq!(rig.approvals.elapse_due().await.unwrap(), 2);
    assert_eq!(told(2).await, 4);
    assert_eq!(told(0).await, 4);
}

#[tokio::test]
async fn new_policies_are_tried_on_the_past() {
    let rig = Rig::new(book());
    for amount in [5, 100, 600, 3000] {
        rig.propose(amount).await;
    }
    let same = rig.approvals.simulate(book().policies).await.unwrap();
    assert_eq!((same.commands, same.differences.len()), (4, 0));
    let other = book_of(&[
        ("amount > 2000", people(&["finance"])),
        ("amount > 500", Requirement::Auto),
        ("true", people(&["buyer"])),
    ]);
    let other = rig.approvals.simulate(other.policies).await.unwrap();
    assert_eq!((other.stricter, other.easier, other.other), (2, 2, 0));
    assert_eq!(other.differences[2].direction(), "easier");
}
