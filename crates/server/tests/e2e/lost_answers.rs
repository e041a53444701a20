//! Answers that are lost after the receiver had taken the event: the sender cannot know, and sends again.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use serde_json::Value;
use wayhold::fault_proxy::{Fault, FaultProxy, Protocol};

use crate::support::receiver::Receiver;
use crate::support::server::Server;

/// How many answers are lost at least, unless the environment says otherwise.
const LOST: u64 = 300;

/// Where it says otherwise.
const LOST_ELSEWHERE: &str = "WAYHOLD_LOST_ANSWERS";

/// Of so many answers one is lost.
const ONE_IN: u64 = 5;

/// Keys, and so most deliveries under way that must not overtake each other.
const KEYS: u64 = 40;

/// Events of one request.
const BATCH: u64 = 500;

fn lost_at_least() -> u64 {
    let elsewhere = std::env::var(LOST_ELSEWHERE).ok();
    elsewhere.map_or(LOST, |text| text.parse().expect("a number of answers"))
}

fn send(server: &Server, first: u64) {
    let line = |n: u64| {
        let key = n % KEYS;
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"/lost","type":"t","partitionkey":"{key}","data":{{"n":{n}}}}}"#
        )
    };
    let lines: Vec<_> = (first..first + BATCH).map(line).collect();
    let form = [("content-type", "application/x-ndjson")];
    let answer = server.ask("POST", "/v1/events", &form, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
}

#[test]
fn lost_answers_lose_no_event_and_each_costs_at_most_one_repeat() {
    let wanted = lost_at_least();
    let receiver = Receiver::start(204);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let destination = receiver.authority.parse().unwrap();
    let proxy = runtime
        .block_on(FaultProxy::start(destination, Protocol::Http))
        .unwrap();
    let one_in = NonZeroU64::new(ONE_IN).unwrap();
    proxy.set(Fault::LoseAnswers { one_in });
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[destinations.wms]\nkind = \"webhook\"\nurl = \"http://{}/hook\"\n\
         allow_networks = [\"127.0.0.0/8\"]\nretry = {{ base = \"1ms\", cap = \"20ms\" }}\n\
         breaker = {{ open = \"1ms\", open_max = \"20ms\" }}\n[[routes]]\nto = [\"wms\"]\n",
        proxy.address()
    );
    std::fs::write(dir.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let mut sent = 0;
    while proxy.counts().lost < wanted {
        send(&server, sent);
        sent += BATCH;
        server.wait_for_destination("wms", "all delivered", |one| {
            one["accounting"]["delivered"] == sent
        });
    }

    let lost = proxy.counts().lost;
    let numbers: Vec<u64> = receiver
        .received()
        .iter()
        .map(|one| {
            serde_json::from_slice::<Value>(&one.body).unwrap()["n"]
                .as_u64()
                .unwrap()
        })
        .collect();
    let mut arrived = BTreeSet::new();
    let mut newest = BTreeMap::new();
    for number in &numbers {
        if arrived.insert(*number) {
            let before = newest.insert(number % KEYS, *number);
            assert!(before < Some(*number), "{number} came after {before:?}");
        }
    }
    assert_eq!(arrived.len() as u64, sent, "every event arrived");
    let repeats = numbers.len() as u64 - sent;
    assert!(
        repeats <= lost,
        "{repeats} repeats after {lost} lost answers"
    );
    let status = server.wait_for_destination("wms", "books at rest", |one| {
        one["accounting"]["holds"] == true
    });
    assert_eq!(status["repeats"], repeats, "repeats are counted");
    println!("{sent} events, {lost} answers lost, {repeats} repeats, nothing lost");
}
