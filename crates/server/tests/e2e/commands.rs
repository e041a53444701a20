//! Commands from proposal to outcome, undo and reconciliation, through the public faces only.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};
use crate::support::{wait_for, wait_until};

/// A folder with a configuration of commands for a target, and `more` kinds and policies.
fn folder(target: &Receiver, destination: &str, more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let schema = json!({
        "type": "object", "required": ["sku", "qty"], "additionalProperties": false,
        "properties": {"sku": {"type": "string"}, "qty": {"type": "integer", "minimum": 1},
                       "amount": {"type": "number"}, "ticket": {"type": "integer"}},
    });
    std::fs::write(folder.path().join("po.schema.json"), schema.to_string()).unwrap();
    let authority = &target.authority;
    let text = format!(
        r#"
[network]
allow = ["127.0.0.0/8"]
[destinations.erp]
kind = "http"
url = "http://{authority}/orders"
retry = {{ base = "50ms", cap = "200ms" }}
{destination}
[destinations.rest]
kind = "null"
[[routes]]
to = ["rest"]
[commands.po_create]
destination = "erp"
arguments = {{ file = "po.schema.json" }}
risk = "low"
reversibility = "compensatable"
target_idempotent = true
compensation = "po_cancel"
compensation_arguments = {{ po = "/result/id", sku = "/arguments/sku" }}
amount = "/amount"
order_key = "/sku"
[commands.po_cancel]
destination = "erp"
risk = "low"
reversibility = "reversible"
target_idempotent = true
{more}
"#
    );
    std::fs::write(folder.path().join("wayhold.toml"), text).unwrap();
    folder
}

fn start(folder: &Path) -> Server {
    Server::start(folder, &["--config", "wayhold.toml"])
}

