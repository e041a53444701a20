//! Another number of shards over HTTP and from the command line, while events come and go, and across kills.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};
use crate::support::{http, wait_until};

/// Keys of the events that are sent in a row.
const KEYS: u64 = 5;

/// A configuration with two webhooks; whose type begins with `far` goes to the second alone.
fn write_configuration(dir: &Path, near: &Receiver, far: &Receiver) {
    let webhook = |name: &str, receiver: &Receiver| {
        format!(
            r#"
            [destinations.{name}]
            kind = "webhook"
            url = "http://{}/hook"
            allow_networks = ["127.0.0.0/8"]
            [destinations.{name}.retry]
            base = "10ms"
            cap = "50ms"
            "#,
            receiver.authority
        )
    };
    let text = format!(
        r#"
        [store]
        shards = 1
        segment_rows = 16
        {}
        {}
        [[routes]]
        when = 'type.startsWith("near")'
        to = ["near"]

        [[routes]]
        when = 'type.startsWith("far")'
        to = ["far"]
        "#,
        webhook("near", near),
        webhook("far", far),
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

fn start(dir: &Path) -> Server {
    Server::start(dir, &["--config", "wayhold.toml"])
}

/// Asks for a number of shards.
fn put(server: &Server, body: &str) -> http::Answer {
    let headers = [("content-type", "application/json")];
    server.ask("PUT", "/v1/shards", &headers, body.as_bytes())
}

/// The generations that an answer lists, as number, shards and state.
fn generations(answer: &Value) -> Vec<(u64, u64, String)> {
    let items = answer["items"].as_array().unwrap().iter();
    let each = items.map(|one| {
        (
            one["generation"].as_u64().unwrap(),
            one["shards"].as_u64().unwrap(),
            one["state"].as_str().unwrap().to_owned(),
        )
    });
    each.collect()
}

fn listed(server: &Server) -> Vec<(u64, u64, String)> {
    generations(&server.get("/v1/shards"))
}

/// The generation in a receipt's position.
fn generation_of(receipt: &Value) -> u64 {
    let position = receipt["position"].as_str().unwrap();
    let generation = position.strip_prefix('g').unwrap().split('.').next();
    generation.unwrap().parse().unwrap()
}

/// Numbers of the events that arrived, each the first time, by key and in order of arrival.
fn arrived(receiver: &Receiver) -> BTreeMap<u64, Vec<u64>> {
    let mut by_key: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for received in receiver.received() {
        let body: Value = serde_json::from_slice(&received.body).unwrap();
        let id: u64 = body["id"].as_str().unwrap().parse().unwrap();
        let of_key = by_key.entry(id % KEYS).or_default();
        if !of_key.contains(&id) {
            of_key.push(id);
        }
    }
    by_key
}

/// Sends events with numbers as ids, one after the other, until it is told to stop or the server is gone.
struct Sender {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sending: std::thread::JoinHandle<()>,
}

impl Sender {
    /// From the number `first` on, with this type.
    fn start(server: &Server, kind: &'static str, first: u64) -> Self {
        let acknowledged = Arc::new(AtomicU64::new(first));
        let stop = Arc::new(AtomicBool::new(false));
        let (count, until) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let authority = server.authority.clone();
        let sending = std::thread::spawn(move || {
            while !until.load(Ordering::SeqCst) {
                let id = count.load(Ordering::SeqCst);
                let path = format!("/v1/events?type={kind}&id={id}&key=k{}", id % KEYS);
                let headers = [("content-type", "application/json")];
                let body = format!(r#"{{"id":"{id}"}}"#);
                match http::ask(&authority, "POST", &path, &headers, body.as_bytes()) {
                    Ok(answer) => assert_eq!(answer.status, 202, "{}", answer.text()),
                    // It was killed; nobody knows of this event.
                    Err(_) => return,
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            acknowledged,
            stop,
            sending,
        }
    }

    fn so_far(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until so many more are acknowledged.
    fn go_on(&self, more: u64) {
        let from = self.so_far();
        wait_until("events are accepted", || self.so_far() >= from + more);
    }

    /// Ends it; the number after the last that was acknowledged.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.sending.join().unwrap();
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// Each key's events arrived in order and none is missing.
fn assert_all_in_order(receiver: &Receiver, count: u64) {
    let arrived = arrived(receiver);
    for key in 0..KEYS.min(count) {
        let expected: Vec<u64> = (key..count).step_by(KEYS.try_into().unwrap()).collect();
        assert_eq!(arrived[&key], expected, "key {key}");
    }
}

#[test]
fn what_is_no_number_of_shards_is_refused_and_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    for (body, field, told) in [
        (
            r#"{"count":0}"#,
            Some("count"),
            "count: 0; expected 1 to 64",
        ),
        (
            r#"{"count":65}"#,
            Some("count"),
            "count: 65; expected 1 to 64",
        ),
        (
            r#"{"count":70000}"#,
            Some("count"),
            "count: 70000; expected 1 to 64",
        ),
        (
            r#"{"count":-1}"#,
            Some("count"),
            "count: invalid value: integer `-1`, expected u64",
        ),
        (
            r#"{"count":"2"}"#,
            Some("count"),
            "count: invalid type: string \"2\", expected u64",
        ),
        (
            r#"{"count":1.5}"#,
            Some("count"),
            "count: invalid type: floating point `1.5`, expected u64",
        ),
        (
            r#"{"count":2,"reason":7}"#,
            Some("reason"),
            "reason: invalid type: integer `7`, expected a string",
        ),
        (
            r#"{"count":2,"shard":2}"#,
            Some("shard"),
            "unknown field `shard`, expected `count` or `reason`",
        ),
        (r#"{"reason":"x"}"#, None, "missing field `count`"),
        ("", None, "missing field `count`"),
        ("two", None, "expected"),
    ] {
        let answer = put(&server, body);
        let text = answer.text();
        assert_eq!(answer.status, 400, "{body}: {text}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{body}"
        );
        let problem = answer.json();
        assert_eq!(problem["field"].as_str(), field, "{body}: {text}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(told), "{body}: {detail}");
    }
    assert_eq!(listed(&server), [(1, 1, "active".to_owned())]);
    // The number that there is already changes nothing, however often it is asked for.
    for _ in 0..2 {
        let answer = put(&server, r#"{"count":1,"reason":"again"}"#);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(generations(&answer.json()), [(1, 1, "active".to_owned())]);
    }
    for method in ["POST", "DELETE", "PATCH"] {
        assert_eq!(server.ask(method, "/v1/shards", &[], b"{}").status, 405);
    }
}

#[test]
fn the_number_grows_and_shrinks_while_events_come_and_go_and_ids_are_known_across_it() {
    let dir = tempfile::tempdir().unwrap();
    let (near, far) = (Receiver::start(204), Receiver::start(204));
    write_configuration(dir.path(), &near, &far);
    let server = start(dir.path());
    let sender = Sender::start(&server, "near", 0);
    sender.go_on(40);
    let mut newest = 1;
    for count in [3, 1, 2] {
        let answer = put(&server, &format!(r#"{{"count":{count}}}"#));
        assert_eq!(answer.status, 200, "{}", answer.text());
        newest += 1;
        let active = (newest, count, "active".to_owned());
        assert_eq!(generations(&answer.json()).last(), Some(&active));
        sender.go_on(40);
    }
    let count = sender.end();
    let again = server.send("near", "0", "k0");
    assert_eq!(again["duplicate"], true, "{again}");
    assert_eq!(generation_of(&again), 1);
    let fresh = server.send("near", &count.to_string(), &format!("k{}", count % KEYS));
    assert_eq!(generation_of(&fresh), newest);
    let accounts = server.wait_for_destination("near", "all delivered", |one| {
        one["accounting"]["delivered"] == count + 1
    });
    let accounting = &accounts["accounting"];
    assert_eq!(
        (
            &accounting["accepted"],
            &accounting["pending"],
            &accounting["holds"]
        ),
        (&json!(count + 1), &json!(0), &json!(true))
    );
    assert_all_in_order(&near, count + 1);
    wait_until("the older generations are drained", || {
        let states = listed(&server);
        states.iter().all(|(number, _, state)| {
            let expected = if *number == newest {
                "active"
            } else {
                "drained"
            };
            state == expected
        })
    });
    assert!(server.terminate().success());
}

#[test]
fn an_older_generation_shows_what_it_has_left_and_a_destination_that_is_away_holds_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (near, far) = (Receiver::start(204), Receiver::start(503));
    write_configuration(dir.path(), &near, &far);
    let server = start(dir.path());
    for id in 0..40 {
        server.send("far", &id.to_string(), &format!("k{}", id % KEYS));
    }
    let url = server.url();
    let shards = |arguments: &[&str]| {
        let arguments = [&["shards"], arguments, &["--server", &url]].concat();
        run(dir.path(), &arguments)
    };
    let set = shards(&["set", "2", "--reason", "a faster disk", "--json"]);
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
    let answer: Value = serde_json::from_str(&stdout(&set)).unwrap();
    let draining = [(1, 1, "draining".to_owned()), (2, 2, "active".to_owned())];
    assert_eq!(generations(&answer), draining);
    assert_eq!(answer["items"][0]["pending"], 40);
    let human = shards(&["list"]);
    let told = stdout(&human);
    assert!(
        told.contains("DRAINED IN S") && told.contains("draining") && told.contains("active"),
        "{told}"
    );
    let metrics = || server.ask("GET", "/metrics", &[], b"").text();
    for line in [
        r#"wayhold_shards{state="active"} 2"#,
        r#"wayhold_shards{state="draining"} 1"#,
        r#"wayhold_shards{state="drained"} 0"#,
        "wayhold_draining_deliveries 40",
    ] {
        assert!(metrics().lines().any(|one| one == line), "{line}");
    }

    // The other destination gets what comes now, of the same keys as well, while the older shard is held.
    let sender = Sender::start(&server, "near", 1000);
    sender.go_on(40);
    let count = sender.end();
    server.wait_for_destination("near", "all delivered", |one| {
        one["accounting"]["delivered"] == count - 1000 && one["accounting"]["pending"] == 0
    });
    for id in 40..60 {
        server.send("far", &id.to_string(), &format!("k{}", id % KEYS));
    }
    assert_eq!(listed(&server), draining);

    far.answer(204);
    server.wait_for_destination("far", "all delivered", |one| {
        one["accounting"]["delivered"] == 60 && one["accounting"]["pending"] == 0
    });
    assert_all_in_order(&far, 60);
    wait_until("the older one is drained", || {
        listed(&server)[0].2 == "drained"
    });
    let waited = shards(&["set", "1", "--wait"]);
    assert_eq!(waited.status.code(), Some(0), "{}", stderr(&waited));
    assert!(!stdout(&waited).contains("draining"), "{}", stdout(&waited));

    // Who asked for it, and why, is on record.
    let trail = server.get("/v1/audit");
    let entries = trail["items"].as_array().unwrap();
    let set: Vec<_> = entries
        .iter()
        .filter(|one| one["action"] == "shards.set")
        .map(|one| (&one["subject"], &one["by"], &one["reason"]))
        .collect();
    assert_eq!(
        set,
        [
            (&json!("g3 shards=1"), &json!("local"), &json!(null)),
            (
                &json!("g2 shards=2"),
                &json!("local"),
                &json!("a faster disk")
            ),
        ]
    );
    assert!(server.terminate().success());
}

#[test]
fn an_estimate_is_given_while_an_older_generation_drains() {
    let dir = tempfile::tempdir().unwrap();
    // One destination stays away and keeps its generations; what the other one takes makes the rate.
    let (near, far) = (Receiver::start(204), Receiver::start(503));
    write_configuration(dir.path(), &near, &far);
    let server = start(dir.path());
    let estimate = || {
        let answer = server.get("/v1/shards");
        let items = answer["items"].as_array().unwrap().clone();
        items
            .into_iter()
            .find(|one| one["drained_in_seconds"].is_number())
    };
    let mut estimated = None;
    // The store looks every second; a round in which all is delivered between two looks shows no rate.
    for round in 0..10 {
        server.post("/v1/destinations/near/pause", "{}");
        for id in 0..30 {
            let id = (100 * round + id).to_string();
            server.send("near", &id, "k0");
            server.send("far", &format!("far-{id}"), "k0");
        }
        assert_eq!(
            put(&server, &format!(r#"{{"count":{}}}"#, 2 + round % 2)).status,
            200
        );
        // Later rounds may show what the one before came too late for.
        assert!(round > 0 || estimate().is_none(), "nothing drains");
        std::thread::sleep(Duration::from_secs(2));
        server.post("/v1/destinations/near/resume", "{}");
        server.wait_for_destination("near", "all delivered", |one| {
            one["accounting"]["pending"] == 0
        });
        std::thread::sleep(Duration::from_secs(2));
        estimated = estimate();
        if estimated.is_some() {
            break;
        }
    }
    let estimated = estimated.expect("an estimate in one of the rounds");
    assert_eq!(estimated["state"], "draining");
    assert_eq!(estimated["pending"], 30);
    assert!(
        estimated["drained_in_seconds"].as_f64().unwrap() > 0.0,
        "{estimated}"
    );
    assert!(server.terminate().success());
}

#[test]
fn a_kill_in_the_middle_of_a_change_loses_nothing_and_the_change_can_be_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let (near, far) = (Receiver::start(204), Receiver::start(204));
    write_configuration(dir.path(), &near, &far);
    let mut server = start(dir.path());
    let mut count = 0;
    for round in 0..4 {
        let sender = Sender::start(&server, "near", count);
        sender.go_on(15);
        let wanted = 2 + round % 2;
        // Nobody waits for the answer: the kill comes while the change is made.
        let authority = server.authority.clone();
        let asking = std::thread::spawn(move || {
            let headers = [("content-type", "application/json")];
            let body = format!(r#"{{"count":{wanted}}}"#);
            http::ask(&authority, "PUT", "/v1/shards", &headers, body.as_bytes()).ok()
        });
        sender.go_on(1 + 4 * round);
        server.kill();
        let answered = asking.join().unwrap();
        count = sender.end();
        server = start(dir.path());
        let active = listed(&server).pop().unwrap();
        if answered.is_some_and(|answer| answer.status == 200) {
            assert_eq!((active.1, active.2.as_str()), (wanted, "active"));
        }
        let again = put(&server, &format!(r#"{{"count":{wanted}}}"#));
        assert_eq!(again.status, 200, "{}", again.text());
        let active = generations(&again.json()).pop().unwrap();
        assert_eq!((active.1, active.2.as_str()), (wanted, "active"));
        // The event whose answer was lost is sent again, by its number.
    }
    let sender = Sender::start(&server, "near", count);
    sender.go_on(10);
    let count = sender.end();
    let accounts = server.wait_for_destination("near", "all delivered", |one| {
        one["accounting"]["delivered"] == count && one["accounting"]["pending"] == 0
    });
    assert_eq!(accounts["accounting"]["holds"], true, "{accounts}");
    assert_all_in_order(&near, count);
    assert!(server.terminate().success());
}

#[test]
fn exit_codes_of_shards_say_what_went_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let token = |name: &str, role: &str| {
        let arguments = ["tokens", "create", name, "--role", role, "--data", "data"];
        let made = run(dir.path(), &arguments);
        assert!(made.status.success(), "{}", stderr(&made));
        std::fs::write(dir.path().join(name), stdout(&made)).unwrap();
    };
    token("reader", "read");
    token("operator", "operate");
    token("auditor", "audit");
    let server = Server::start(dir.path(), &[]);
    let url = server.url();
    let ask = |arguments: &[&str], by: &str| {
        let place = ["--server", &url, "--token-file", by];
        run(dir.path(), &[arguments, &place].concat())
    };
    for (arguments, by, code, told) in [
        (&["shards", "list"][..], "reader", 0, "active"),
        (&["shards", "list"], "operator", 5, "lacks the role read"),
        (
            &["shards", "set", "2"],
            "reader",
            5,
            "lacks the role operate",
        ),
        (&["shards", "set", "0"], "operator", 2, "expected 1 to 64"),
        (&["shards", "set", "65"], "operator", 2, "expected 1 to 64"),
        (&["shards", "set", "two"], "operator", 2, "two"),
        (&["shards", "set"], "operator", 2, "COUNT"),
        (&["shards", "set", "2"], "operator", 0, "active"),
        (&["audit", "list"], "auditor", 0, "shards.set"),
        (&["audit", "list"], "operator", 5, "lacks the role audit"),
        (
            &["audit", "list", "--limit", "1"],
            "auditor",
            0,
            "there are more than 1",
        ),
    ] {
        let output = ask(arguments, by);
        let words = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {words}");
        assert!(words.contains(told), "{arguments:?}: {words}");
    }
    assert!(server.terminate().success());
    let gone = ask(&["shards", "list"], "reader");
    assert_eq!(gone.status.code(), Some(3), "{}", stderr(&gone));
}
