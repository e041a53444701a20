//! Whoever decides and whoever holds commands back, from the command line: many requests at once, policies that change
//! meanwhile, policies tried on the past, the brake.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::http;
use crate::support::server::{Server, run, stderr, stdout};
use crate::support::wait_until;

/// Everybody with a token: name, type and roles.
const EVERYBODY: [(&str, &str, &[&str]); 3] = [
    ("bot", "model", &["propose", "read"]),
    ("anna", "person", &["approve", "read"]),
    (
        "olga",
        "person",
        &["admin", "operate", "propose", "read", "audit"],
    ),
];

/// Nobody is at the destination, so that what is ready stays on its way.
fn configuration(policies: &str) -> String {
    format!(
        r#"
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
[commands.refund]
destination = "erp"
risk = "high"
reversibility = "compensatable"
target_idempotent = true
amount = "/amount"
{policies}
"#
    )
}

/// One buyer from 500 on, nobody below.
const ONE: &str = r#"
[[approvals]]
name = "large"
when = 'kind == "po_create" && arguments.amount > 500'
require = { approvers = 1 }
[[approvals]]
name = "small"
when = 'kind == "po_create"'
require = "auto"
"#;

struct Office {
    folder: tempfile::TempDir,
    server: Server,
}

impl Office {
    fn open(policies: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), policies);
        for (name, kind, roles) in EVERYBODY {
            let mut arguments = vec!["tokens", "create", name, "--data", "data", "--type", kind];
            arguments.extend(roles.iter().flat_map(|role| ["--role", role]));
            let output = run(folder.path(), &arguments);
            assert!(output.status.success(), "{}", stderr(&output));
            std::fs::write(folder.path().join(name), stdout(&output).trim()).unwrap();
        }
        let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
        Self { folder, server }
    }

    fn ask(&self, who: &str, method: &str, path: &str, body: &Value) -> Value {
        let token = std::fs::read_to_string(self.folder.path().join(who)).unwrap();
        let authorization = format!("Bearer {token}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
        ];
        let body = body.to_string();
        let answer = http::ask(
            &self.server.authority,
            method,
            path,
            &headers,
            body.as_bytes(),
        )
        .unwrap();
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
        match path {
            "/metrics" => answer.text().into(),
            _ => answer.json(),
        }
    }

    fn propose(&self, kind: &str, amount: u64) -> String {
        let body = json!({ "kind": kind, "arguments": { "amount": amount } });
        let said = self.ask("bot", "POST", "/v1/commands", &body);
        said["id"].as_str().unwrap().to_owned()
    }

    fn state(&self, command: &str) -> String {
        let path = format!("/v1/commands/{command}");
        let said = self.ask("olga", "GET", &path, &json!({}));
        said["state"].as_str().unwrap().to_owned()
    }

    fn waiting(&self) -> Vec<Value> {
        let list = self.ask("anna", "GET", "/v1/approvals", &json!({}));
        list["items"].as_array().unwrap().clone()
    }

    /// How many records of this type a command has.
    fn records(&self, command: &str, kind: &str) -> usize {
        let path = format!("/v1/ledger?stream=cmd:{command}&limit=100");
        let list = self.ask("olga", "GET", &path, &json!({}));
        let items = list["items"].as_array().unwrap().iter();
        items
            .filter(|one| one.get("record").unwrap_or(one)["type"] == kind)
            .count()
    }

    fn cli(&self, who: &str, arguments: &[&str]) -> Output {
        let url = self.server.url();
        let by = ["--server", &url, "--token-file", who];
        run(self.folder.path(), &[arguments, &by].concat())
    }

    /// The same, where it has to work; what it says as JSON.
    fn done(&self, who: &str, arguments: &[&str]) -> Value {
        let output = self.cli(who, &[&["--json"], arguments].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    fn reload(&self, policies: &str) {
        write(self.folder.path(), policies);
        self.ask("olga", "POST", "/v1/config/reload", &json!({}));
    }
}

fn write(folder: &Path, policies: &str) {
    std::fs::write(folder.join("wayhold.toml"), configuration(policies)).unwrap();
}

#[test]
fn many_requests_of_a_policy_are_decided_on_as_they_were_seen_each_on_record() {
    let office = Office::open(ONE);
    let large: Vec<_> = (0..3)
        .map(|n| office.propose("po_create", 600 + n))
        .collect();
    let other = office.propose("refund", 600);
    // Listed first, which decides nothing.
    let all_of = ["approvals", "approve", "--all-of", "large"];
    let listed = office.cli("anna", &[&["--json"], &all_of[..]].concat());
    assert_eq!(listed.status.code(), Some(2), "{}", stderr(&listed));
    let list: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!((&list["count"], office.waiting().len()), (&json!(3), 4));
    let seen = list["seen"].as_str().unwrap().to_owned();
    // One was edited since: then they are not those that were seen.
    let of_first = list["items"].as_array().unwrap().iter();
    let of_first = of_first
        .clone()
        .find(|one| one["command"] == large[0])
        .unwrap();
    let edit = json!({ "digest": of_first["digest"], "arguments": { "amount": 900 } });
    office.ask(
        "olga",
        "POST",
        &format!("/v1/commands/{}/edit", large[0]),
        &edit,
    );
    let confirmed = |seen: &str| {
        let confirm = ["--expect", "3", "--seen", seen, "--comment", "as agreed"];
        office.cli("anna", &[&["--json"], &all_of[..], &confirm].concat())
    };
    let refused = confirmed(&seen);
    assert!(!refused.status.success());
    assert!(
        large
            .iter()
            .all(|id| office.state(id) == "pending_approval")
    );
    let listed = office.cli("anna", &[&["--json"], &all_of[..]].concat());
    let list: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let done = confirmed(list["seen"].as_str().unwrap());
    assert!(done.status.success(), "{}", stderr(&done));
    for id in &large {
        assert_ne!(office.state(id), "pending_approval");
        assert_eq!(office.records(id, "approval.granted"), 1);
        assert_eq!(office.records(id, "approval.consumed"), 1);
    }
    // The other one was asked for by its risk, and is rejected the same way.
    assert_eq!(office.state(&other), "pending_approval");
    let all_of = [
        "approvals",
        "reject",
        "--all-of",
        "default",
        "--kind",
        "refund",
        "--comment",
        "no",
    ];
    let listed = office.cli("anna", &[&["--json"], &all_of[..]].concat());
    let list: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let seen = list["seen"].as_str().unwrap();
    office.done(
        "anna",
        &[&all_of[..], &["--expect", "1", "--seen", seen]].concat(),
    );
    assert_eq!(office.state(&other), "rejected");
    assert_eq!(office.records(&other, "approval.denied"), 1);
    let metrics = office.ask("olga", "GET", "/metrics", &json!({}));
    for line in [
        r#"wayhold_approvals_total{outcome="approved"} 3"#,
        r#"wayhold_approvals_total{outcome="rejected"} 1"#,
        "wayhold_approval_decision_seconds_count 4",
        r#"wayhold_commands{state="rejected"} 1"#,
    ] {
        assert!(metrics.as_str().unwrap().contains(line), "{line}");
    }
    assert!(office.server.terminate().success());
}

#[test]
fn what_waits_is_asked_again_where_policies_require_more_and_never_let_go_where_they_require_less()
{
    let office = Office::open(ONE);
    let waits = office.propose("po_create", 600);
    let before = office.waiting()[0].clone();
    // Two from 500 on: the request is void, and another one takes its place.
    office.reload(&ONE.replace("approvers = 1", "approvers = 2"));
    wait_until("it was asked again", || {
        let waiting = office.waiting();
        waiting.len() == 1 && waiting[0]["id"] != before["id"]
    });
    assert_eq!(office.records(&waits, "approval.invalidated"), 1);
    let now = office.waiting()[0].clone();
    let path = format!("/v1/approvals/{}/approve", now["id"].as_str().unwrap());
    let said = json!({ "digest": now["digest"] });
    assert_eq!(office.ask("anna", "POST", &path, &said)["state"], "pending");
    // Nobody at all: of itself nothing becomes easier, and what comes from now on goes by the new policies.
    office.reload(&ONE.replace("{ approvers = 1 }", "\"auto\""));
    let later = office.propose("po_create", 600);
    assert_ne!(office.state(&later), "pending_approval");
    assert_eq!(office.state(&waits), "pending_approval");
    assert_eq!(office.waiting()[0]["id"], now["id"]);
    // Never: what waits is denied.
    office.reload(&ONE.replace("{ approvers = 1 }", "\"deny\""));
    wait_until("it was denied", || office.state(&waits) == "denied");
    assert!(office.waiting().is_empty());
    assert!(office.server.terminate().success());
}

#[test]
fn policies_are_tried_on_the_past_without_being_in_force() {
    let office = Office::open(ONE);
    for amount in [100, 400, 600] {
        office.propose("po_create", amount);
    }
    let tried = ONE.replace("> 500", "> 300");
    let body = json!({ "policies": tried });
    let found = office.ask("olga", "POST", "/v1/approvals/simulate", &body);
    assert_eq!(
        (&found["commands"], &found["stricter"], &found["easier"]),
        (&json!(3), &json!(1), &json!(0)),
        "{found}"
    );
    assert_eq!(found["items"][0]["amount"], "400");
    std::fs::write(office.folder.path().join("new.toml"), &tried).unwrap();
    let told = office.done("olga", &["approvals", "simulate", "new.toml"]);
    assert_eq!(told["items"], found["items"]);
    let wrong =
        json!({ "policies": "[[approvals]]\nwhen = 'kind =='\nrequire = \"auto\"" }).to_string();
    let token = std::fs::read_to_string(office.folder.path().join("olga")).unwrap();
    let by = format!("Bearer {token}");
    let headers = [
        ("authorization", by.as_str()),
        ("content-type", "application/json"),
    ];
    let authority = &office.server.authority;
    let refused = http::ask(
        authority,
        "POST",
        "/v1/approvals/simulate",
        &headers,
        wrong.as_bytes(),
    );
    let refused = refused.unwrap();
    assert!((400..500).contains(&refused.status), "{}", refused.text());
    // Nothing of it is in force.
    let another = office.propose("po_create", 400);
    assert_ne!(office.state(&another), "pending_approval");
    assert_eq!(office.waiting().len(), 1);
    assert!(office.server.terminate().success());
}

#[test]
fn the_command_line_halts_edits_and_lets_go_on() {
    let office = Office::open(ONE);
    let halt = [
        "commands",
        "halt",
        "--kind",
        "po_create",
        "--reason",
        "prices are wrong",
    ];
    assert_eq!(office.done("olga", &halt)["changed"], true);
    assert_eq!(office.done("olga", &halt)["changed"], false);
    let halts = office.done("olga", &["commands", "halts"]);
    let told = &halts["items"][0];
    assert_eq!(
        (&told["scope"], &told["name"], &told["by"], &told["reason"]),
        (
            &json!("kind"),
            &json!("po_create"),
            &json!("olga"),
            &json!("prices are wrong")
        )
    );
    // What is proposed meanwhile is taken, and stays.
    let small = office.propose("po_create", 5);
    let large = office.propose("po_create", 600);
    assert_eq!(office.state(&small), "ready");
    // Other arguments for what waits: below the policy's amount nobody is asked.
    let digest = office.waiting()[0]["digest"].as_str().unwrap().to_owned();
    std::fs::write(office.folder.path().join("less.json"), r#"{"amount": 50}"#).unwrap();
    let edit = [
        "commands",
        "edit",
        &large,
        "--arguments",
        "less.json",
        "--digest",
    ];
    let wrong = "0".repeat(64);
    assert!(
        !office
            .cli("olga", &[&edit[..], &[&wrong]].concat())
            .status
            .success()
    );
    let edited = office.done("olga", &[&edit[..], &[&digest]].concat());
    assert_eq!(edited["state"], "ready");
    assert_ne!(edited["digest"], digest);
    assert_eq!(office.records(&large, "command.edited"), 1);
    assert_eq!(office.records(&small, "attempt.started"), 0);
    let go_on = [
        "commands",
        "continue",
        "--kind",
        "po_create",
        "--reason",
        "right again",
    ];
    assert_eq!(office.done("olga", &go_on)["halted"], false);
    wait_until("both are on their way", || {
        [&small, &large]
            .iter()
            .all(|id| office.records(id, "attempt.started") > 0)
    });
    let needs = office.cli("bot", &halt);
    assert!(!needs.status.success(), "a proposer holds nothing back");
    assert!(office.server.terminate().success());
}
