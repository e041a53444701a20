//! Data made by others, sent with the shipped maps, as an independent client finds it in Kafka.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::broker::Broker;
use super::support::server::{Server, run, stderr, stdout};
use super::support::wait_until;

/// One set of data.
struct Set {
    /// Names its map, its destination, and what the independent client knows of it.
    name: &'static str,
    folder: &'static str,
    /// What below the folder is sent.
    parts: &'static [&'static str],
    events: u64,
    /// Begins the type of each of its events.
    kind: &'static str,
}

const SETS: [Set; 3] = [
    Set {
        name: "ocel",
        folder: "ocel",
        parts: &["ocel_order_simulated.csv"],
        events: 22_367,
        kind: "com.example.oms.",
    },
    Set {
        name: "github",
        folder: "github-webhooks",
        parts: &[""],
        events: 270,
        kind: "com.github.",
    },
    Set {
        name: "epcis",
        folder: "epcis",
        parts: &["Capture/Documents", "Capture/Events"],
        events: 43,
        kind: "org.gs1.epcis.",
    },
];

#[test]
fn everything_sent_arrives_as_it_was_and_in_order_and_sending_it_again_changes_nothing() {
    let Some(data) = data() else { return };
    let Some(broker) = Broker::shared() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let topics = SETS.map(|set| format!("arrival-{}-{}", std::process::id(), set.name));
    broker.create(&topics.each_ref().map(String::as_str));
    std::fs::write(folder.path().join("wayhold.toml"), config(&broker, &topics)).unwrap();
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);

    for set in &SETS {
        let sent = send(&server, set, &data);
        assert_eq!(sent["stored"], set.events, "{sent}");
    }
    wait_until("everything is delivered", || is_delivered(&server));
    for (set, topic) in SETS.iter().zip(&topics) {
        let report = broker.check(set.name, topic, &data.join(set.folder));
        let found = (&report["events"], &report["records"]);
        assert_eq!(found, (&json!(set.events), &json!(set.events)), "{report}");
    }

    for set in &SETS {
        let sent = send(&server, set, &data);
        let found = (&sent["stored"], &sent["duplicates"]);
        assert_eq!(found, (&json!(0), &json!(set.events)), "{sent}");
    }
    assert!(is_delivered(&server));
    assert!(server.terminate().success());
    for (set, topic) in SETS.iter().zip(&topics).skip(1) {
        assert_eq!(broker.read(topic).len() as u64, set.events);
    }
}

/// Whether each destination got the events of its set, and the books agree.
fn is_delivered(server: &Server) -> bool {
    let status = server.get("/v1/status");
    let destinations = status["destinations"].as_array().unwrap();
    SETS.iter().all(|set| {
        let mut named = destinations.iter().filter(|one| one["name"] == set.name);
        let accounting = &named.next().unwrap()["accounting"];
        accounting["accepted"] == set.events
            && accounting["delivered"] == set.events
            && accounting["holds"] == true
    })
}

fn config(broker: &Broker, topics: &[String]) -> String {
    let mut config = "data = \"data\"\n".to_owned();
    for (Set { name, kind, .. }, topic) in SETS.iter().zip(topics) {
        config.push_str(&format!(
            "[destinations.{name}]\n\
             kind = \"kafka\"\n\
             bootstrap_servers = \"{}\"\n\
             topic = \"{topic}\"\n\
             [[routes]]\n\
             when = 'type.startsWith(\"{kind}\")'\n\
             to = [\"{name}\"]\n",
            broker.servers
        ));
    }
    config
}

/// Sends a set with the shipped map; what `send` reports.
fn send(server: &Server, set: &Set, data: &Path) -> Value {
    let map = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/maps")
        .join(set.name)
        .with_extension("toml");
    let paths: Vec<_> = set
        .parts
        .iter()
        .map(|part| data.join(set.folder).join(part))
        .collect();
    let url = server.url();
    let mut arguments = vec!["--json", "send", "--server", &url, "--map"];
    arguments.push(map.to_str().unwrap());
    arguments.extend(paths.iter().map(|path| path.to_str().unwrap()));
    let output = run(Path::new("/"), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The data made by others, or words about its absence. No package brings it, so its absence fails no
/// run.
fn data() -> Option<PathBuf> {
    let root = std::env::var_os("TEST_DATA_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    if SETS.iter().all(|set| root.join(set.folder).is_dir()) {
        return Some(root);
    }
    println!("skipped: data of others in Kafka because TEST_DATA_DIR lacks a folder of it");
    None
}
