//! Tests of the Kafka sink against a real Kafka at `WAYHOLD_TEST_KAFKA` (see `scripts/services`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use wayhold_model::{Outcome, OutcomeKind};

use super::KafkaSink;
use super::config::Compression;
use super::partitions::placed_by_partition;
use super::rig::{KafkaRig, WINDOW, client, config, outcomes_until_delivered, with_property};
use crate::sink::Sink;
use crate::sink::contract::{Lane, event, exercise};

/// Names the address of a real Kafka.
const REAL_KAFKA: &str = "WAYHOLD_TEST_KAFKA";

#[tokio::test]
async fn it_keeps_the_contract_with_a_real_kafka() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let Some((servers, topic)) = real_topic(4).await else {
            return;
        };
        let mut config = config(&servers, &topic);
        config.compression = compression;
        let rig = KafkaRig::start(&config, &topic, 4);
        assert!(rig.sink.probe().await.unwrap().contains("4 partitions"));
        exercise(&rig).await;
    }
}

#[tokio::test]
async fn a_real_record_goes_to_the_partition_that_its_event_names() {
    if let Some((servers, topic)) = real_topic(4).await {
        placed_by_partition(&servers, &topic).await;
    }
}

#[tokio::test]
async fn a_real_broker_that_is_killed_and_started_again_gets_everything_in_order() {
    if !has_real_kafka() {
        return;
    }
    // A broker of its own: the shared one serves other tests.
    let services = Services::start();
    let servers = services.run(&["env", "kafka"]);
    let servers = servers.trim().rsplit_once('=').unwrap().1;
    let rig = KafkaRig::start(&config(servers, "orders"), "orders", 4);
    let mut lane = Lane::new(WINDOW);
    lane.attempt_timeout = Duration::from_secs(20);
    outcomes_until_delivered(&rig.sink, &mut lane, "k-00").await;
    lane.attempt_timeout = Duration::from_secs(2);
    services.run(&["kill9", "kafka"]);
    lane.submit(&rig.sink, [event("k-01", Some("k"), b"{}")]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    lane.submit_numbered(&rig.sink, 2, [event("k-01", Some("k"), b"{}")]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
    services.run(&["start", "kafka"]);
    lane.attempt_timeout = Duration::from_secs(20);
    for n in 1..20 {
        outcomes_until_delivered(&rig.sink, &mut lane, &format!("k-{n:02}")).await;
    }
    // The consumer's own way back to the broker may take longer than its silence tells.
    for _ in 0..20 {
        rig.consume(20);
    }
    let mut ids: Vec<_> = rig
        .consumed
        .lock()
        .unwrap()
        .iter()
        .map(|c| c.received.id.clone())
        .collect();
    ids.dedup();
    assert_eq!(
        ids,
        (0..20).map(|n| format!("k-{n:02}")).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn one_record_too_large_for_a_real_topic_does_not_take_the_others_with_it() {
    let Some((servers, topic)) = real_topic(1).await else {
        return;
    };
    // The broker's limit is about 1 MiB; the client is told that it is larger.
    let config = with_property(config(&servers, &topic), "message.max.bytes", "4000000");
    let sink = KafkaSink::start(&config, 2048).unwrap();
    let mut lane = Lane::new(2048);
    let large = vec![b'1'; 2_000_000];
    let mut waiting: Vec<_> = (0..200)
        .map(|n| event(&n.to_string(), None, b"1"))
        .collect();
    waiting.insert(100, event("large", None, &large));
    for number in 1..=3 {
        let (mut base, mut again) = (u64::MAX, Vec::new());
        lane.submit_numbered(&sink, number, waiting.iter().cloned());
        for (outcome, token) in lane.finish_new(waiting.len()).await {
            base = base.min(token);
            let event = &waiting[usize::try_from(token - base).unwrap()];
            match outcome.kind() {
                OutcomeKind::Delivered => assert_ne!(event.event.id(), "large"),
                OutcomeKind::Refused => assert_eq!(event.event.id(), "large"),
                OutcomeKind::NotExecuted => again.push(Arc::clone(event)),
                OutcomeKind::Unknown => panic!("{outcome:?}"),
            }
        }
        waiting = again;
    }
    assert!(waiting.is_empty(), "{} still wait", waiting.len());
}

/// How fast records go to a real Kafka: prints, judges nothing. Run it alone with `--ignored`.
#[tokio::test]
#[ignore = "a measurement"]
async fn records_a_second_by_linger_and_window() {
    for (linger, window) in [
        ("0", 1024),
        ("1", 1024),
        ("2", 1024),
        ("5", 1024),
        ("1", 8192),
    ] {
        let Some((servers, topic)) = real_topic(4).await else {
            return;
        };
        let config = with_property(config(&servers, &topic), "linger.ms", linger);
        let sink = KafkaSink::start(&config, window).unwrap();
        let events: Vec<_> = (0..window)
            .map(|n| event(&n.to_string(), Some(&n.to_string()), &[b'1'; 300]))
            .collect();
        let mut lane = Lane::new(window);
        lane.submit(&sink, events.iter().cloned());
        lane.finish_new(window).await;
        let begun = Instant::now();
        const RECORDS: usize = 300_000;
        lane.submit(&sink, events.iter().cloned());
        for n in 0..RECORDS {
            assert_eq!(lane.next().await.0, Outcome::Delivered);
            lane.submit(&sink, [events[n % window].clone()]);
        }
        let rate = RECORDS as f64 / begun.elapsed().as_secs_f64();
        lane.finish_new(window).await;
        let begun = Instant::now();
        for _ in 0..100 {
            lane.submit(&sink, [events[0].clone()]);
            lane.next().await;
        }
        let alone = begun.elapsed() / 100;
        println!("linger {linger} ms, window {window}: {rate:.0} records/s; one alone {alone:?}");
    }
}

/// Whether there is a real Kafka; says so where there is none.
fn has_real_kafka() -> bool {
    let there = std::env::var(REAL_KAFKA).is_ok();
    if !there {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{REAL_KAFKA} is not set: scripts/services up kafka"
        );
        println!("skipped: real Kafka because {REAL_KAFKA} is not set");
    }
    there
}

/// A new real topic, or `None` where there is no real Kafka.
async fn real_topic(partitions: i32) -> Option<(String, String)> {
    if !has_real_kafka() {
        return None;
    }
    let servers = std::env::var(REAL_KAFKA).unwrap();
    let admin: AdminClient<_> = client(&servers).create().unwrap();
    let name = format!("test-{}", uuid::Uuid::now_v7());
    let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
    let topics = [topic];
    let created = admin.create_topics(&topics, &AdminOptions::new());
    let results = tokio::time::timeout(Duration::from_secs(30), created).await;
    assert_eq!(results.unwrap().unwrap(), [Ok(name.clone())]);
    Some((servers, name))
}

/// A set of services of its own, ended with the test.
struct Services {
    folder: tempfile::TempDir,
}

impl Services {
    fn start() -> Self {
        let services = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        services.run(&["up", "kafka"]);
        services
    }

    fn run(&self, arguments: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");
        let output = std::process::Command::new(script)
            .args(arguments)
            .env("WAYHOLD_SERVICES_DIR", self.folder.path().join("services"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.run(&["down", "kafka"]);
    }
}
