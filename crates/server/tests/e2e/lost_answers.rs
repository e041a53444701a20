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

/// A server whose destination lies behind a proxy that loses answers.
struct Losing {
    proxy: FaultProxy,
    server: Server,
    _folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Losing {
    /// `keys` are those of the destination, `HOST` standing for the proxy before `destination`.
    fn start(destination: &str, keys: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let destination = destination.parse().unwrap();
        let proxy = runtime
            .block_on(FaultProxy::start(destination, Protocol::Http))
            .unwrap();
        let one_in = NonZeroU64::new(ONE_IN).unwrap();
        proxy.set(Fault::LoseAnswers { one_in });
        let folder = tempfile::tempdir().unwrap();
        let keys = keys.replace("HOST", &proxy.address().to_string());
        let config = format!(
            "[destinations.wms]\n{keys}\n\
             allow_networks = [\"127.0.0.0/8\"]\nretry = {{ base = \"1ms\", cap = \"20ms\" }}\n\
             breaker = {{ open = \"1ms\", open_max = \"20ms\" }}\n[[routes]]\nto = [\"wms\"]\n"
        );
        std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
        let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
        Self {
            proxy,
            server,
            _folder: folder,
            _runtime: runtime,
        }
    }

    /// Sends until enough answers were lost and everything is delivered: how many events, and answers lost.
    fn send_until_lost(&self) -> (u64, u64) {
        let wanted = lost_at_least();
        let mut sent = 0;
        while self.proxy.counts().lost < wanted {
            send(&self.server, sent);
            sent += BATCH;
            self.server
                .wait_for_destination("wms", "all delivered", |one| {
                    one["accounting"]["delivered"] == sent
                });
        }
        (sent, self.proxy.counts().lost)
    }

    /// The books at rest; what of the destination's repeats they count.
    fn counted_repeats(&self) -> u64 {
        let status = self
            .server
            .wait_for_destination("wms", "books at rest", |one| {
                one["accounting"]["holds"] == true
            });
        status["repeats"].as_u64().unwrap()
    }
}

/// Numbers as they arrived: each of `sent`, and within a key in order; how many came again.
fn repeats_among(numbers: &[u64], sent: u64) -> u64 {
    let (mut arrived, mut newest) = (BTreeSet::new(), BTreeMap::new());
    for number in numbers {
        if arrived.insert(*number) {
            let before = newest.insert(number % KEYS, *number);
            assert!(before < Some(*number), "{number} came after {before:?}");
        }
    }
    assert_eq!(arrived.len() as u64, sent, "every event arrived");
    numbers.len() as u64 - sent
}

#[test]
fn lost_answers_lose_no_event_and_each_costs_at_most_one_repeat() {
    for (kind, keys) in [
        ("webhook", "kind = \"webhook\"\nurl = \"http://HOST/hook\""),
        (
            "http",
            "kind = \"http\"\nmethod = \"PUT\"\nurl = \"http://HOST/api/{id}\"",
        ),
    ] {
        let receiver = Receiver::start(204);
        let losing = Losing::start(&receiver.authority, keys);
        let (sent, lost) = losing.send_until_lost();
        let number = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["n"].as_u64();
        let received = receiver.received();
        let numbers: Vec<u64> = received
            .iter()
            .map(|one| number(&one.body).unwrap())
            .collect();
        let repeats = repeats_among(&numbers, sent);
        assert!(
            repeats <= lost,
            "{kind}: {repeats} repeats after {lost} lost answers"
        );
        assert_eq!(
            losing.counted_repeats(),
            repeats,
            "{kind}: repeats are counted"
        );
        println!("{kind}: {sent} events, {lost} answers lost, {repeats} repeats, nothing lost");
    }
}

/// The other one knows every event again whose answer was lost, so none arrives twice where it sends it on.
#[test]
fn lost_answers_of_another_wayhold_cost_no_repeat_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let centre = Server::start(folder.path(), &[]);
    let keys = "kind = \"wayhold\"\nurl = \"http://HOST\"\nbatch.events = 10";
    let losing = Losing::start(&centre.authority, keys);
    let (sent, lost) = losing.send_until_lost();
    assert!(
        losing.counted_repeats() >= lost,
        "each lost answer left a batch in doubt"
    );
    centre.wait_for_destination("delivered", "all delivered", |one| {
        one["accounting"]["delivered"] == sent && one["accounting"]["holds"] == true
    });
    let text = std::fs::read_to_string(folder.path().join("data/delivered.ndjson")).unwrap();
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["data"]["n"].as_u64();
    let numbers: Vec<u64> = text.lines().map(|line| number(line).unwrap()).collect();
    assert_eq!(repeats_among(&numbers, sent), 0);
    println!("wayhold: {sent} events, {lost} answers lost, every event once");
}
