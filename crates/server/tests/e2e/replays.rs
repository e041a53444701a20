//! Replays through the built binary: what arrives again and how it says so, what is held for it, what a kill in the
//! middle repeats, and what operators do with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::receiver::{Received, Receiver};
use crate::support::server::{Server, run, stdout};
use crate::support::{wait_for, wait_until};

/// Two webhooks, of which routes name the first.
fn start(dir: &Path, receivers: [&Receiver; 2], retention: &str) -> Server {
    let [wms, erp] = receivers.map(|receiver| &receiver.authority);
    let text = format!(
        r#"
data = "data"
listen = ["127.0.0.1:0"]

[store]
segment_rows = 16

[retention]
time = "{retention}"

[destinations.wms]
kind = "webhook"
url = "http://{wms}/hook"
allow_networks = ["127.0.0.0/8"]

[destinations.erp]
kind = "webhook"
url = "http://{erp}/hook"
allow_networks = ["127.0.0.0/8"]

[[routes]]
to = ["wms"]
"#
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

/// Sends events of three keys and waits until they arrived.
fn deliver(server: &Server, count: usize) {
    for n in 0..count {
        let kind = ["order.created", "order.paid"][n % 2];
        server.send(kind, &n.to_string(), &(n % 3).to_string());
    }
    server.wait_for_destination("wms", "all delivered", |one| {
        one["accounting"]["delivered"] == count
    });
}

fn begin(server: &Server, body: &Value) -> Value {
    server.post("/v1/replays", &body.to_string())
}

fn replay(server: &Server, id: &Value) -> Value {
    server.get(&format!("/v1/replays/{id}"))
}

fn wait_for_state(server: &Server, id: &Value, state: &str) -> Value {
    wait_for(&format!("replay {id} is {state}"), || {
        Some(replay(server, id)).filter(|replay| replay["state"] == state)
    })
}

/// What came for replays, and each event's number.
fn replayed(receiver: &Receiver) -> Vec<(usize, Received)> {
    let of_replays = receiver.received().into_iter();
    let of_replays = of_replays.filter(|one| one.headers.contains_key("wayhold-replay"));
    let number = |one: &Received| one.headers["ce-id"].parse().unwrap();
    of_replays.map(|one| (number(&one), one)).collect()
}

fn numbers(received: &[(usize, Received)]) -> Vec<usize> {
    received.iter().map(|(number, _)| *number).collect()
}

/// Whether the events of each key come in order, where a repeat may come at any time after the first.
fn assert_order(numbers: &[usize]) {
    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::new();
    for number in numbers.iter().filter(|number| seen.insert(**number)) {
        let before = last.insert(number % 3, *number);
        assert!(before.is_none_or(|before| before < *number), "{numbers:?}");
    }
}

fn json_of(dir: &Path, server: &Server, arguments: &[&str]) -> Value {
    let url = server.url();
    let output = run(dir, &[arguments, &["--json", "--server", &url]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn what_is_selected_arrives_again_in_order_says_so_and_changes_no_account() {
    let dir = tempfile::tempdir().unwrap();
    let (wms, erp) = (Receiver::start(204), Receiver::start(204));
    let server = start(dir.path(), [&wms, &erp], "1h");
    deliver(&server, 60);
    let first: BTreeMap<String, String> = wms
        .received()
        .into_iter()
        .map(|one| {
            (
                one.headers["ce-id"].clone(),
                one.headers["webhook-id"].clone(),
            )
        })
        .collect();
    let dry = begin(&server, &json!({"destination": "wms", "dry_run": true}));
    assert_eq!(
        (&dry["selected"], &dry["complete"]),
        (&json!(60), &json!(true)),
        "{dry}"
    );
    assert_eq!(server.get("/v1/replays")["items"], json!([]));

    let json_body = [("content-type", "application/json")];
    let paid = json!({"destination": "wms", "select": {"type": "order.paid"}}).to_string();
    let answer = server.ask("POST", "/v1/replays", &json_body, paid.as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    let id = answer.json()["id"].clone();
    assert_eq!(
        answer.header("location"),
        Some(&*format!("/v1/replays/{id}"))
    );
    let done = wait_for_state(&server, &id, "done");
    for (field, expected) in [
        ("selected", 30),
        ("delivered", 30),
        ("remaining", 0),
        ("dead", 0),
        ("skipped", 0),
        ("missing", 0),
        ("failed", 0),
    ] {
        assert_eq!(done[field], expected, "{field}: {done}");
    }
    let again = replayed(&wms);
    let mut found = numbers(&again);
    assert_order(&found);
    found.sort_unstable();
    assert_eq!(found, (0..60).filter(|n| n % 2 == 1).collect::<Vec<_>>());
    for (number, one) in &again {
        assert_eq!(one.headers["webhook-id"], first[&number.to_string()]);
        assert_eq!(one.headers["wayhold-replay"], id.to_string());
    }
    let status = server.wait_for_destination("wms", "its account", |_| true);
    let account = &status["accounting"];
    assert_eq!(
        (
            &account["accepted"],
            &account["delivered"],
            &account["holds"]
        ),
        (&json!(60), &json!(60), &json!(true))
    );
    let metrics = server.ask("GET", "/metrics", &[], b"").text();
    assert!(
        metrics.contains("wayhold_replayed_total{destination=\"wms\"} 30"),
        "{metrics}"
    );

    // To another destination, by ids, on the command line.
    let started = json_of(
        dir.path(),
        &server,
        &["replays", "start", "--to", "erp", "--id", "3", "--id", "8"],
    );
    wait_for_state(&server, &started["id"], "done");
    // Of different keys, so in any order.
    let found: BTreeSet<usize> = numbers(&replayed(&erp)).into_iter().collect();
    assert_eq!(found, BTreeSet::from([3, 8]));
    let listed = json_of(dir.path(), &server, &["replays", "list"]);
    assert_eq!(listed["items"][0]["to"], "erp");
    assert!(server.terminate().success());
}

#[test]
fn a_kill_in_the_middle_repeats_little_and_loses_nothing_although_the_retention_has_passed() {
    const COUNT: usize = 120;
    let dir = tempfile::tempdir().unwrap();
    let (wms, erp) = (Receiver::start(204), Receiver::start(503));
    let server = start(dir.path(), [&wms, &erp], "1h");
    deliver(&server, COUNT);
    let retained = |server: &Server| {
        let retained = server.get("/v1/status")["store"]["segments"]["retained"].clone();
        retained.as_u64().unwrap()
    };
    wait_until("what is resolved is kept", || retained(&server) >= 7);
    let id = begin(&server, &json!({"destination": "wms", "to": "erp"}))["id"].clone();
    wait_until("it has tried", || !replayed(&erp).is_empty());
    server.kill();

    // Nothing is kept any more but for the replay.
    let server = start(dir.path(), [&wms, &erp], "0s");
    wait_for_state(&server, &id, "running");
    let before = replayed(&erp).len();
    wait_until("it tries again", || replayed(&erp).len() > before);
    assert!(retained(&server) >= 7);
    erp.answer(204);
    wait_until("some of it arrived", || {
        replay(&server, &id)["delivered"].as_u64() >= Some(20)
    });
    server.kill();
    let server = start(dir.path(), [&wms, &erp], "0s");
    let done = wait_for_state(&server, &id, "done");
    assert_eq!(
        (&done["selected"], &done["missing"], &done["remaining"]),
        (&json!(COUNT), &json!(0), &json!(0)),
        "{done}"
    );
    let delivered = done["delivered"].as_u64().unwrap();
    assert_eq!(delivered, COUNT as u64);
    let found: BTreeSet<usize> = numbers(&replayed(&erp)).into_iter().collect();
    assert_eq!(found, (0..COUNT).collect());
    assert_order(&numbers(&replayed(&erp)));
    wait_until("what was held for it goes", || retained(&server) == 0);
    let status = server.wait_for_destination("wms", "its account", |_| true);
    assert_eq!(status["accounting"]["holds"], true);
    let dry = begin(&server, &json!({"destination": "wms", "dry_run": true}));
    assert_eq!(dry["complete"], false, "{dry}");
    assert!(server.terminate().success());
}

#[test]
fn a_clean_stop_in_the_middle_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (wms, erp) = (Receiver::start(204), Receiver::start(204));
    let server = start(dir.path(), [&wms, &erp], "1h");
    deliver(&server, 60);
    let id = begin(&server, &json!({"to": "erp", "rate": "20/s"}))["id"].clone();
    wait_until("some arrived", || replayed(&erp).len() >= 5);
    assert!(server.terminate().success());
    let server = start(dir.path(), [&wms, &erp], "1h");
    wait_until("more arrived", || replayed(&erp).len() >= 25);
    assert!(server.terminate().success());
    let server = start(dir.path(), [&wms, &erp], "1h");
    let done = wait_for_state(&server, &id, "done");
    assert_eq!(done["delivered"], 60, "{done}");
    let mut found = numbers(&replayed(&erp));
    assert_order(&found);
    found.sort_unstable();
    assert_eq!(found, (0..60).collect::<Vec<_>>(), "each once");
    assert!(server.terminate().success());
}

#[test]
fn an_operator_sees_paces_pauses_and_ends_a_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (wms, erp) = (Receiver::start(204), Receiver::start(204));
    let server = start(dir.path(), [&wms, &erp], "1h");
    deliver(&server, 20);
    let body = json!({"destination": "wms", "rate": "1/h"});
    let id = begin(&server, &body)["id"].clone();
    wait_until("one arrived", || replayed(&wms).len() == 1);
    let json_body = [("content-type", "application/json")];
    let ask = |path: &str, body: &Value| {
        let body = body.to_string();
        server.ask("POST", path, &json_body, body.as_bytes()).status
    };
    assert_eq!(
        ask("/v1/replays", &body),
        409,
        "one at a time to a destination"
    );
    let act = |action: &str| format!("/v1/replays/{id}/{action}");
    let paused = server.post(&act("pause"), r#"{"reason":"stock-taking"}"#);
    assert_eq!(
        (&paused["state"], &paused["reason"], &paused["by"]),
        (&json!("paused"), &json!("stock-taking"), &json!("local"))
    );
    assert_eq!(server.post(&act("resume"), "")["state"], "running");
    server.post("/v1/destinations/wms/pause", "");
    wait_until("it says what it waits for", || {
        replay(&server, &id)["reason"] == "the destination is paused"
    });
    server.post("/v1/destinations/wms/resume", "");
    let cancelled = json_of(dir.path(), &server, &["replays", "cancel", &id.to_string()]);
    assert_eq!(cancelled["state"], "cancelled");
    for action in ["pause", "resume"] {
        assert_eq!(
            ask(&act(action), &json!({})),
            409,
            "{action} of what has ended"
        );
    }
    // An hour's rate let one go, whatever was done to it.
    assert_eq!(replayed(&wms).len(), 1);
    let shown = replay(&server, &id);
    assert_eq!(
        (&shown["delivered"], &shown["remaining"]),
        (&json!(1), &json!(19)),
        "{shown}"
    );
    for (body, status) in [
        (json!({}), 400),
        (json!({"destination": "x"}), 404),
        (json!({"destination": "wms", "rate": "fast"}), 400),
        (
            json!({"destination": "wms", "select": {"filter": "data."}}),
            400,
        ),
        (
            json!({"destination": "wms", "select": {"colour": "red"}}),
            400,
        ),
    ] {
        assert_eq!(ask("/v1/replays", &body), status, "{body}");
    }
    assert_eq!(server.ask("GET", "/v1/replays/99", &[], b"").status, 404);
    let trail = server.get("/v1/audit");
    let actions: Vec<_> = trail["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .filter(|action| action.starts_with("replay."))
        .collect();
    assert_eq!(
        actions,
        [
            "replay.cancelled",
            "replay.resumed",
            "replay.paused",
            "replay.started"
        ]
    );
    assert!(server.terminate().success());
}

#[test]
fn what_is_refused_becomes_a_letter_of_the_replay_and_what_its_own_lane_owes_is_left_to_that() {
    let dir = tempfile::tempdir().unwrap();
    let (wms, erp) = (Receiver::start(204), Receiver::start(400));
    let server = start(dir.path(), [&wms, &erp], "1h");
    deliver(&server, 9);
    server.post("/v1/destinations/wms/pause", "");
    for n in 9..12 {
        server.send("order.created", &n.to_string(), &(n % 3).to_string());
    }
    let id = begin(&server, &json!({"to": "erp"}))["id"].clone();
    let done = wait_for_state(&server, &id, "done");
    assert_eq!(
        (&done["selected"], &done["dead"], &done["failed"]),
        (&json!(12), &json!(12), &json!(12)),
        "{done}"
    );
    // Its attempts are on record beside the event's own, and name it.
    let events = server.get("/v1/events?limit=1&order=oldest");
    let position = events["items"][0]["position"].as_str().unwrap();
    let on_record = wait_for("the attempt is on record", || {
        let attempts = server.get(&format!("/v1/events/{position}/attempts"));
        let first = attempts["items"][0].clone();
        Some(first).filter(|first| !first.is_null())
    });
    assert_eq!(
        (
            &on_record["destination"],
            &on_record["replay"],
            &on_record["status"]
        ),
        (&json!("erp"), &id, &json!(400))
    );
    // Each is a dead letter that says whose it is, beside every account, and is redriven like any other.
    let letters = server.get("/v1/dead-letters?destination=erp");
    let letters = letters["items"].as_array().unwrap();
    assert_eq!(letters.len(), 12);
    assert!(
        letters.iter().all(|letter| letter["replay"] == id),
        "{letters:?}"
    );
    server.kill();
    let server = start(dir.path(), [&wms, &erp], "1h");
    erp.answer(204);
    let letter = letters[0]["id"].clone();
    server.post(&format!("/v1/dead-letters/{letter}/redrive"), "");
    wait_until("the letter is gone", || {
        let left = server.get("/v1/dead-letters?destination=erp");
        left["items"].as_array().unwrap().len() == 11
    });
    let account = server.wait_for_destination("erp", "its account", |_| true);
    let account = &account["accounting"];
    assert_eq!(
        (&account["accepted"], &account["holds"]),
        (&json!(0), &json!(true)),
        "{account}"
    );
    erp.answer(400);
    server.post("/v1/destinations/wms/resume", "");
    // Paused again before the replay looks: what is pending there stays pending.
    server.wait_for_destination("wms", "12 delivered", |one| {
        one["accounting"]["delivered"] == 12
    });
    server.post("/v1/destinations/wms/pause", "");
    server.send("order.created", "12", "0");
    let id = begin(&server, &json!({"destination": "wms"}))["id"].clone();
    wait_until("it is counted", || replay(&server, &id)["selected"] == 13);
    assert_eq!(replay(&server, &id)["delivered"], 0);
    server.kill();
    // What it skipped is decided while the destination still owes it.
    let server = start(dir.path(), [&wms, &erp], "1h");
    assert_eq!(replay(&server, &id)["state"], "running");
    wait_until("it was read", || replay(&server, &id)["skipped"] == 1);
    server.post("/v1/destinations/wms/resume", "");
    let done = wait_for_state(&server, &id, "done");
    assert_eq!(
        (&done["delivered"], &done["skipped"], &done["remaining"]),
        (&json!(12), &json!(1), &json!(0)),
        "{done}"
    );
    let status = server.wait_for_destination("wms", "13 delivered", |one| {
        one["accounting"]["delivered"] == 13
    });
    assert_eq!(status["accounting"]["holds"], true);
    assert!(server.terminate().success());
}

#[test]
fn a_replay_goes_by_the_newest_version_of_its_destination() {
    let dir = tempfile::tempdir().unwrap();
    let (wms, old, new) = (
        Receiver::start(204),
        Receiver::start(204),
        Receiver::start(204),
    );
    let server = start(dir.path(), [&wms, &old], "1h");
    deliver(&server, 60);
    // Slow enough to be in the middle of it for long.
    let wish = json!({"destination": "wms", "to": "erp", "rate": "40/s"});
    let id = begin(&server, &wish)["id"].clone();
    wait_until("the old receiver is sent some", || {
        !old.received().is_empty()
    });

    let path = dir.path().join("wayhold.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(&old.authority, &new.authority)).unwrap();
    let reloaded = server.post("/v1/config/reload", "");
    assert_eq!(reloaded["changes"][0]["path"], "destinations.erp.url");
    let done = wait_for_state(&server, &id, "done");
    assert_eq!(
        (&done["delivered"], &done["dead"]),
        (&json!(60), &json!(0)),
        "{done}"
    );
    let (at_old, at_new) = (replayed(&old), replayed(&new));
    let first = at_new.first().expect("the newest version is followed").1.at;
    // What was under way by then, one of each key, and nothing after it.
    let late = at_old.iter().filter(|(_, one)| one.at > first);
    assert!(late.count() <= 3);
    let all = [numbers(&at_old), numbers(&at_new)].concat();
    assert_order(&all);
    assert_eq!(all.len(), 60, "each once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 60);
}
