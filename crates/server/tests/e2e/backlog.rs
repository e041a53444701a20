//! Limits on the backlog, through the public faces: who is refused, with what advice, and that accepting goes
//! on by itself when there is room again.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::Answer;
use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};
use crate::support::wait_for;

const DESTINATIONS: &str = r#"
[destinations.slow]
kind = "null"
SLOW
[destinations.other]
kind = "null"

[[routes]]
when = 'type.startsWith("both") || type.startsWith("slow")'
to = ["slow"]
[[routes]]
when = 'type.startsWith("both") || type.startsWith("other")'
to = ["other"]
"#;

fn configure(dir: &Path, whole: &str, slow: &str) {
    let text = format!("{whole}{}", DESTINATIONS.replace("SLOW", slow));
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

/// A server with these limits, on the whole and on the destination `slow`, which is paused.
fn start(dir: &Path, whole: &str, slow: &str) -> Server {
    configure(dir, whole, slow);
    let server = Server::start(dir, &["--config", "wayhold.toml"]);
    server.post("/v1/destinations/slow/pause", "{}");
    server
}

fn send(server: &Server, kind: &str, id: &str) -> Answer {
    let path = format!("/v1/events?type={kind}&id={id}&key={id}");
    let headers = [("content-type", "application/json")];
    server.ask("POST", &path, &headers, b"{}")
}

/// Sends until one is refused; how many were accepted, and the refusal.
fn fill(server: &Server, kind: &str, prefix: &str) -> (usize, Answer) {
    for sent in 0..10_000 {
        let answer = send(server, kind, &format!("{prefix}{sent}"));
        if answer.status != 202 {
            return (sent, answer);
        }
        // So that measuring, which is done ten times a second, stays close.
        std::thread::sleep(Duration::from_millis(10));
    }
    unreachable!("nothing was refused");
}

fn seconds(answer: &Answer) -> u64 {
    let header = answer.header("retry-after").expect("a refusal says when");
    header.parse().unwrap()
}

fn limits(server: &Server) -> Vec<Value> {
    server.get("/v1/status")["limits"]
        .as_array()
        .unwrap()
        .clone()
}

/// Everything that was accepted is there, delivered or pending, and nothing else.
fn account(server: &Server, name: &str, accepted: usize) {
    let settled = |one: &Value| one["accounting"]["holds"] == true;
    let one = server.wait_for_destination(name, "the account is at rest", settled);
    assert_eq!(one["accounting"]["accepted"], accepted, "{one}");
}

#[test]
fn the_whole_backlog_is_limited_and_accepting_goes_on_when_it_has_drained() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "limits.backlog_events = 60\n", "");
    let (accepted, refused) = fill(&server, "slow", "a");
    // What is accepted within a tenth of a second may exceed the limit.
    assert!((60..150).contains(&accepted), "{accepted}");
    assert_eq!(refused.status, 429, "{}", refused.text());
    let problem = refused.json();
    assert_eq!(problem["type"], "/problems/backlog-full");
    assert_eq!(problem["limit"], "events");
    assert_eq!(seconds(&refused), 30, "nothing drains");
    // Refused is everything that is new, also what would not wait; what is known keeps its receipt.
    assert_eq!(send(&server, "other", "new").status, 429);
    let again = send(&server, "slow", "a0");
    assert_eq!(
        (again.status, &again.json()["receipts"][0]["duplicate"]),
        (202, &json!(true))
    );
    // It is said where people and machines look.
    let [limit] = &limits(&server)[..] else {
        unreachable!("one limit is configured");
    };
    assert_eq!(
        (&limit["limit"], &limit["max"]),
        (&json!("events"), &json!(60))
    );
    assert!(limit["refusing_since"].is_string(), "{limit}");
    let ready = server.get("/readyz");
    assert_eq!(ready["ready"], true);
    let degraded = ready["degraded"].to_string();
    assert!(
        degraded.contains("limit on the whole backlog (events)"),
        "{degraded}"
    );
    let metrics = server.ask("GET", "/metrics", &[], b"").text();
    for line in [
        "wayhold_events_refused_total{reason=\"backlog_full\"} 2",
        "wayhold_backlog_limit_ratio{limit=\"events\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    account(&server, "slow", accepted);

    server.post("/v1/destinations/slow/resume", "{}");
    wait_for("it accepts again", || {
        (send(&server, "slow", "b").status == 202).then_some(())
    });
    wait_for("nothing is said any more", || {
        let quiet = limits(&server)[0]["refusing_since"].is_null();
        quiet.then_some(())
    });
    account(&server, "slow", accepted + 1);
    // Also after a restart a limit that is reached refuses from the first event on.
    server.post("/v1/destinations/slow/pause", "{}");
    let (more, _) = fill(&server, "slow", "c");
    assert!(server.terminate().success());
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    assert_eq!(send(&server, "slow", "d").status, 429);
    account(&server, "slow", accepted + 1 + more);
}

