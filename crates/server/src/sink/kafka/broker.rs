//! Tests of the Kafka sink against librdkafka's mock cluster, which fails on request, and against a
//! real Kafka at `WAYHOLD_TEST_KAFKA` (see `scripts/services`).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use wayhold_model::template::Template;
use wayhold_model::{EventParts, Outcome, OutcomeKind};

use super::KafkaSink;
use super::config::{Compression, KafkaConfig, KafkaMode};
use crate::config::Secret;
use crate::sink::contract::{
    Lane, Received, Rig, a_dead_destination_gives_not_executed, event, exercise, stored,
};
use crate::sink::{BoxFuture, Sink};

const WINDOW: usize = 128;

/// Names the address of a real Kafka.
const REAL_KAFKA: &str = "WAYHOLD_TEST_KAFKA";

/// How long a consumer's silence means that nothing more comes.
const QUIET: Duration = Duration::from_secs(1);

fn config(bootstrap_servers: &str, topic: &str) -> KafkaConfig {
    KafkaConfig {
        bootstrap_servers: bootstrap_servers.to_owned(),
        topic: Template::parse_attributes(topic).unwrap(),
        mode: KafkaMode::Binary,
        compression: Compression::None,
        properties: BTreeMap::new(),
    }
}

fn mock(topic: &str, partitions: i32) -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    cluster
}

fn with_property(mut config: KafkaConfig, name: &str, value: &str) -> KafkaConfig {
    config
        .properties
        .insert(name.to_owned(), Secret::new(value));
    config
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

fn client(servers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", servers);
    client
}

/// A record as a consumer sees it.
struct Consumed {
    received: Received,
    key: Option<String>,
    partition: i32,
    value: Vec<u8>,
}

struct KafkaRig {
    sink: KafkaSink,
    consumer: BaseConsumer,
    consumed: Mutex<Vec<Consumed>>,
}

impl KafkaRig {
    fn start(config: &KafkaConfig, topic: &str, partitions: i32) -> Self {
        let consumer: BaseConsumer = client(&config.bootstrap_servers)
            .set("group.id", "rig")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(topic, partition, Offset::Beginning)
                .unwrap();
        }
        consumer.assign(&all).unwrap();
        Self {
            sink: KafkaSink::start(config, WINDOW).unwrap(),
            consumer,
            consumed: Mutex::new(Vec::new()),
        }
    }

    fn consume(&self, at_least: usize) {
        let mut consumed = self.consumed.lock().unwrap();
        while consumed.len() < at_least {
            match self.consumer.poll(QUIET) {
                None => return,
                Some(Ok(message)) => consumed.push(consumed_of(&message)),
                // A broker out of reach is an error here, and the consumer goes on by itself.
                Some(Err(_)) => {}
            }
        }
    }
}

fn consumed_of(message: &rdkafka::message::BorrowedMessage<'_>) -> Consumed {
    let header = |name: &str| {
        let headers = message.headers()?;
        let found = headers.iter().find(|header| header.key == name)?;
        String::from_utf8(found.value?.to_vec()).ok()
    };
    let value = message.payload().expect("never a tombstone").to_vec();
    Consumed {
        received: Received {
            id: header("ce_id").unwrap_or_default(),
            subject: header("ce_subject").unwrap_or_default(),
            note: header("ce_note").unwrap_or_default(),
            data: value.clone(),
        },
        key: message
            .key()
            .map(|key| String::from_utf8(key.to_vec()).unwrap()),
        partition: message.partition(),
        value,
    }
}

impl Rig for KafkaRig {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn received(&self, at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
        self.consume(at_least);
        let consumed = self.consumed.lock().unwrap();
        let received = consumed
            .iter()
            .map(|consumed| consumed.received.clone())
            .collect();
        Box::pin(std::future::ready(Some(received)))
    }
}

