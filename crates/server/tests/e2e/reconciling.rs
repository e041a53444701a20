//! Targets that are asked on a schedule, about what the ledger sent and for what it never did.

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::Server;
use crate::support::wait_for;

/// The first record of a stream that is as wanted.
fn record(server: &Server, stream: &str, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    let list = server.get(&format!("/v1/ledger?stream={stream}&limit=100"));
    let items = list["items"].as_array()?.iter();
    let mut records = items.map(|one| one.get("record").unwrap_or(one).clone());
    records.find(is_it)
}

fn propose(server: &Server, amount: u64) -> String {
    let body = json!({ "kind": "refund", "arguments": { "amount": amount } }).to_string();
    let headers = [("content-type", "application/json")];
    let answer = server.ask("POST", "/v1/commands", &headers, body.as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn found(server: &Server, stream: &str, result: &str) -> Value {
    wait_for(&format!("{result} in {stream}"), || {
        record(server, stream, |record| {
            record["type"] == "reconcile.result" && record["body"]["result"] == result
        })
    })
}

/// Targets of refunds, and where what was asked of them lies.
struct Refunds {
    folder: tempfile::TempDir,
    target: Receiver,
    asked: Receiver,
    listed: Receiver,
}

impl Refunds {
    fn new() -> Self {
        let listed = Receiver::start(200);
        listed.say(r#"{"orders":[]}"#);
        Self {
            folder: tempfile::tempdir().unwrap(),
            target: Receiver::start(201),
            asked: Receiver::start(404),
            listed,
        }
    }

    fn server(&self, on_schedule: bool) -> Server {
        let schedule = format!(
            r#"every = "1s"
list = {{ url = "http://{}/refunds?since={{time}}", items = "/orders", id = "/key" }}"#,
            self.listed.authority
        );
        let text = format!(
            r#"
[network]
allow = ["127.0.0.0/8"]
[destinations.erp]
kind = "http"
url = "http://{}/refunds"
[[routes]]
to = ["erp"]
[commands.refund]
destination = "erp"
risk = "low"
reversibility = "compensatable"
target_idempotent = true
[commands.refund.reconcile]
url = "http://{}/refunds/{{id}}"
{}
[[approvals]]
when = 'arguments.amount > 100'
require = "deny"
"#,
            self.target.authority,
            self.asked.authority,
            if on_schedule { schedule.as_str() } else { "" }
        );
        std::fs::write(self.folder.path().join("wayhold.toml"), text).unwrap();
        Server::start(self.folder.path(), &["--config", "wayhold.toml"])
    }
}

#[test]
fn what_a_target_lost_or_did_by_itself_is_found_on_schedule_and_on_record() {
    let refunds = Refunds::new();
    let (asked, listed) = (&refunds.asked, &refunds.listed);
    let server = refunds.server(true);
    let lost = propose(&server, 5);
    let done = server.get(&format!("/v1/commands/{lost}?wait=20s"));
    assert_eq!(done["state"], "succeeded");
    // The target does not have what it confirmed.
    found(&server, &format!("cmd:{lost}"), "absent");
    // It has what was denied.
    asked.answer(200);
    let denied = propose(&server, 500);
    found(&server, &format!("cmd:{denied}"), "unexpected");
    // It did what nobody sent from here; what was sent is none of that.
    listed.say(&json!({ "orders": [{ "key": "by hand" }, { "key": lost }] }).to_string());
    let stranger = found(&server, "reconcile:refund", "unexpected");
    assert_eq!(stranger["body"]["id"], "by hand");
    let metrics = server.ask("GET", "/metrics", &[], b"").text();
    for result in ["absent", "unexpected"] {
        let line = format!(r#"wayhold_reconciled_total{{kind="refund",result="{result}"}}"#);
        assert!(metrics.contains(&line), "{metrics}");
    }
    let run = wait_for("a pass on record", || {
        record(&server, "reconcile:refund", |record| {
            record["type"] == "reconcile.run"
        })
    });
    assert_eq!(run["body"]["kind"], "refund");
    assert!(server.terminate().success());
    // After a restart passes go on where they were: what was asked about then is not asked about again.
    listed.say(r#"{"orders":[]}"#);
    let server = refunds.server(false);
    let between = propose(&server, 6);
    let done = server.get(&format!("/v1/commands/{between}?wait=20s"));
    assert_eq!(done["state"], "succeeded");
    assert!(server.terminate().success());
    let server = refunds.server(true);
    found(&server, &format!("cmd:{between}"), "confirmed");
    let about = |id: &str| {
        let list = server.get(&format!("/v1/ledger?stream=cmd:{id}&limit=100"));
        let items = list["items"].as_array().unwrap().iter();
        let of = items.filter(|one| one.get("record").unwrap_or(one)["type"] == "reconcile.result");
        of.count()
    };
    assert_eq!(about(&denied), 1);
    assert!(server.terminate().success());
}

#[test]
fn what_a_target_gave_no_answer_about_is_asked_again_however_quiet_it_is_and_over_a_restart() {
    let refunds = Refunds::new();
    refunds.asked.answer(500);
    let server = refunds.server(true);
    let silent = propose(&server, 7);
    found(&server, &format!("cmd:{silent}"), "unreachable");
    wait_for("that on record", || {
        record(&server, "reconcile:refund", |record| {
            let left = record["body"]["unanswered"].as_array();
            left.is_some_and(|ids| ids.contains(&json!(silent)))
        })
    });
    assert!(server.terminate().success());
    refunds.asked.answer(200);
    let server = refunds.server(true);
    found(&server, &format!("cmd:{silent}"), "confirmed");
    assert!(server.terminate().success());
}
