//! What a receiver's answer does to its destination, and what `explain` says of it before.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::PATIENCE;
use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};

fn start(dir: &std::path::Path, receiver: &Receiver) -> Server {
    let text = format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]
        concurrency = 1

        [destinations.wms.retry]
        waits = ["10s", "10m"]

        [destinations.wms.on."503"]
        attempts_max = 4

        [destinations.wms.on.not_found]
        then = "pause"

        [[routes]]
        to = ["wms"]
        "#,
        receiver.authority
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

#[test]
fn a_receiver_that_does_not_know_us_is_paused_until_somebody_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(401);
    let server = start(dir.path(), &receiver);
    server.send("order.created", "a", "7");
    let paused = server.wait_for_destination("wms", "paused", |one| one["by"] == "wayhold");
    assert_eq!(paused["state"], "paused");
    let reason = paused["reason"].as_str().unwrap();
    assert!(reason.starts_with("auth: "), "{reason}");
    assert_eq!(paused["last_error"]["class"], "auth");
    let metrics = crate::support::http::ask(&server.metrics, "GET", "/metrics", &[], b"").unwrap();
    let line = r#"wayhold_attempts_total{destination="wms",outcome="refused",class="auth"} 1"#;
    assert!(metrics.text().contains(line), "{}", metrics.text());

    receiver.answer(204);
    server.post("/v1/destinations/wms/resume", "");
    server.wait_for_destination("wms", "delivered", |one| {
        one["accounting"]["delivered"] == 1 && one["accounting"]["dead_lettered"] == 0
    });
}

#[test]
fn a_receiver_that_is_gone_is_disabled_and_what_met_it_is_a_dead_letter() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(410);
    let server = start(dir.path(), &receiver);
    server.send("order.created", "a", "7");
    server.wait_for_destination("wms", "disabled", |one| one["state"] == "disabled");
    server.send("order.created", "b", "7");
    let letters = server.get("/v1/dead-letters");
    let letter = &letters["items"][0];
    let told = (&letter["class"], &letter["fault"], &letter["status"]);
    assert_eq!(told, (&json!("gone"), &json!("receiver"), &json!(410)));
    assert_eq!(letter["attempts"][0]["class"], "gone");
    server.wait_for_destination("wms", "one held", |one| one["pending"] == 1);
}

#[test]
fn a_limit_of_attempts_stands_before_the_usual_reaction_and_over_kills() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(403);
    let text = format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]

        [destinations.wms.on."403"]
        then = "retry"
        waits = ["100ms"]
        attempts_max = 3

        [[routes]]
        to = ["wms"]
        "#,
        receiver.authority
    );
    std::fs::write(dir.path().join("wayhold.toml"), text).unwrap();
    let begin = || Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let mut server = begin();
    server.send("order.created", "a", "7");
    for attempt in 1..=2 {
        let waiting = Instant::now();
        while receiver.received().len() < attempt {
            assert!(
                waiting.elapsed() < PATIENCE,
                "attempt {attempt} is not made"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        server.kill();
        server = begin();
    }
    server.wait_for_destination("wms", "given up", |one| {
        one["accounting"]["dead_lettered"] == 1
    });
    let letters = server.get("/v1/dead-letters");
    let letter = &letters["items"][0];
    assert_eq!(
        (&letter["class"], &letter["status"]),
        (&json!("auth"), &json!(403))
    );
    // The first attempt is recorded by its outcome, which a kill may forestall.
    let sent = receiver.received().len();
    assert!((3..=4).contains(&sent), "{sent} attempts");
}

#[test]
fn explain_says_what_would_happen_and_when() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(204);
    let server = start(dir.path(), &receiver);
    let one = |question: &str| -> Value {
        let place = format!("/v1/destinations/wms/explain?{question}");
        let answer = server.get(&place);
        assert_eq!(answer["items"].as_array().unwrap().len(), 1, "{answer}");
        answer["items"][0].clone()
    };
    for (question, fields) in [
        (
            "status=503&attempt=2",
            json!({"class": "unavailable", "outcome": "unknown", "fault": "receiver", "then": "retry",
                "wait_least": "10m", "wait_most": "11m", "counts": true, "attempts_max": 4,
                "rule": "destinations.wms.on.503"}),
        ),
        (
            "status=503&attempt=4",
            json!({"then": "dead_letter", "wait_least": null, "counts": null}),
        ),
        (
            "status=429&retry_after=300",
            json!({"class": "throttled", "then": "retry", "wait_least": "310s", "counts": false,
                "rule": "usual"}),
        ),
        (
            "class=not_found",
            json!({"then": "pause", "rule": "destinations.wms.on.not_found"}),
        ),
        ("status=410", json!({"then": "disable", "class": "gone"})),
        (
            "class=timeout",
            json!({"wait_least": "10s", "wait_most": "11s"}),
        ),
    ] {
        let told = one(question);
        for (field, expected) in fields.as_object().unwrap() {
            assert_eq!(&told[field], expected, "{question}: {field} of {told}");
        }
    }
    for question in ["class=teapot", "status=99", "attempt=x", "speed=1"] {
        let place = format!("/v1/destinations/wms/explain?{question}");
        let answer = server.ask("GET", &place, &[], b"");
        assert_eq!(answer.status, 400, "{question}: {}", answer.text());
    }
    assert_eq!(
        server
            .ask("GET", "/v1/destinations/x/explain", &[], b"")
            .status,
        404
    );

    let url = server.url();
    let ask = |arguments: &[&str]| {
        let whole = ["destinations", "explain", "wms", "--server", &url];
        let output = run(dir.path(), &[&whole, arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let all = ask(&[]);
    for class in ["throttled", "dead_letter", "destinations.wms.on.not_found"] {
        assert!(all.contains(class), "{all}");
    }
    let one = ask(&["--status", "503", "--attempt", "2"]);
    assert!(one.contains("wait_most: 11m"), "{one}");
    assert!(ask(&["--class", "timeout", "--json"]).contains(r#""wait_least":"10s""#));
}
