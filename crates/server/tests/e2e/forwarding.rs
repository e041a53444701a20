//! From the edge to the centre: two servers, and between them a link that is cut again and again.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wayhold::fault_proxy::{Fault, FaultProxy, Protocol};

use crate::support::server::{Server, run, stderr, stdout};
use crate::support::wait_until;

/// How often the link is cut.
const CUTS: u64 = 200;

/// Of so many cuts one loses an answer: what it was the answer to is stored, and nobody at the edge knows.
const LOSES_ONE_IN: u64 = 4;

/// Events that come between two cuts.
const EACH: u64 = 40;

/// Keys: few, so that a batch holds many events of each.
const KEYS: u64 = 7;

/// Where the dice begin.
const SEED: u64 = 0x5eed_0042;

/// How long an answer may take. The HTTP client may never say a word of a request that it hands to a connection in the
/// very moment at which that one breaks; then this ends it, as it would end one that is lost on the way.
const TIMEOUT: &str = "2s";

/// Longest wait before a cut, and longest cut.
const WAIT_MAX: u64 = 8_000;

/// SplitMix64: the same cuts at each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(self.below(WAIT_MAX)));
    }
}

/// A server that keeps what it gets in a file, and takes tokens only.
fn centre(dir: &Path) -> (Server, String) {
    let made = run(
        dir,
        &[
            "tokens", "create", "edge", "--data", "data", "--role", "ingest", "--role", "read",
        ],
    );
    assert!(made.status.success(), "{}", stderr(&made));
    let server = Server::start(dir, &["--data", "data"]);
    (server, stdout(&made).trim().to_owned())
}

/// A server that forwards to this address.
fn edge(dir: &Path, address: &str, token: &str, keys: &str) -> Server {
    std::fs::write(dir.join("token"), token).unwrap();
    let config = format!(
        r#"
        [destinations.centre]
        kind = "wayhold"
        url = "http://{address}"
        auth.bearer = {{ file = "token" }}
        allow_networks = ["127.0.0.0/8"]
        timeout = "{TIMEOUT}"
        retry = {{ base = "1ms", cap = "20ms" }}
        breaker = {{ open = "1ms", open_max = "20ms" }}
        {keys}
        [[routes]]
        to = ["centre"]
        "#
    );
    std::fs::write(dir.join("wayhold.toml"), config).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

fn send(edge: &Server, numbers: std::ops::Range<u64>) {
    let line = |n: u64| {
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"/edge","type":"t","partitionkey":"k{}","data":{{"n":{n}}}}}"#,
            n % KEYS
        )
    };
    let lines: Vec<_> = numbers.map(line).collect();
    let form = [("content-type", "application/x-ndjson")];
    let answer = edge.ask("POST", "/v1/events", &form, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
}

/// A counter in a server's metrics.
fn counter(server: &Server, token: &str, name: &str) -> u64 {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let text = server.ask("GET", "/metrics", &headers, b"").text();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.expect("the counter is there").parse().unwrap()
}

