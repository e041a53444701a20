//! Random approvals against the running server, by several people at once, with a kill in between; judged by nothing
//! but the exported ledger: no command became ready without exactly what its policy asks, and every refusal is a
//! record. `WAYHOLD_APPROVALS_COMMANDS` runs it with more commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::http::{self, Answer};
use crate::support::server::{Server, run, stderr, stdout};

/// Commands of the form that everybody runs.
const COMMANDS: usize = 24;

/// Decisions that each of the people at work tries for each command.
const TRIES: usize = 5;

/// People who decide at the same time.
const AT_ONCE: usize = 4;

/// Everybody with a token: name, type, roles and labels.
const EVERYBODY: [(&str, &str, &[&str]); 8] = [
    ("bot", "model", &["propose", "approve", "buyer", "finance"]),
    ("anna", "person", &["approve", "propose", "buyer"]),
    ("alan", "person", &["approve", "buyer"]),
    ("bert", "person", &["approve", "finance"]),
    ("cleo", "person", &["approve", "buyer", "finance"]),
    ("emil", "person", &["approve"]),
    ("olaf", "person", &["approve", "buyer", "finance"]),
    ("robo", "service", &["approve", "buyer", "finance"]),
];

const CONFIGURATION: &str = r#"
[destinations.erp]
kind = "http"
url = "http://127.0.0.1:9/orders"
allow_networks = ["127.0.0.0/8"]
[[routes]]
to = ["erp"]
[commands.po_create]
destination = "erp"
risk = "high"
reversibility = "compensatable"
target_idempotent = true
amount = "/amount"
[[approvals]]
when = 'kind == "po_create" && arguments.amount > 2000'
require = { approvers = 2, labels = ["buyer", "finance"] }
[[approvals]]
when = 'kind == "po_create" && arguments.amount > 500'
require = { labels = ["buyer"] }
[[approvals]]
when = 'kind == "po_create" && arguments.amount > 100'
require = "auto"
"#;

/// Numbers that look random and are the same each time (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).unwrap()
    }
}

/// A server and everybody's tokens.
struct Crowd {
    authority: String,
    tokens: Vec<String>,
    refused: AtomicUsize,
}

