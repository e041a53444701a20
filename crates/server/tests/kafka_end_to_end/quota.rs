//! A quota of the broker's: it puts the client off, which is no failure. Nothing is lost, repeated or overtaken.

use std::collections::BTreeMap;

use super::attempts::Failures;
use super::broker::{Broker, lines_of, read, tool};
use super::support::server::Server;

/// What the client may write, in bytes a second. A broker lets ten seconds of it pass at once.
const BYTES_PER_SECOND: &str = "20000";

/// Events of one request: a few seconds of the quota.
const BATCH: u64 = 80;

/// Bytes of each.
const EVENT_BYTES: usize = 1_000;

/// Requests after which the broker must have put the client off: three times what it lets pass.
const BATCHES_MAX: u64 = 8;

/// Requests once it has.
const BATCHES_AFTER: u64 = 1;

/// Keys, spread over the topic's partitions.
const KEYS: u64 = 16;

#[test]
fn a_quota_puts_off_and_nothing_fails_or_is_repeated() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let client = format!("quota-{}", std::process::id());
    let (topic, probe) = (client.clone(), format!("{client}-probe"));
    broker.create(&[&topic, &probe]);
    tool(&["quota", &broker.servers, &client, BYTES_PER_SECOND], "");
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        r#"
        data = "data"
        [destinations.kafka]
        kind = "kafka"
        bootstrap_servers = "{}"
        topic = "{topic}"
        [destinations.kafka.properties]
        "client.id" = "{client}"
        [[routes]]
        to = ["kafka"]
        "#,
        broker.servers
    );
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
    let put_off = || {
        let said = lines_of(&["throttled", &broker.servers, &probe, &client]);
        said[0].as_u64().unwrap() > 0
    };
    let mut sent = 0;
    loop {
        send(&server, &mut sent);
        if put_off() {
            break;
        }
        assert!(sent < BATCHES_MAX * BATCH, "the broker knows no quota");
    }
    for _ in 0..BATCHES_AFTER {
        send(&server, &mut sent);
    }

    let failures = Failures::of(&server, "kafka");
    assert_eq!(failures.count(), 0, "{failures:?}");
    assert!(server.terminate().success());
    let records = read(&broker.servers, &topic);
    assert_eq!(records.len() as u64, sent, "each event once");
    let mut newest = BTreeMap::new();
    for record in &records {
        let number: u64 = record.id.parse().unwrap();
        let before = newest.insert(number % KEYS, (record.partition, number));
        let follows = before
            .is_none_or(|(partition, before)| partition == record.partition && before < number);
        assert!(follows, "{number} came after {before:?}");
    }
}

/// Sends the next events and waits until they are delivered.
fn send(server: &Server, sent: &mut u64) {
    let filler = "x".repeat(EVENT_BYTES);
    let line = |n: u64| {
        let key = n % KEYS;
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"/quota","type":"t","partitionkey":"{key}","data":"{filler}"}}"#
        )
    };
    let lines: Vec<_> = (*sent..*sent + BATCH).map(line).collect();
    let form = [("content-type", "application/x-ndjson")];
    let answer = server.ask("POST", "/v1/events", &form, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
    *sent += BATCH;
    server.wait_for_destination("kafka", "all delivered", |one| {
        one["accounting"]["delivered"] == *sent
    });
}