/// Attempts one event until it is delivered, as a lane would; the outcomes before that.
async fn outcomes_until_delivered(sink: &dyn Sink, lane: &mut Lane, id: &str) -> Vec<Outcome> {
    let mut before = Vec::new();
    for number in 1..=40 {
        lane.submit_numbered(sink, number, [event(id, Some("k"), b"{}")]);
        match lane.next().await {
            (Outcome::Delivered, _) => return before,
            (outcome, _) => before.push(outcome),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{id} was never delivered: {before:?}");
}

#[tokio::test]
async fn it_keeps_the_contract_with_a_mock_cluster() {
    let cluster = mock("orders", 4);
    let rig = KafkaRig::start(&config(&cluster.bootstrap_servers(), "orders"), "orders", 4);
    assert!(rig.sink.probe().await.is_ok());
    exercise(&rig).await;
}

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
async fn structured_records_hold_the_whole_event() {
    let cluster = mock("orders", 1);
    let mut config = config(&cluster.bootstrap_servers(), "orders");
    config.mode = KafkaMode::Structured;
    let rig = KafkaRig::start(&config, "orders", 1);
    let mut lane = Lane::new(1);
    lane.submit(&rig.sink, [event("s1", Some("k"), b"{\"a\":1.0}")]);
    assert_eq!(lane.next().await.0, Outcome::Delivered);
    rig.consume(1);
    let consumed = rig.consumed.lock().unwrap();
    let text = String::from_utf8(consumed[0].value.clone()).unwrap();
    assert!(
        text.contains("\"id\":\"s1\"") && text.ends_with("\"data\":{\"a\":1.0}}"),
        "{text}"
    );
    assert_eq!(consumed[0].key.as_deref(), Some("k"));
}

#[tokio::test]
async fn nobody_listening_is_a_dead_destination() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let sink = KafkaSink::start(&config(&address, "orders"), WINDOW).unwrap();
    assert!(sink.probe().await.is_err());
    a_dead_destination_gives_not_executed(&sink).await;
}

#[tokio::test]
async fn a_broker_that_goes_away_costs_one_timeout_and_comes_back_by_itself() {
    let cluster = mock("orders", 1);
    let config = config(&cluster.bootstrap_servers(), "orders");
    let sink = KafkaSink::start(&config, WINDOW).unwrap();
    let mut lane = Lane::new(WINDOW);
    lane.submit(
        &sink,
        (0..10).map(|n| event(&format!("before-{n}"), None, b"1")),
    );
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome, Outcome::Delivered);
    }
    cluster.broker_down(1).unwrap();
    lane.attempt_timeout = Duration::from_millis(500);
    lane.submit(
        &sink,
        (0..10).map(|n| event(&format!("during-{n}"), None, b"1")),
    );
    for _ in 0..10 {
        let (outcome, _) = lane.next().await;
        assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    }
    // The next client finds nobody, and says so without waiting for the attempt's time.
    lane.attempt_timeout = Duration::from_secs(60);
    lane.submit(&sink, [event("later", None, b"1")]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
    cluster.broker_up(1).unwrap();
    outcomes_until_delivered(&sink, &mut lane, "after").await;
    sink.stop(Duration::from_secs(5)).await;
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

#[tokio::test]
async fn a_topic_that_is_stuck_leaves_room_for_the_others() {
    let cluster = mock("stuck", 1);
    cluster.create_topic("fine", 1, 1).unwrap();
    cluster.partition_leader("stuck", 0, None).unwrap();
    let config = config(&cluster.bootstrap_servers(), "{type}");
    let sink = KafkaSink::start(&config, 16).unwrap();
    let of = |kind: &str| {
        stored(&EventParts {
            id: "1",
            source: "/contract",
            kind,
            ..EventParts::default()
        })
    };
    let mut lane = Lane::new(16);
    lane.attempt_timeout = Duration::from_secs(60);
    lane.submit(&sink, (0..16).map(|_| of("stuck")));
    for _ in 0..12 {
        let (outcome, _) = lane.next().await;
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
    }
    for _ in 0..100 {
        lane.submit(&sink, (0..4).map(|_| of("fine")));
        for (outcome, _) in lane.finish_new(4).await {
            assert_eq!(outcome, Outcome::Delivered);
        }
    }
    sink.stop(Duration::ZERO).await;
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome.kind(), OutcomeKind::Unknown, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_record_too_large_for_the_client_is_refused_and_the_others_go() {
    let cluster = mock("orders", 1);
    let config = config(&cluster.bootstrap_servers(), "orders");
    let config = with_property(config, "message.max.bytes", "20000");
    let sink = KafkaSink::start(&config, WINDOW).unwrap();
    let mut lane = Lane::new(WINDOW);
    let large = vec![b'1'; 40_000];
    lane.submit(
        &sink,
        (0..100).map(|n| match n {
            50 => event("large", None, &large),
            n => event(&n.to_string(), None, b"1"),
        }),
    );
    for (outcome, token) in lane.finish_all().await {
        if token == 50 {
            let reason = &outcome.failure().unwrap().reason;
            assert_eq!(outcome.kind(), OutcomeKind::Refused);
            assert!(
                reason.contains("40") && reason.contains("20000"),
                "{reason}"
            );
        } else {
            assert_eq!(outcome, Outcome::Delivered);
        }
    }
}

#[tokio::test]
async fn a_batch_too_large_for_the_broker_is_taken_apart() {
    let cluster = mock("orders", 1);
    let sink = KafkaSink::start(&config(&cluster.bootstrap_servers(), "orders"), WINDOW).unwrap();
    let mut lane = Lane::new(WINDOW);
    outcomes_until_delivered(&sink, &mut lane, "first").await;
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_large; 2]);
    lane.submit(&sink, [event("large", None, b"1")]);
    let (batched, _) = lane.next().await;
    assert_eq!(batched.kind(), OutcomeKind::NotExecuted, "{batched:?}");
    lane.submit_numbered(&sink, 2, [event("large", None, b"1")]);
    let (alone, _) = lane.next().await;
    assert_eq!(alone.kind(), OutcomeKind::Refused, "{alone:?}");
    outcomes_until_delivered(&sink, &mut lane, "next").await;
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
                OutcomeKind::NotExecuted => again.push(std::sync::Arc::clone(event)),
                OutcomeKind::Unknown => panic!("{outcome:?}"),
            }
        }
        waiting = again;
    }
    assert!(waiting.is_empty(), "{} still wait", waiting.len());
}