impl Crowd {
    fn ask(&self, who: usize, method: &str, path: &str, body: &Value) -> Answer {
        let authorization = format!("Bearer {}", self.tokens[who]);
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
        ];
        let body = body.to_string();
        http::ask(&self.authority, method, path, &headers, body.as_bytes()).unwrap()
    }

    fn propose(&self, amount: usize) -> String {
        let body = json!({
            "kind": "po_create", "arguments": { "amount": amount }, "on_behalf_of": "olaf",
        });
        let answer = self.ask(0, "POST", "/v1/commands", &body);
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// One thing that somebody tries.
    fn try_something(&self, dice: &mut Dice, seen: &mut Vec<(String, String)>) {
        let list = self.ask(READER, "GET", "/v1/approvals", &json!({})).json();
        let items = list["items"].as_array().unwrap();
        if items.is_empty() {
            return;
        }
        let one = &items[dice.roll(items.len())];
        let text = |name: &str| one[name].as_str().unwrap().to_owned();
        let (mut id, mut digest) = (text("id"), text("digest"));
        let who = dice.roll(EVERYBODY.len());
        match dice.roll(10) {
            // Seen before, perhaps by others, perhaps of another command by now.
            0 | 1 if !seen.is_empty() => (id, digest) = seen[dice.roll(seen.len())].clone(),
            2 => digest = "0".repeat(64),
            3 => {
                let amount = [50, 300, 900, 3000][dice.roll(4)];
                let body = json!({ "digest": digest, "arguments": { "amount": amount } });
                let path = format!("/v1/commands/{}/edit", text("command"));
                let edited = self.ask(1, "POST", &path, &body);
                assert!([200, 409].contains(&edited.status), "{}", edited.text());
                return;
            }
            _ => {}
        }
        seen.push((id.clone(), digest.clone()));
        let verb = if dice.roll(8) == 0 {
            "reject"
        } else {
            "approve"
        };
        let body = json!({ "digest": digest, "comment": "as agreed" });
        let path = format!("/v1/approvals/{id}/{verb}");
        let answer = self.ask(who, "POST", &path, &body);
        if answer.status != 200 {
            let told = answer.text();
            assert!([403, 409].contains(&answer.status), "{told}");
            assert!(answer.json()["refusal"].is_string(), "{told}");
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Who looks at the list: anybody with the role, here the one whose token has it besides.
const READER: usize = EVERYBODY.len();

fn tokens(dir: &Path) -> Vec<String> {
    let reader: (&str, &str, &[&str]) = ("reader", "service", &["read"]);
    let everybody = EVERYBODY.into_iter().chain([reader]);
    everybody
        .map(|(name, kind, roles)| {
            let mut arguments = vec!["tokens", "create", name, "--data", "data", "--type", kind];
            arguments.extend(roles.iter().flat_map(|role| ["--role", role]));
            let output = run(dir, &arguments);
            assert!(output.status.success(), "{}", stderr(&output));
            stdout(&output).trim().to_owned()
        })
        .collect()
}

#[test]
fn no_command_leaves_without_exactly_the_approval_that_its_policy_asks() {
    let commands = std::env::var("WAYHOLD_APPROVALS_COMMANDS");
    let commands = commands.map_or(COMMANDS, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wayhold.toml"), CONFIGURATION).unwrap();
    let tokens = tokens(dir.path());
    let start = || Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let mut server = start();
    let mut crowd = Crowd {
        authority: server.authority.clone(),
        tokens,
        refused: AtomicUsize::new(0),
    };
    let mut dice = Dice(7);
    for half in 0..2 {
        for _ in 0..commands / 2 {
            crowd.propose([50, 300, 900, 3000][dice.roll(4)]);
        }
        std::thread::scope(|scope| {
            for one in 0..AT_ONCE as u64 {
                let crowd = &crowd;
                scope.spawn(move || {
                    let (mut dice, mut seen) = (Dice(half * 100 + one), Vec::new());
                    for _ in 0..TRIES * commands / 2 {
                        crowd.try_something(&mut dice, &mut seen);
                    }
                });
            }
        });
        if half == 0 {
            server.kill();
            server = start();
            crowd.authority = server.authority.clone();
        }
    }
    assert!(server.terminate().success());
    let exported = run(
        dir.path(),
        &["ledger", "export", "--data", "data", "--out", "out"],
    );
    assert!(exported.status.success(), "{}", stderr(&exported));
    let verified = run(dir.path(), &["ledger", "verify", "out"]);
    assert!(verified.status.success(), "{}", stdout(&verified));
    let records = std::fs::read_to_string(dir.path().join("out/records.jsonl")).unwrap();
    let mut stories: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in records.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let stream = record["stream"].as_str().unwrap();
        if stream.starts_with("cmd:") {
            stories.entry(stream.to_owned()).or_default().push(record);
        }
    }
    assert_eq!(stories.len(), commands / 2 * 2);
    let told: Vec<_> = stories.values().map(|story| judge(story)).collect();
    let refusals: usize = told.iter().map(|told| told.refusals).sum();
    assert_eq!(
        refusals,
        crowd.refused.load(Ordering::SeqCst),
        "every refusal is a record"
    );
    assert!(
        told.iter().any(|told| told.ready) && refusals > 0,
        "nothing was tried"
    );
}

/// What the records of a command tell.
struct Told {
    ready: bool,
    refusals: usize,
}

/// Holds the records of a command against its policies, knowing nothing but them.
fn judge(story: &[Value]) -> Told {
    let mut told = Told {
        ready: false,
        refusals: 0,
    };
    // The requirement and those who may not decide, as they were put on record; who said yes to that.
    let mut asked: Option<(Value, Vec<Value>)> = None;
    let mut bound = Value::Null;
    let mut yes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut required = Value::Null;
    let mut editors = vec![json!("bot"), json!("olaf")];
    for record in story {
        let body = &record["body"];
        match record["type"].as_str().unwrap() {
            "policy.evaluated" => required = body["obligations"][0].clone(),
            "approval.requested" => {
                let forbidden = body["forbid"].as_array().unwrap().clone();
                assert!(
                    editors.iter().all(|one| forbidden.contains(one)),
                    "{record}"
                );
                asked = Some((body["requirement"].clone(), forbidden));
                bound = body["bound_sha256"].clone();
                yes.clear();
            }
            "approval.granted" => {
                let actor = &record["actor"];
                let (_, forbidden) = asked.as_ref().expect("somebody was asked");
                assert_eq!(actor["type"], "person", "{record}");
                assert!(!forbidden.contains(&actor["id"]), "{record}");
                assert_eq!(body["bound_sha256"], bound, "{record}");
                let labels = body["labels"].as_array().unwrap().iter();
                let labels = labels.map(|label| label.as_str().unwrap().to_owned());
                let who = actor["id"].as_str().unwrap().to_owned();
                assert!(
                    yes.insert(who, labels.collect()).is_none(),
                    "twice: {record}"
                );
            }
            "approval.refused" => told.refusals += 1,
            "approval.edited" => {
                editors.push(record["actor"]["id"].clone());
                asked = None;
            }
            "approval.denied" | "approval.expired" => asked = None,
            "command.state" if body["to"] == "ready" => {
                assert!(!told.ready, "twice: {story:#?}");
                told.ready = true;
                match required["approvers"].as_u64() {
                    Some(people) => {
                        assert!(asked.is_some(), "{story:#?}");
                        assert_eq!(yes.len() as u64, people, "{story:#?}");
                        let labels = required["labels"].as_array().unwrap();
                        assert!(
                            sits(labels, &yes.values().collect::<Vec<_>>()),
                            "{story:#?}"
                        );
                    }
                    None => assert_eq!(required, "auto", "{story:#?}"),
                }
                asked = None;
            }
            _ => {}
        }
    }
    told
}

/// Whether each label has a person of its own, by trying.
fn sits(labels: &[Value], people: &[&Vec<String>]) -> bool {
    let Some((label, rest)) = labels.split_first() else {
        return true;
    };
    (0..people.len()).any(|at| {
        let mut others = people.to_vec();
        let person = others.remove(at);
        person.iter().any(|one| label == one) && sits(rest, &others)
    })
}
