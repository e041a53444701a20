//! Answers of the broker that are lost after it had written the records: nothing is lost, nothing overtakes,
//! and what is written twice is no more than what was cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use wayhold::fault_proxy::{Fault, FaultProxy, Protocol};

use super::broker::Broker;
use super::support::server::Server;

/// How many answers are lost at least, unless the environment says otherwise.
const LOST: u64 = 300;

/// Where it says otherwise.
const LOST_ELSEWHERE: &str = "WAYHOLD_LOST_ANSWERS";

/// Of so many answers one is lost.
const ONE_IN: u64 = 2;

/// Keys, spread over the topic's partitions.
const KEYS: u64 = 8;

/// Events of one request: several of each key, and few enough to arrive within the time of one wait.
const BATCH: u64 = 24;

#[test]
fn lost_answers_of_a_broker_lose_no_record_and_reorder_none() {
    let elsewhere = std::env::var(LOST_ELSEWHERE).ok();
    let wanted = elsewhere.map_or(LOST, |text| text.parse().expect("a number of answers"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The broker names the proxy as its address, so that clients come back to the proxy.
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0)))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(broker) = Broker::own_behind(port) else {
        return;
    };
    let destination = broker.servers.parse().unwrap();
    let proxy = runtime
        .block_on(async { FaultProxy::over(listener, destination, Protocol::Kafka) })
        .unwrap();
    broker.create(&["orders"]);
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        r#"
        [destinations.kafka]
        kind = "kafka"
        bootstrap_servers = "{}"
        topic = "orders"
        # Few at a time, so that there are many answers to lose.
        concurrency = 4
        retry = {{ base = "1ms", cap = "20ms" }}
        breaker = {{ open = "1ms", open_max = "20ms" }}
        [destinations.kafka.properties]
        "reconnect.backoff.ms" = "5"
        "reconnect.backoff.max.ms" = "10"
        "retry.backoff.ms" = "5"
        "retry.backoff.max.ms" = "10"
        [[routes]]
        to = ["kafka"]
        "#,
        proxy.address()
    );
    std::fs::write(dir.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let one_in = NonZeroU64::new(ONE_IN).unwrap();
    proxy.set(Fault::LoseAnswers { one_in });
    let mut sent = 0;
    while proxy.counts().lost < wanted {
        send(&server, sent);
        sent += BATCH;
        server.wait_for_destination("kafka", "all delivered", |one| {
            one["accounting"]["delivered"] == sent
        });
    }
    let lost = proxy.counts().lost;
    proxy.set(Fault::None);

    let records = broker.read("orders");
    let (mut arrived, mut newest) = (BTreeSet::new(), BTreeMap::new());
    for record in &records {
        let number: u64 = record.id.parse().unwrap();
        if arrived.insert(number) {
            // A key lies in one partition, whose records are read in order.
            let before = newest.insert(number % KEYS, (record.partition, number));
            let follows = before
                .is_none_or(|(partition, before)| partition == record.partition && before < number);
            assert!(follows, "{number} came after {before:?}");
        }
    }
    assert_eq!(arrived.len() as u64, sent, "every event arrived");
    let repeats = records.len() as u64 - sent;
    assert!(
        repeats <= lost,
        "{repeats} repeats after {lost} lost answers"
    );
    println!("{sent} events, {lost} answers lost, {repeats} repeats, nothing lost");
    assert!(server.terminate().success());
}

fn send(server: &Server, first: u64) {
    let line = |n: u64| {
        let key = n % KEYS;
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"/lost","type":"t","partitionkey":"{key}","data":{n}}}"#
        )
    };
    let lines: Vec<_> = (first..first + BATCH).map(line).collect();
    let form = [("content-type", "application/x-ndjson")];
    let answer = server.ask("POST", "/v1/events", &form, lines.join("\n").as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
}