fn propose(server: &Server, body: &Value) -> String {
    let answer = server.ask(
        "POST",
        "/v1/commands",
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let said = answer.json();
    let id = said["id"].as_str().unwrap().to_owned();
    assert_eq!(
        answer.header("location"),
        Some(&*format!("/v1/commands/{id}"))
    );
    assert_eq!(said["kind"], body["kind"]);
    id
}

fn order(sku: &str) -> Value {
    json!({"kind": "po_create", "arguments": {"sku": sku, "qty": 12}})
}

fn ended(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/commands/{id}?wait=20s"))
}

fn records(server: &Server, id: &str) -> Vec<Value> {
    let list = server.get(&format!("/v1/ledger?stream=cmd:{id}"));
    list["items"].as_array().unwrap().clone()
}

fn types(records: &[Value]) -> Vec<String> {
    let kind = |record: &Value| {
        let record = record.get("record").unwrap_or(record);
        let to = record["body"]["to"].as_str().map(|to| format!(":{to}"));
        format!(
            "{}{}",
            record["type"].as_str().unwrap(),
            to.unwrap_or_default()
        )
    };
    records.iter().map(kind).collect()
}

/// How often each key came to the target.
fn keys(target: &Receiver) -> BTreeMap<String, usize> {
    let mut keys = BTreeMap::new();
    for request in target.received() {
        *keys
            .entry(request.headers["idempotency-key"].clone())
            .or_default() += 1;
    }
    keys
}

#[test]
fn a_command_is_sent_once_under_its_own_id_and_every_step_of_it_is_in_the_ledger() {
    let target = Receiver::start(201);
    target.say(r#"{"id":4711}"#);
    let folder = folder(&target, "", "");
    let server = start(folder.path());
    let id = propose(&server, &order("880004"));
    let command = ended(&server, &id);
    assert_eq!(
        (&command["state"], &command["result"]["id"]),
        (&json!("succeeded"), &json!(4711))
    );
    assert_eq!(command["attempts"][0]["outcome"], "delivered");
    let came = target.received();
    assert_eq!(came.len(), 1);
    assert_eq!(came[0].headers["idempotency-key"], id);
    assert_eq!(came[0].body, br#"{"qty":12,"sku":"880004"}"#);
    assert_eq!(
        types(&records(&server, &id)),
        [
            "command.accepted",
            "policy.evaluated",
            "command.state:ready",
            "command.state:sending",
            "attempt.started",
            "attempt.finished",
            "command.state:succeeded",
        ]
    );
    let listed = server.get("/v1/commands?state=succeeded&kind=po_create");
    assert_eq!(listed["items"][0]["id"], json!(id));
}

#[test]
fn a_key_is_one_command_and_what_does_not_fit_is_refused_with_its_place() {
    let target = Receiver::start(201);
    let folder = folder(&target, "", "");
    let server = start(folder.path());
    let keyed = |key: &str, body: &Value| {
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", key),
        ];
        server.ask(
            "POST",
            "/v1/commands",
            &headers,
            body.to_string().as_bytes(),
        )
    };
    let first = keyed("\"k-1\"", &order("1"));
    let again = keyed("k-1", &order("1"));
    assert_eq!((first.status, again.status), (202, 202));
    assert_eq!(first.json(), again.json());
    assert_eq!(
        (
            first.header("idempotency-replayed"),
            again.header("idempotency-replayed")
        ),
        (None, Some("true"))
    );
    assert_eq!(keyed("k-1", &order("2")).status, 422);
    for (body, status, place) in [
        (
            json!({"kind": "po_create", "arguments": {"sku": "1", "qty": 0}}),
            422,
            "#/arguments/qty",
        ),
        (
            json!({"kind": "po_create", "arguments": {"qty": 1}}),
            422,
            "sku",
        ),
        (json!({"kind": "nothing"}), 422, "nothing"),
        (json!({"kind": "po_create", "colour": 1}), 400, "colour"),
        (
            json!({"kind": "po_cancel", "depends_on": ["0191e0a4-5c1e-7d3b-9c4f-2f6f0a7b8c9d"]}),
            400,
            "depends_on",
        ),
        (
            json!({"kind": "po_cancel", "arguments": {"n": 9007199254740993_u64}}),
            400,
            "9007199254740993",
        ),
    ] {
        let refused = keyed("k-2", &body);
        assert_eq!(refused.status, status, "{body}: {}", refused.text());
        assert!(refused.text().contains(place), "{body}: {}", refused.text());
    }
    // A refusal before anything was kept leaves the key free.
    assert_eq!(keyed("k-2", &order("3")).status, 202);
    let dry = server.post(
        "/v1/commands",
        &json!({"kind": "po_create", "arguments": {"sku": "9", "qty": 1}, "dry_run": true})
            .to_string(),
    );
    assert_eq!(
        (&dry["dry_run"], &dry["requirement"]),
        (&json!(true), &dry["requirement"])
    );
    let event =
        r#"{"specversion":"1.0","id":"1","source":"/commands","type":"po_create","data":{}}"#;
    let headers = [("content-type", "application/cloudevents+json")];
    assert_eq!(
        server
            .ask("POST", "/v1/events", &headers, event.as_bytes())
            .status,
        400
    );
    let listed = server.get("/v1/commands");
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
}

#[test]
fn what_was_taken_back_while_the_target_was_away_is_never_sent() {
    let target = Receiver::start(429);
    let folder = folder(&target, "breaker = { failures = 1000 }", "");
    let server = start(folder.path());
    let (gone, stays) = (propose(&server, &order("1")), propose(&server, &order("2")));
    wait_until("both were tried", || keys(&target).len() == 2);
    let cancelled = wait_for("a moment at which it is not on the way", || {
        let path = format!("/v1/commands/{gone}/cancel");
        let answer = server.ask("POST", &path, &[], br#"{"reason":"not wanted"}"#);
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(cancelled["state"], "cancelled");
    let before = keys(&target)[&gone];
    target.answer(201);
    assert_eq!(ended(&server, &stays)["state"], "succeeded");
    server.wait_for_destination("erp", "nothing is pending", |one| one["pending"] == 0);
    assert_eq!(keys(&target)[&gone], before);
    assert!(types(&records(&server, &gone)).contains(&"command.cancelled:cancelled".to_owned()));
    let late = server.ask("POST", &format!("/v1/commands/{stays}/cancel"), &[], b"{}");
    assert_eq!(late.status, 409, "{}", late.text());
}

#[test]
fn what_needs_a_result_waits_for_it_and_is_sent_with_it() {
    let target = Receiver::start(429);
    target.say(r#"{"id":42}"#);
    let folder = folder(&target, "breaker = { failures = 1000 }", "");
    let server = start(folder.path());
    let first = propose(&server, &order("1"));
    let second = propose(
        &server,
        &json!({
            "kind": "po_create", "depends_on": [first],
            "arguments": {"sku": "1", "qty": 1, "ticket": {"$result": first, "path": "/id"}},
        }),
    );
    wait_until("the first was tried", || !keys(&target).is_empty());
    assert!(!keys(&target).contains_key(&second));
    target.answer(201);
    assert_eq!(ended(&server, &second)["state"], "succeeded");
    let sent = target.received().pop().unwrap();
    assert_eq!(sent.body, br#"{"qty":1,"sku":"1","ticket":42}"#);
    // One that needs what was taken back never comes to be.
    target.answer(429);
    let doomed = propose(
        &server,
        &json!({"kind": "po_cancel", "expires_at": "2099-01-01T00:00:00Z"}),
    );
    let rests = propose(
        &server,
        &json!({"kind": "po_cancel", "depends_on": [doomed]}),
    );
    wait_for("it is taken back", || {
        let answer = server.ask("POST", &format!("/v1/commands/{doomed}/cancel"), &[], b"{}");
        (answer.status == 200).then_some(())
    });
    let dead = ended(&server, &rests);
    assert_eq!(dead["state"], "dead");
    assert!(dead["reason"].as_str().unwrap().contains(&doomed));
}

const ASKED: &str = r#"
[commands.pay]
destination = "erp"
risk = "low"
reversibility = "compensatable"
[commands.refund]
destination = "erp"
risk = "low"
reversibility = "compensatable"
reconcile = { url = "http://ASKED/orders/{id}", compare = { "/amount" = "/total" } }
"#;

#[test]
fn an_unknown_outcome_is_asked_for_and_never_sent_again_blindly() {
    let (target, asked) = (Receiver::start(500), Receiver::start(404));
    let more = ASKED.replace("ASKED", &asked.authority);
    let folder = folder(&target, "breaker = { failures = 1000 }", &more);
    let server = start(folder.path());
    // Nobody can ask: a person decides.
    let blind = propose(&server, &json!({"kind": "pay", "arguments": {"amount": 5}}));
    let dead = ended(&server, &blind);
    assert_eq!(
        (&dead["state"], keys(&target)[&blind]),
        (&json!("dead"), 1),
        "{dead}"
    );
    let assign = format!("/v1/commands/{blind}/assign");
    server.post(&assign, r#"{"owner":"ada","comment":"ask the bank"}"#);
    assert_eq!(
        server.ask("POST", &assign, &[], br#"{"owner":" "}"#).status,
        400
    );
    let path = format!("/v1/commands/{blind}/reconcile");
    assert_eq!(server.ask("POST", &path, &[], b"{}").status, 409);
    assert_eq!(
        server.post(&path, r#"{"as":"succeeded"}"#)["state"],
        "succeeded"
    );
    let letters: Vec<_> = types(&records(&server, &blind))
        .into_iter()
        .filter(|kind| kind.starts_with("dlq."))
        .collect();
    assert_eq!(letters, ["dlq.entered", "dlq.assigned", "dlq.resolved"]);
    let late = server.ask("POST", &assign, &[], br#"{"owner":"ada"}"#);
    assert_eq!(late.status, 409, "{}", late.text());
    // The target says that it is not there: it is sent again, and said to be there: it is done.
    let lost = propose(
        &server,
        &json!({"kind": "refund", "arguments": {"amount": 5}}),
    );
    wait_until("it was sent again", || {
        keys(&target).get(&lost).copied() > Some(1)
    });
    asked.say(r#"{"total":"5"}"#);
    asked.answer(200);
    let done = ended(&server, &lost);
    assert_eq!(
        (&done["state"], &done["result"]["total"]),
        (&json!("succeeded"), &json!("5"))
    );
    // Something else is there: it is given up, and a person looks.
    asked.say(r#"{"total":6}"#);
    let other = propose(
        &server,
        &json!({"kind": "refund", "arguments": {"amount": 5}}),
    );
    let dead = ended(&server, &other);
    assert_eq!(
        (&dead["state"], keys(&target)[&other]),
        (&json!("dead"), 1),
        "{dead}"
    );
    let found = server.post("/v1/commands/reconcile", r#"{"kind":"refund"}"#);
    let results = found["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["result"].clone());
    assert_eq!(
        results.collect::<Vec<_>>(),
        [json!("different"), json!("different")]
    );
}

#[test]
fn undoing_makes_up_for_what_rests_on_it_first_and_asking_twice_plans_nothing_new() {
    let target = Receiver::start(201);
    target.say(r#"{"id":7}"#);
    let folder = folder(&target, "", "");
    let server = start(folder.path());
    let first = propose(&server, &order("1"));
    ended(&server, &first);
    let mut rests = order("2");
    rests["depends_on"] = json!([first]);
    let rests = propose(&server, &rests);
    ended(&server, &rests);
    let undone = server.post(
        &format!("/v1/commands/{first}/undo"),
        r#"{"reason":"declared in error"}"#,
    );
    let steps = undone["items"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    let again = server.post(&format!("/v1/commands/{first}/undo"), "{}");
    let ids = |list: &Value| {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&again), ids(&undone));
    for step in steps {
        assert_eq!(
            ended(&server, step["id"].as_str().unwrap())["state"],
            "succeeded"
        );
    }
    for id in [&first, &rests] {
        assert_eq!(
            server.get(&format!("/v1/commands/{id}"))["state"],
            "compensated"
        );
        assert!(types(&records(&server, id)).contains(&"compensation.finished".to_owned()));
    }
    let sent: Vec<_> = target
        .received()
        .iter()
        .map(|one| String::from_utf8(one.body.clone()).unwrap())
        .collect();
    assert_eq!(
        sent[2..],
        [r#"{"po":7,"sku":"2"}"#, r#"{"po":7,"sku":"1"}"#]
    );
    let planned = |id| {
        types(&records(&server, id))
            .into_iter()
            .filter(|kind| kind == "compensation.planned")
            .count()
    };
    assert_eq!((planned(&first), planned(&rests)), (1, 0));
    // Done again, it is another command.
    let replayed = server.post(&format!("/v1/commands/{first}/replay"), "{}");
    let of_first = records(&server, &first);
    let last = of_first.last().unwrap();
    assert_eq!(
        (&last["type"], &last["body"]["by_command"]),
        (&json!("command.superseded"), &replayed["id"])
    );
    let replayed = ended(&server, replayed["id"].as_str().unwrap());
    assert_eq!(
        (&replayed["state"], &replayed["replays"]),
        (&json!("succeeded"), &json!(first))
    );
}

#[test]
fn whatever_was_accepted_is_done_once_after_the_server_was_killed() {
    let target = Receiver::start(201);
    target.hold(true);
    let folder = folder(&target, "", "");
    let server = start(folder.path());
    let ids: Vec<_> = (0..20)
        .map(|n| propose(&server, &order(&n.to_string())))
        .collect();
    wait_until("some are on the way", || !target.received().is_empty());
    server.kill();
    target.hold(false);
    let server = start(folder.path());
    for id in &ids {
        assert_eq!(ended(&server, id)["state"], "succeeded");
    }
    let keys = keys(&target);
    assert_eq!(keys.len(), ids.len());
    let exported = {
        assert!(server.terminate().success());
        run(
            folder.path(),
            &["ledger", "export", "--data", "data", "--out", "out"],
        )
    };
    assert!(exported.status.success(), "{}", stderr(&exported));
    let verified = run(folder.path(), &["ledger", "verify", "out"]);
    assert!(
        verified.status.success(),
        "{}{}",
        stdout(&verified),
        stderr(&verified)
    );
    let checked = run(folder.path(), &["store", "verify", "--data", "data"]);
    assert!(
        checked.status.success(),
        "{}{}",
        stdout(&checked),
        stderr(&checked)
    );
}

#[test]
fn the_command_line_proposes_waits_and_tells() {
    let target = Receiver::start(201);
    target.say(r#"{"id":7}"#);
    let folder = folder(&target, "", "");
    let server = start(folder.path());
    let url = server.url();
    let cli = |arguments: &[&str]| {
        let all = [&["--json", "commands"], arguments, &["--server", &url]].concat();
        let output = run(folder.path(), &all);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let wanted = r#"{"sku":"1","qty":2}"#;
    let first = cli(&[
        "propose",
        "po_create",
        wanted,
        "--key",
        "k",
        "--rationale",
        "out of stock",
    ]);
    assert_eq!(
        cli(&[
            "propose",
            "po_create",
            wanted,
            "--key",
            "k",
            "--rationale",
            "out of stock"
        ])["id"],
        first["id"]
    );
    let id = first["id"].as_str().unwrap();
    let shown = cli(&["show", id, "--wait", "20s"]);
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(shown["said"]["rationale"]["summary"], "out of stock");
    assert_eq!(
        cli(&["list", "--state", "succeeded"])["items"][0]["id"],
        first["id"]
    );
    let undone = cli(&["undo", id]);
    let step = undone["items"][0]["id"].as_str().unwrap();
    assert_eq!(cli(&["show", step, "--wait", "20s"])["state"], "succeeded");
    let missing = run(
        folder.path(),
        &["commands", "show", "po-1", "--server", &url],
    );
    assert_eq!(missing.status.code(), Some(4));
}