#[tokio::test]
async fn a_missing_topic_is_not_executed_and_an_illegal_one_is_refused() {
    let cluster = mock("orders", 1);
    cluster
        .topic_error(
            "absent",
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        )
        .unwrap();
    let servers = cluster.bootstrap_servers();
    for (topic, expected) in [
        ("absent", OutcomeKind::NotExecuted),
        ("{source}", OutcomeKind::Refused),
        ("{subject}", OutcomeKind::Refused),
    ] {
        let sink = KafkaSink::start(&config(&servers, topic), WINDOW).unwrap();
        let mut lane = Lane::new(1);
        lane.attempt_timeout = Duration::from_secs(25);
        lane.submit(&sink, [event("1", None, b"1")]);
        let (outcome, _) = lane.next().await;
        assert_eq!(outcome.kind(), expected, "{topic}: {outcome:?}");
    }
}

#[tokio::test]
async fn errors_of_brokers_never_lose_and_never_end_the_destination() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH as EPOCH,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as LEADER,
        RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER as SEQUENCE,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED as RIGHTS,
        RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID as PRODUCER,
    };
    let cluster = mock("orders", 1);
    let config = config(&cluster.bootstrap_servers(), "orders");
    let rig = KafkaRig::start(&config, "orders", 1);
    let mut lane = Lane::new(WINDOW);
    lane.attempt_timeout = Duration::from_secs(3);
    for error in [
        EPOCH, REPLICAS, LEADER, SEQUENCE, TIMED_OUT, RIGHTS, PRODUCER,
    ] {
        let id = format!("{error:?}");
        outcomes_until_delivered(&rig.sink, &mut lane, "calm").await;
        cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
        let before = outcomes_until_delivered(&rig.sink, &mut lane, &id).await;
        for outcome in before {
            assert_ne!(outcome.kind(), OutcomeKind::Refused, "{id}: {outcome:?}");
        }
        cluster.clear_request_errors(RDKafkaApiKey::Produce);
    }
}

