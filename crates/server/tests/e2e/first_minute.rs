//! What a new user does first, and what an operator sees of it.

use serde_json::{Value, json};

use crate::support::server::Server;
use crate::support::{http, wait_for, wait_until};

/// What the default destination wrote.
fn delivered(dir: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("data/delivered.ndjson")).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[test]
fn without_configuration_an_event_reaches_the_file_and_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = server.ask(
        "POST",
        "/v1/events?type=order.created&key=42",
        &form,
        br#"{"order":42}"#,
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let receipt = answer.json()["receipts"][0].clone();
    assert_eq!(receipt["duplicate"], false);

    let event = wait_for("the event in the file", || delivered(dir.path()).pop());
    assert_eq!(
        (&event["id"], &event["type"]),
        (&receipt["id"], &json!("order.created"))
    );
    assert_eq!(event["data"], json!({"order": 42}));

    let status = server.wait_for_destination("delivered", "delivered 1", |one| {
        one["accounting"]["delivered"] == 1
    });
    let accounting = &status["accounting"];
    assert_eq!(
        (&accounting["holds"], &accounting["pending"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(server.get("/v1/status")["accounting"]["holds"], true);

    let position = receipt["position"].as_str().unwrap();
    let event = server.get(&format!("/v1/events/{position}"));
    assert_eq!(event["deliveries"][0]["state"], "delivered", "{event}");
    assert!(server.terminate().success());
}

#[test]
fn a_paused_destination_holds_events_over_a_restart_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let paused = server.post(
        "/v1/destinations/delivered/pause",
        r#"{"reason":"stocktaking"}"#,
    );
    assert_eq!(
        (&paused["state"], &paused["reason"], &paused["by"]),
        (&json!("paused"), &json!("stocktaking"), &json!("local"))
    );
    server.send("order.created", "a", "7");
    server.send("order.paid", "b", "7");
    let status = server.wait_for_destination("delivered", "2 pending", |one| one["pending"] == 2);
    assert_eq!(
        (&status["state"], &status["accounting"]["holds"]),
        (&json!("paused"), &json!(true))
    );
    let ready = server.get("/readyz");
    assert_eq!(ready["ready"], true);
    assert!(
        ready["degraded"][0]
            .as_str()
            .unwrap()
            .contains("delivered is paused"),
        "{ready}"
    );
    assert!(server.terminate().success());

    let server = Server::start(dir.path(), &[]);
    let status = server.wait_for_destination("delivered", "2 pending", |one| one["pending"] == 2);
    assert_eq!(
        (&status["state"], &status["reason"]),
        (&json!("paused"), &json!("stocktaking"))
    );
    assert_eq!(delivered(dir.path()), Vec::<Value>::new());
    server.post("/v1/destinations/delivered/resume", "");
    wait_until("both delivered", || delivered(dir.path()).len() == 2);
    let ids: Vec<_> = delivered(dir.path())
        .iter()
        .map(|event| event["id"].clone())
        .collect();
    assert_eq!(ids, ["a", "b"]);
    server.wait_for_destination("delivered", "nothing pending", |one| {
        one["pending"] == 0 && one["accounting"]["holds"] == true && one["state"] == "running"
    });
}

#[test]
fn the_operations_listener_serves_health_and_metrics_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--ops-listen", "127.0.0.1:0"]);
    server.send("order.created", "a", "7");
    server.wait_for_destination("delivered", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    let ops = |method, path| http::ask(&server.metrics, method, path, &[], b"").unwrap();
    assert_eq!(ops("GET", "/livez").status, 200);
    assert_eq!(ops("GET", "/readyz").json()["ready"], true);
    let metrics = ops("GET", "/metrics").text();
    for line in [
        "wayhold_events_accepted_total 1",
        r#"wayhold_pending_deliveries{destination="delivered"} 0"#,
        r#"wayhold_destination_state{destination="delivered",state="running"} 1"#,
        "wayhold_ready 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in\n{metrics}"
        );
    }
    for (method, path) in [
        ("GET", "/v1/status"),
        ("GET", "/v1/tokens"),
        ("POST", "/v1/events"),
        ("GET", "/v1/events"),
        ("GET", "/v1/destinations"),
    ] {
        assert_eq!(ops(method, path).status, 404, "{method} {path}");
    }
}

#[test]
fn hostile_names_leave_one_json_record_a_line_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.post(
        "/v1/destinations/delivered/pause",
        r#"{"reason":"a\nb\u001b[2J"}"#,
    );
    let path = "/v1/events?type=a%0Ab&id=%1B%5D0;x";
    let refused = server.ask("POST", path, &[("content-type", "application/json")], b"{}");
    assert_eq!(refused.status, 400);
    let log = std::sync::Arc::clone(&server.log);
    assert!(server.terminate().success());
    let log = log.lock().unwrap().clone();
    for line in log.lines() {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(record["level"].is_string(), "{line}");
    }
    assert!(log.lines().count() >= 2, "{log}");
}