#[test]
fn a_full_destination_refuses_only_what_goes_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let limits_of_slow = "limits = { events = 30, bytes = \"1 GiB\" }";
    let server = start(dir.path(), "", limits_of_slow);
    let (accepted, refused) = fill(&server, "slow", "a");
    let problem = refused.json();
    assert_eq!(
        (refused.status, &problem["type"], &problem["destination"]),
        (429, &json!("/problems/destination-full"), &json!("slow"))
    );
    assert_eq!(
        send(&server, "both", "x").status,
        429,
        "an event is one thing"
    );
    for id in ["1", "2"] {
        assert_eq!(send(&server, "other", id).status, 202);
    }
    // A batch is refused as a whole, and says for which event; in a stream each line has its own answer, and
    // what has the key of a refused line waits behind it.
    let event = |kind: &str, id: &str, key: &str| {
        json!({"specversion": "1.0", "type": kind, "source": "/s", "id": id, "partitionkey": key})
            .to_string()
    };
    let lines = [
        event("other", "3", "k1"),
        event("both", "4", "k2"),
        event("other", "5", "k2"),
        event("other", "6", "k3"),
    ];
    let batch = format!("[{}]", lines.join(","));
    let headers = [("content-type", "application/cloudevents-batch+json")];
    let answer = server.ask("POST", "/v1/events", &headers, batch.as_bytes());
    assert_eq!((answer.status, &answer.json()["index"]), (429, &json!(1)));
    let headers = [("content-type", "application/x-ndjson")];
    let answer = server.ask("POST", "/v1/events", &headers, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 429);
    assert!(seconds(&answer) > 0);
    let answer = answer.json();
    let stored: Vec<_> = answer["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["position"].is_string())
        .collect();
    assert_eq!(stored, [true, false, false, true], "{answer}");
    // What is known of a batch takes no room, and hinders nothing else of it.
    let known = json!({"specversion": "1.0", "type": "slow", "source": "/wayhold", "id": "a0",
        "partitionkey": "a0", "datacontenttype": "application/json", "data": {}});
    let batch = format!("[{known},{}]", event("other", "7", "k4"));
    let headers = [("content-type", "application/cloudevents-batch+json")];
    let answer = server.ask("POST", "/v1/events", &headers, batch.as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json()["receipts"][0]["duplicate"], true);
    account(&server, "other", 5);
    account(&server, "slow", accepted);
    // Every limit of the destination is shown, and the one that is full named.
    let shown: Vec<_> = limits(&server)
        .iter()
        .map(|one| (one["limit"].clone(), one["refusing_since"].is_string()))
        .collect();
    assert_eq!(shown, [(json!("events"), true), (json!("bytes"), false)]);
    let refused = server.get("/v1/status")["accepting"]["refused"].clone();
    assert_eq!(refused, json!({"destination_full": 5}));

    server.post("/v1/destinations/slow/resume", "{}");
    wait_for("it accepts again", || {
        (send(&server, "both", "x").status == 202).then_some(())
    });
}

#[test]
fn a_limit_on_age_refuses_when_the_oldest_is_too_old_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "limits.backlog_age = \"2s\"\n", "");
    // What was delivered has no age, however old the segment that it lies in is.
    assert_eq!(send(&server, "other", "1").status, 202);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(send(&server, "slow", "2").status, 202);
    let mut ids = 3..;
    wait_for("the oldest is too old", || {
        let answer = send(&server, "other", &ids.next()?.to_string());
        (answer.status == 429).then(|| assert_eq!(answer.json()["limit"], "age"))
    });
    server.post("/v1/destinations/slow/resume", "{}");
    wait_for("it accepts again", || {
        (send(&server, "other", &ids.next()?.to_string()).status == 202).then_some(())
    });
}

#[test]
fn bulk_is_refused_before_what_matters_by_source_and_by_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = |name: &str, more: &[&str]| {
        let mut arguments = vec!["tokens", "create", name, "--data", "data", "--role"];
        arguments.push("ingest,operate,read,admin");
        arguments.extend(more);
        let output = run(dir.path(), &arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        format!("Bearer {}", stdout(&output).trim())
    };
    let create = [
        "tokens", "create", "x", "--data", "data", "--role", "ingest",
    ];
    let wrong = run(
        dir.path(),
        &[&create[..], &["--admit-until", "80"]].concat(),
    );
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("admit_until: expected a number"),
        "{}",
        stderr(&wrong)
    );
    let (orders, bulk) = (
        token("orders", &[]),
        token("bulk", &["--admit-until", "0.5"]),
    );
    let text = "
        limits.backlog_events = 100
        [sources.telemetry]
        kind = \"events\"
        when = 'type == \"slow.telemetry\"'
        admit_until = 0.8
    ";
    configure(dir.path(), text, "");
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let ask = |token: &str, path: &str| {
        let headers = [
            ("content-type", "application/json"),
            ("authorization", token),
        ];
        server.ask("POST", path, &headers, b"{}")
    };
    assert_eq!(ask(&orders, "/v1/destinations/slow/pause").status, 200);
    let pending = || {
        let headers = [("authorization", orders.as_str())];
        let status = server.ask("GET", "/v1/status", &headers, b"").json();
        status["limits"][0]["used"].as_u64().unwrap()
    };
    let mut sent = 0;
    let mut send = |token: &str, kind: &str| {
        sent += 1;
        ask(token, &format!("/v1/events?type={kind}&id={sent}"))
    };
    // Filled to just below each mark: who is refused from which one on.
    let mut refused = Vec::new();
    for step in 1..=120 {
        if send(&orders, "slow.order").status != 202 {
            refused.push("orders");
            break;
        }
        // The marks are decided by what was measured: it is waited for.
        if step % 10 == 0 {
            wait_for("it is measured", || (pending() >= step).then_some(()));
        }
        if matches!(step, 40 | 60 | 90) {
            for (token, kind, name) in [
                (&orders, "slow.telemetry", "telemetry"),
                (&bulk, "slow.order", "bulk"),
            ] {
                let answer = send(token, kind);
                if answer.status == 429 {
                    assert!(answer.json()["admit_until"].as_f64().unwrap() < 1.0);
                    refused.push(name);
                }
            }
        }
    }
    assert_eq!(refused, ["bulk", "telemetry", "bulk", "orders"]);
}