/// Java's hash of keys (`org.apache.kafka.common.utils.Utils.murmur2`), for comparison only.
fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(data.len()).unwrap();
    let mut h: u32 = 0x9747_b28c ^ length;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes(chunk.try_into().unwrap()).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * index);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    (h ^ (h >> 15)).cast_signed()
}

#[tokio::test]
async fn keys_go_to_the_partitions_that_java_chooses() {
    // Values of Kafka's own test, UtilsTest.testMurmur2.
    for (key, hash) in [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ] {
        assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
    }
    for partitions in [1, 15, 32, 50] {
        let topic = "orders";
        let cluster = mock(topic, partitions);
        let config = config(&cluster.bootstrap_servers(), topic);
        let rig = KafkaRig::start(&config, topic, partitions);
        let mut lane = Lane::new(1000);
        let keys = (0..250).map(|n| match n {
            0 => "TT0124".to_owned(),
            1 => "Zürich 😀".to_owned(),
            2 => "x".repeat(1024),
            n => format!("key-{}", n * 7919),
        });
        lane.submit(&rig.sink, keys.map(|key| event("1", Some(&key), b"1")));
        for (outcome, _) in lane.finish_all().await {
            assert_eq!(outcome, Outcome::Delivered);
        }
        rig.consume(250);
        let consumed = rig.consumed.lock().unwrap();
        assert_eq!(consumed.len(), 250);
        for record in consumed.iter() {
            let key = record.key.as_deref().unwrap();
            let positive = murmur2(key.as_bytes()) & i32::MAX;
            assert_eq!(record.partition, positive % partitions, "{key}");
        }
    }
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
        let begun = std::time::Instant::now();
        const RECORDS: usize = 300_000;
        lane.submit(&sink, events.iter().cloned());
        for n in 0..RECORDS {
            assert_eq!(lane.next().await.0, Outcome::Delivered);
            lane.submit(&sink, [events[n % window].clone()]);
        }
        let rate = RECORDS as f64 / begun.elapsed().as_secs_f64();
        lane.finish_new(window).await;
        let begun = std::time::Instant::now();
        for _ in 0..100 {
            lane.submit(&sink, [events[0].clone()]);
            lane.next().await;
        }
        let alone = begun.elapsed() / 100;
        println!("linger {linger} ms, window {window}: {rate:.0} records/s; one alone {alone:?}");
    }
}

#[tokio::test]
async fn a_property_that_is_not_taken_is_named_and_its_value_is_not() {
    for name in ["security.protocol", "sasl.passwort"] {
        let config = with_property(config("127.0.0.1:1", "orders"), name, "hunter2");
        let words = KafkaSink::start(&config, WINDOW).unwrap_err().to_string();
        assert!(
            words.contains(name) && !words.contains("hunter2"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn records_without_a_key_are_spread() {
    let cluster = mock("orders", 4);
    let rig = KafkaRig::start(&config(&cluster.bootstrap_servers(), "orders"), "orders", 4);
    let mut lane = Lane::new(1);
    for n in 0..60 {
        lane.submit(&rig.sink, [event(&n.to_string(), None, b"1")]);
        assert_eq!(lane.next().await.0, Outcome::Delivered);
    }
    rig.consume(60);
    let consumed = rig.consumed.lock().unwrap();
    let partitions: std::collections::HashSet<_> = consumed.iter().map(|c| c.partition).collect();
    assert!(partitions.len() > 1 && consumed.iter().all(|c| c.key.is_none()));
}
