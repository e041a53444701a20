//! Tests of where records go: those that name a partition there, keyed ones where Java's producer sends them, the others
//! anywhere.

use std::collections::HashSet;

use wayhold_model::template::Template;
use wayhold_model::{EventParts, Outcome, OutcomeKind};

use super::rig::{KafkaRig, config, mock};
use crate::sink::contract::{Lane, event, stored};

/// Keys of a run, of every length up to a thousand bytes.
const KEYS: usize = 1_000;

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
        let mut lane = Lane::new(KEYS);
        let keys = (0..KEYS).map(|n| match n {
            0 => "TT0124".to_owned(),
            1 => "Zürich 😀".to_owned(),
            2 => "x".repeat(1024),
            n if n % 3 == 0 => format!("{n}{}", "\u{df}".repeat(n / 4)),
            n => format!("key-{}", n * 7919),
        });
        lane.submit(&rig.sink, keys.map(|key| event("1", Some(&key), b"1")));
        for (outcome, _) in lane.finish_all().await {
            assert_eq!(outcome, Outcome::Delivered);
        }
        rig.consume(KEYS);
        let consumed = rig.consumed.lock().unwrap();
        assert_eq!(consumed.len(), KEYS);
        for record in consumed.iter() {
            let key = record.key.as_deref().unwrap();
            let positive = murmur2(key.as_bytes()) & i32::MAX;
            assert_eq!(record.partition, positive % partitions, "{key}");
        }
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
    let partitions: HashSet<_> = consumed.iter().map(|c| c.partition).collect();
    assert!(partitions.len() > 1 && consumed.iter().all(|c| c.key.is_none()));
}

#[tokio::test]
async fn a_record_goes_to_the_partition_that_its_event_names_whatever_its_key() {
    let cluster = mock("orders", 4);
    placed_by_partition(&cluster.bootstrap_servers(), "orders").await;
}

/// Over a topic of four partitions, in the mock or in a real Kafka.
pub(super) async fn placed_by_partition(servers: &str, topic: &str) {
    let mut config = config(servers, topic);
    config.partition = Some(Template::parse_attributes("{partition}").unwrap());
    let rig = KafkaRig::start(&config, topic, 4);
    let mut lane = Lane::new(1);
    let named = |id: &str, extensions: &str| {
        let parts = EventParts {
            id,
            source: "/shop",
            kind: "order.created",
            key: "k",
            extensions,
            data: bytes::Bytes::from_static(b"1"),
            ..EventParts::default()
        };
        stored(&parts)
    };
    for partition in [2, 0, 3, 1] {
        let extensions = format!("{{\"partition\":{partition}}}");
        lane.submit(&rig.sink, [named(&partition.to_string(), &extensions)]);
        assert_eq!(lane.next().await.0, Outcome::Delivered);
    }
    for n in 4..6 {
        lane.submit(&rig.sink, [named(&n.to_string(), "{}")]);
        assert_eq!(lane.next().await.0, Outcome::Delivered);
    }
    // What is no partition is the event's own fault; one that is not there may be made.
    lane.submit(&rig.sink, [named("6", r#"{"partition":"x"}"#)]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::Refused, "{outcome:?}");
    lane.submit(&rig.sink, [named("7", r#"{"partition":4}"#)]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
    rig.consume(6);
    let consumed = rig.consumed.lock().unwrap();
    let by_key = (murmur2(b"k") & i32::MAX) % 4;
    let mut found: Vec<_> = consumed
        .iter()
        .map(|one| (one.received.id.as_str(), one.partition))
        .collect();
    found.sort_unstable();
    let expected = [
        ("0", 0),
        ("1", 1),
        ("2", 2),
        ("3", 3),
        ("4", by_key),
        ("5", by_key),
    ];
    assert_eq!(found, expected);
    assert!(consumed.iter().all(|one| one.key.as_deref() == Some("k")));
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