/// What the centre has delivered, in order.
fn arrived(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("data/delivered.ndjson")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_link_that_is_cut_two_hundred_times_leaves_every_event_stored_once_and_in_order() {
    let (edge_dir, centre_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (centre, token) = centre(centre_dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let destination = centre.authority.parse().unwrap();
    let proxy = runtime
        .block_on(FaultProxy::start(destination, Protocol::Http))
        .unwrap();
    let edge = edge(
        edge_dir.path(),
        &proxy.address().to_string(),
        &token,
        "batch.events = 50",
    );
    let mut dice = Dice(SEED);
    let mut sent = 0;
    for cut in 0..CUTS {
        if cut % LOSES_ONE_IN == 0 {
            let before = proxy.counts().lost;
            proxy.set(Fault::LoseAnswers {
                one_in: NonZeroU64::MIN,
            });
            send(&edge, sent..sent + EACH);
            wait_until("an answer is lost", || proxy.counts().lost > before);
        } else {
            send(&edge, sent..sent + EACH);
            dice.pause();
            proxy.set(Fault::Cut);
            dice.pause();
        }
        sent += EACH;
        proxy.set(Fault::None);
    }
    let status = edge.wait_for_destination("centre", "all is forwarded", |one| {
        one["accounting"]["delivered"] == sent && one["accounting"]["holds"] == true
    });
    assert_eq!(status["accounting"]["dead_lettered"], 0, "{status}");

    // The centre's own words, and what came out of it.
    assert_eq!(
        counter(&centre, &token, "wayhold_events_accepted_total"),
        sent
    );
    let known_again = counter(&centre, &token, "wayhold_events_duplicate_total");
    assert!(
        known_again >= CUTS / LOSES_ONE_IN,
        "{known_again} were known again"
    );
    wait_until("the centre has delivered all", || {
        arrived(centre_dir.path()).len() as u64 >= sent
    });
    let events = arrived(centre_dir.path());
    assert_eq!(events.len() as u64, sent, "every event once");
    let mut newest = BTreeMap::new();
    for event in &events {
        let number: u64 = event["id"].as_str().unwrap().parse().unwrap();
        let before = newest.insert(number % KEYS, number);
        assert!(before < Some(number), "{number} came after {before:?}");
    }
    println!("{sent} events, {CUTS} cuts, {known_again} known again, every event once");
    assert!(edge.terminate().success());
    assert!(centre.terminate().success());
}

#[test]
fn what_the_centre_will_never_take_becomes_a_dead_letter_alone_and_the_rest_goes_on() {
    let (edge_dir, centre_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(
        centre_dir.path().join("wayhold.toml"),
        "data = \"data\"\n[destinations.delivered]\nkind = \"file\"\npath = \"data/delivered.ndjson\"\n\
         [[routes]]\nwhen = 'type != \"unwanted\"'\nto = [\"delivered\"]\n",
    )
    .unwrap();
    let centre = Server::start(centre_dir.path(), &["--config", "wayhold.toml"]);
    // The centre has one of the ids already, for another event.
    centre.send("other", "9", "k");
    let edge = edge(
        edge_dir.path(),
        &centre.authority,
        "unused",
        "batch.linger = \"100ms\"",
    );
    let form = [("content-type", "application/x-ndjson")];
    let line = |n: u64| {
        let kind = if n == 5 { "unwanted" } else { "wanted" };
        let source = if n == 9 { "/wayhold" } else { "/edge" };
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"{source}","type":"{kind}","partitionkey":"{}","data":{n}}}"#,
            n % 3
        )
    };
    let lines: Vec<_> = (0..30).map(line).collect();
    let answer = edge.ask("POST", "/v1/events", &form, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    let status = edge.wait_for_destination("centre", "all but two arrive", |one| {
        one["accounting"]["delivered"] == 28 && one["accounting"]["dead_lettered"] == 2
    });
    assert_eq!(status["accounting"]["holds"], true, "{status}");
    let letters = edge.get("/v1/dead-letters");
    let letters = letters["items"].as_array().unwrap();
    let mut found: Vec<_> = letters
        .iter()
        .map(|letter| {
            let text = |name: &str| letter[name].as_str().unwrap().to_owned();
            (
                text("event_id"),
                letter["status"].as_i64().unwrap(),
                text("class"),
            )
        })
        .collect();
    found.sort();
    let expected = [("5", 422, "invalid"), ("9", 409, "invalid")];
    let expected = expected.map(|(id, status, class)| (id.to_owned(), status, class.to_owned()));
    assert_eq!(found, expected);
    wait_until("the centre has delivered the rest", || {
        arrived(centre_dir.path()).len() == 29
    });
    let mut newest = BTreeMap::new();
    for event in arrived(centre_dir.path())
        .iter()
        .filter(|event| event["source"] == "/edge")
    {
        let number: u64 = event["id"].as_str().unwrap().parse().unwrap();
        let before = newest.insert(number % 3, number);
        assert!(before < Some(number), "{number} came after {before:?}");
    }
    let tested = edge.post("/v1/destinations/centre/test", "");
    assert_eq!(tested["reachable"], true, "{tested}");
}
