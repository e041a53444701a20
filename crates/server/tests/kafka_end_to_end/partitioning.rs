//! Keys of every kind lie where Kafka's own producer in Java puts them: both write to a topic of twelve partitions, and
//! an independent client says what lies where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::json;

use super::broker::{Broker, lines_of, tool};
use super::support::server::Server;

/// How many keys are held against Java's.
const KEYS: usize = 1_000;

/// Partitions: no power of two, so that every bit of a hash counts.
const PARTITIONS: &str = "12";

/// Keys that others found in the wrong partition, and those that are next to nothing or look like it.
const SPECIAL: [&str; 26] = [
    "TT0124",
    "21",
    "foobar",
    "a-little-bit-long-string",
    "a-little-bit-longer-string",
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
    "abc",
    " ",
    "  ",
    "\u{a0}",
    "\u{200b}",
    "\u{2028}",
    "\u{feff}",
    "0",
    "-0",
    "-",
    "null",
    "NULL",
    "\\N",
    "\\u0000",
    "\"\"",
    "''",
    "{}",
    "undefined",
    "\u{e000}",
    "\u{fffd}",
];

/// Most keys taken from data of others.
const REAL: usize = 300;

/// Events of one request, so that the longest keys fit into one.
const BATCH: usize = 250;

#[test]
fn keys_of_every_kind_lie_where_javas_producer_puts_them() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let keys = keys();
    let ours = format!("partitions-{}-ours", std::process::id());
    let javas = format!("partitions-{}-java", std::process::id());
    for topic in [&ours, &javas] {
        lines_of(&["make", &broker.servers, topic, PARTITIONS]);
    }
    let lines: String = keys.iter().map(|key| format!("{key}\t1\n")).collect();
    tool(&["produce", &broker.servers, &javas], &lines);
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        r#"
        data = "data"
        [destinations.kafka]
        kind = "kafka"
        bootstrap_servers = "{}"
        topic = "{ours}"
        [[routes]]
        to = ["kafka"]
        "#,
        broker.servers
    );
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
    send(&server, &keys);
    server.wait_for_destination("kafka", "all delivered", |one| {
        one["accounting"]["delivered"] == KEYS
    });
    assert!(server.terminate().success());

    let expected = places(&broker, &javas);
    assert_eq!(expected.len(), KEYS, "Java's producer wrote every key");
    let used: BTreeSet<u64> = expected.values().copied().collect();
    assert_eq!(used.len().to_string(), PARTITIONS, "every partition is met");
    let found = places(&broker, &ours);
    let elsewhere: Vec<_> = keys
        .iter()
        .filter(|key| found.get(*key) != expected.get(*key))
        .collect();
    assert!(
        elsewhere.is_empty(),
        "not where Java has them: {elsewhere:?}"
    );
    assert_eq!(found.len(), KEYS);
}

/// A thousand different keys.
fn keys() -> BTreeSet<String> {
    let mut keys: BTreeSet<String> = SPECIAL.map(str::to_owned).into();
    keys.extend(real_keys());
    for n in 0.. {
        let key = match n % 5 {
            0 => n.to_string(),
            1 => format!("order-{:08x}", n * 2_654_435_761_usize % 0xffff_ffff),
            2 => format!("Zürich/{n}/東京"),
            // Four bytes each, and two that are one letter to a reader.
            3 => format!("{}{n}e\u{301}", "😀".repeat(n % 7)),
            // Up to the longest key that there can be, through every remainder of a word.
            _ => format!("{n:05}{}", "x".repeat(n * 4 % 1_020)),
        };
        if keys.len() == KEYS {
            break;
        }
        keys.insert(key);
    }
    keys
}

/// Keys that the shipped map makes of a log of orders, or words about its absence.
fn real_keys() -> BTreeSet<String> {
    let Some(data) = std::env::var_os("TEST_DATA_DIR") else {
        println!("skipped: keys of others because TEST_DATA_DIR is not set");
        return BTreeSet::new();
    };
    let file = PathBuf::from(data).join("ocel/ocel_order_simulated.csv");
    let Ok(text) = std::fs::read_to_string(file) else {
        println!("skipped: keys of others because TEST_DATA_DIR lacks ocel");
        return BTreeSet::new();
    };
    // Objects stand as ['990001','990002'] in their columns.
    let objects = text.split('\'').skip(1).step_by(2);
    objects.map(str::to_owned).take(REAL).collect()
}

fn send(server: &Server, keys: &BTreeSet<String>) {
    let events: Vec<String> = keys
        .iter()
        .enumerate()
        .map(|(n, key)| {
            let event = json!({
                "specversion": "1.0", "id": n.to_string(), "source": "/partitions", "type": "t",
                "partitionkey": key, "data": 1,
            });
            event.to_string()
        })
        .collect();
    for batch in events.chunks(BATCH) {
        let form = [("content-type", "application/x-ndjson")];
        let answer = server.ask("POST", "/v1/events", &form, batch.join("\n").as_bytes());
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
}

/// The partition of each key; a key that lies in two, or twice in one, fails the test.
fn places(broker: &Broker, topic: &str) -> BTreeMap<String, u64> {
    let mut places = BTreeMap::new();
    for record in broker.show(topic) {
        let key = record["key"].as_str().unwrap().to_owned();
        let partition = record["partition"].as_u64().unwrap();
        let before = places.insert(key, partition);
        assert_eq!(before, None, "{record}");
    }
    places
}