#[test]
fn a_destination_that_sets_aside_lets_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let limited = "limits = { events = 20 }
on_limit = \"dead_letter\"";
    let server = start(dir.path(), "", limited);
    for id in 0..60 {
        assert_eq!(send(&server, "both", &id.to_string()).status, 202);
        std::thread::sleep(Duration::from_millis(10));
    }
    account(&server, "other", 60);
    account(&server, "slow", 60);
    let slow = server.wait_for_destination("slow", "some are set aside", |one| {
        one["accounting"]["dead_lettered"].as_u64() > Some(0)
    });
    let counts = &slow["accounting"];
    let (pending, dead) = (counts["pending"].as_u64(), counts["dead_lettered"].as_u64());
    assert_eq!(pending.unwrap() + dead.unwrap(), 60, "{counts}");
    assert!(pending.unwrap() >= 20, "{counts}");
    let degraded = server.get("/readyz")["degraded"].to_string();
    assert!(degraded.contains("destination slow (events)"), "{degraded}");
    assert!(degraded.contains("dead letters since"), "{degraded}");
}

/// What waits is counted, in whichever stage it waits: not read yet, in flight, to be tried again, or dead.
#[test]
fn the_gauges_add_up_to_what_was_accepted_in_every_stage() {
    const EVENTS: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let text = format!(
        r#"
limits.backlog_events = 1000000
limits.backlog_age = "1d"
[destinations.hook]
kind = "webhook"
url = "http://{}/hook"
allow_networks = ["127.0.0.0/8"]
concurrency = 16
on_failure = "park"
max_blocked_keys = 100
[destinations.hook.retry]
base = "100ms"
cap = "200ms"
[destinations.hook.breaker]
open = "10ms"
open_max = "20ms"
[[routes]]
to = ["hook"]
"#,
        receiver.authority
    );
    std::fs::write(dir.path().join("wayhold.toml"), text).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let lines = |from: u64, to: u64| {
        let line = |id: u64| {
            json!({"specversion": "1.0", "type": "t", "source": "/s", "id": id.to_string(),
                   "partitionkey": (id % 1000).to_string()})
            .to_string()
        };
        (from..to).map(line).collect::<Vec<_>>().join("\n")
    };
    let add_up = |stage: &str, dead: u64| {
        wait_for(stage, || {
            let status = server.get("/v1/status");
            let hook = &status["destinations"][0]["accounting"];
            let counts = (hook["pending"].as_u64()?, hook["dead_lettered"].as_u64()?);
            let limited = status["limits"][0]["used"].as_u64()?;
            // Deliveries move from one stage to the next while they are counted.
            let at_rest = hook["holds"] == true && limited == counts.0;
            let as_meant = counts.0 + counts.1 == EVENTS && (dead == 0) == (counts.1 == 0);
            let aged = counts.0 == 0 || status["limits"][1]["used"].as_f64()? > 0.0;
            (at_rest && as_meant && aged).then_some(())
        });
    };
    server.post("/v1/destinations/hook/pause", "{}");
    let headers = [("content-type", "application/x-ndjson")];
    let body = lines(0, EVENTS);
    assert_eq!(
        server
            .ask("POST", "/v1/events", &headers, body.as_bytes())
            .status,
        202
    );
    add_up("all wait, and nothing was read", 0);
    server.post("/v1/destinations/hook/resume", "{}");
    server.wait_for_destination("hook", "some failed and are parked", |one| {
        one["attempts_waiting"].as_u64() >= Some(10)
    });
    add_up("some wait to be tried again", 0);
    receiver.answer(400);
    server.wait_for_destination("hook", "some are dead", |one| {
        one["accounting"]["dead_lettered"].as_u64() > Some(0)
    });
    server.post("/v1/destinations/hook/pause", "{}");
    add_up("some are dead and the others wait", 1);
}
