//! A topic that does not exist, one that may not be written to, and a webhook that is dead: what is
//! owed to others arrives as if they were not there.

use serde_json::Value;

use super::broker::Broker;
use super::support::receiver::Receiver;
use super::support::server::Server;
use super::support::wait_until;

/// Events owed to each bad topic: together more than a lane has in flight.
const BAD_EVENTS: u64 = 1_000;

/// Small groups of events owed to the good topic, each sent when the one before has arrived: what
/// goes on beside the trouble, with pauses in which nothing but trouble is left to try.
const GOOD_GROUPS: u64 = 20;
const GROUP_EVENTS: u64 = 10;

#[test]
fn bad_topics_and_a_dead_webhook_delay_nobody_else() {
    let Some(broker) = Broker::own() else { return };
    broker.create(&["good", "forbidden"]);
    broker.forbid(&["forbidden"]);
    let portal = Receiver::start(204);
    let folder = tempfile::tempdir().unwrap();
    let config = config(&broker.servers, &portal.authority);
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);

    for kind in ["missing", "forbidden"] {
        send(&server, kind, 0, BAD_EVENTS);
    }
    for group in 0..GOOD_GROUPS {
        send(&server, "good", group * GROUP_EVENTS, GROUP_EVENTS);
        let arrived = (group + 1) * GROUP_EVENTS;
        wait_until(&format!("group {group} arrives in the good topic"), || {
            count(&server, "kafka", "delivered") == arrived
        });
    }
    let good = GOOD_GROUPS * GROUP_EVENTS;
    let all = 2 * BAD_EVENTS + good;
    for name in ["portal", "archive"] {
        wait_until(&format!("everything arrives at {name}"), || {
            count(&server, name, "delivered") == all
        });
    }
    assert_eq!(portal.received().len() as u64, all);
    assert_eq!(count(&server, "kafka", "pending"), 2 * BAD_EVENTS);
    assert_eq!(count(&server, "dead", "pending"), all);
    for name in ["kafka", "dead", "portal", "archive"] {
        assert_eq!(count(&server, name, "dead_lettered"), 0, "{name}");
    }
    let records = broker.read("good");
    assert_eq!(records.len() as u64, good);

    // What was missing is made, and nothing else needs to be done.
    broker.create(&["missing"]);
    wait_until("the topic that was missing gets its events", || {
        count(&server, "kafka", "pending") == BAD_EVENTS
    });
    assert_eq!(broker.read("missing").len() as u64, BAD_EVENTS);
    assert!(server.terminate().success());
}

fn config(servers: &str, portal: &str) -> String {
    // A port that nobody listens on: it was free a moment ago.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = dead.local_addr().unwrap();
    format!(
        r#"
        data = "data"
        network.allow = ["127.0.0.0/8"]
        [destinations.kafka]
        kind = "kafka"
        bootstrap_servers = "{servers}"
        topic = "{{type}}"
        retry.cap = "5s"
        [destinations.dead]
        kind = "webhook"
        url = "http://{dead}/"
        [destinations.portal]
        kind = "webhook"
        url = "http://{portal}/"
        [destinations.archive]
        kind = "file"
        path = "archive.ndjson"
        [[routes]]
        to = ["kafka", "dead", "portal", "archive"]
        "#
    )
}

fn send(server: &Server, kind: &str, first: u64, count: u64) {
    let line = |n| {
        format!(
            r#"{{"specversion":"1.0","id":"{kind}-{n}","source":"/isolation","type":"{kind}","partitionkey":"{kind}-{n}","data":{n}}}"#
        )
    };
    let lines: Vec<_> = (first..first + count).map(line).collect();
    let answer = server.ask(
        "POST",
        "/v1/events",
        &[("content-type", "application/x-ndjson")],
        lines.join("\n").as_bytes(),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
}

/// One of a destination's counts.
fn count(server: &Server, name: &str, which: &str) -> u64 {
    let status: Value = server.get("/v1/status");
    let destinations = status["destinations"].as_array().unwrap();
    let one = destinations.iter().find(|one| one["name"] == name).unwrap();
    one["accounting"][which].as_u64().unwrap()
}
