//! Kafka on a bad day, by librdkafka's mock cluster of three brokers: leaders that move, brokers that
//! go away, too few replicas, a quota, broken connections, producers that cannot go on. Whatever it is, every
//! record arrives, and no record of a key overtakes another.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use wayhold_model::{FailureClass, Outcome, OutcomeKind};

use super::rig::{KafkaRig, WINDOW, config, with_property};
use crate::sink::contract::{Lane, event};

type Cluster = MockCluster<'static, DefaultProducerContext>;

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 4;
const BROKERS: i32 = 3;

/// Keys, each in a partition of its own, and events of each: a round sends the next one of every key. So a partition
/// has one record under way. The mock takes a later record before an earlier one, which a broker refuses, and the
/// client takes that for proof that the earlier one was written.
const KEYS: [&str; 4] = ["a", "west", "north", "south"];
const EACH: usize = 30;

/// Events of a day.
const ALL: usize = KEYS.len() * EACH;

/// Rounds of a day after which it will not end well any more.
const ROUNDS_MAX: usize = 600;

/// How long an attempt may take: a wait where a day leaves records without any answer, and far more than a mock
/// needs elsewhere.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Writes of four partitions that fail within that time, at the client's growing waits; and some more.
const LONG: usize = 60;

/// What goes wrong on a day, before each round.
struct Day {
    name: &'static str,
    trouble: fn(&Cluster, usize),
    /// A failure that must be seen, or the day was a good one.
    seen: Option<(OutcomeKind, FailureClass)>,
}

type Failures = BTreeSet<(OutcomeKind, FailureClass)>;

const DAYS: [Day; 12] = [
    Day {
        name: "leaders move all the time",
        trouble: |cluster, round| {
            for partition in 0..PARTITIONS {
                let turn = i32::try_from(round).unwrap() + partition;
                lead(cluster, partition, 1 + turn % BROKERS);
            }
        },
        seen: None,
    },
    Day {
        name: "a broker is restarted",
        trouble: |cluster, round| match round {
            5 => cluster.broker_down(1).unwrap(),
            7 => cluster.broker_up(1).unwrap(),
            _ => {}
        },
        seen: None,
    },
    Day {
        name: "all brokers are restarted one after the other",
        trouble: |cluster, round| {
            let broker = i32::try_from(round / 4).unwrap() + 1;
            match round % 4 {
                1 if broker <= BROKERS => cluster.broker_down(broker).unwrap(),
                2 if broker <= BROKERS => cluster.broker_up(broker).unwrap(),
                _ => {}
            }
        },
        seen: None,
    },
    Day {
        name: "too few replicas",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            );
        },
        seen: None,
    },
    Day {
        name: "too few replicas, found after writing",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            );
        },
        seen: None,
    },
    Day {
        name: "too few replicas for longer than an attempt may take",
        trouble: |cluster, round| {
            if round == 2 {
                let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
                cluster.request_errors(RDKafkaApiKey::Produce, &[error; LONG]);
            }
        },
        seen: Some((OutcomeKind::Unknown, FailureClass::Timeout)),
    },
    Day {
        name: "a quota is used up",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
            );
        },
        seen: Some((OutcomeKind::NotExecuted, FailureClass::Throttled)),
    },
    Day {
        name: "rights are taken and given back",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            );
        },
        seen: Some((OutcomeKind::NotExecuted, FailureClass::Auth)),
    },
    Day {
        name: "brokers run out of time",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            );
        },
        seen: None,
    },
    Day {
        name: "connections break",
        trouble: |cluster, round| {
            fail(cluster, round, RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT);
        },
        seen: None,
    },
    Day {
        name: "the producer's numbers are not the broker's: it cannot go on",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            );
        },
        seen: Some((OutcomeKind::Unknown, FailureClass::FatalProducer)),
    },
    Day {
        name: "the broker does not know the producer any more",
        trouble: |cluster, round| {
            fail(
                cluster,
                round,
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
            );
        },
        seen: None,
    },
];

/// The next writes fail like this, every fifth round.
fn fail(cluster: &Cluster, round: usize, error: RDKafkaRespErr) {
    if round % 5 == 2 && round < 40 {
        cluster.request_errors(RDKafkaApiKey::Produce, &[error; 2]);
    }
}

/// A partition gets another leader. The mock itself crashes when a write meets a partition that lost its leader, so
/// none is ever without one; `faults` has one that never had any.
fn lead(cluster: &Cluster, partition: i32, broker: i32) {
    cluster
        .partition_leader(TOPIC, partition, Some(broker))
        .unwrap();
}

#[tokio::test]
async fn every_bad_day_ends_with_all_records_in_order() {
    for day in &DAYS {
        let cluster = MockCluster::new(BROKERS).unwrap();
        cluster.create_topic(TOPIC, PARTITIONS, BROKERS).unwrap();
        let config = config(&cluster.bootstrap_servers(), TOPIC);
        let config = with_property(config, "retry.backoff.ms", "10");
        let config = with_property(config, "reconnect.backoff.ms", "10");
        let rig = KafkaRig::start(&config, TOPIC, PARTITIONS);
        let seen = live_through(day, &cluster, &rig).await;
        if let Some(failure) = day.seen {
            assert!(seen.contains(&failure), "{}: {seen:?}", day.name);
        }
        hold(day, &rig);
    }
}

/// Sends as a lane does under `block`: of each key the first event that has not arrived, again and again.
async fn live_through(day: &Day, cluster: &Cluster, rig: &KafkaRig) -> Failures {
    let mut lane = Lane::new(WINDOW);
    lane.attempt_timeout = TIMEOUT;
    let (mut next, mut seen) = ([0; KEYS.len()], Failures::new());
    for round in 0..ROUNDS_MAX {
        (day.trouble)(cluster, round);
        let sent: Vec<usize> = (0..KEYS.len()).filter(|key| next[*key] < EACH).collect();
        if sent.is_empty() {
            return seen;
        }
        let of_key = |&key: &usize| {
            let name = KEYS[key];
            event(&format!("{name}-{:02}", next[key]), Some(name), b"{}")
        };
        lane.submit(&rig.sink, sent.iter().map(of_key));
        let mut failed = false;
        for (key, (outcome, _)) in sent.iter().zip(lane.finish_new(sent.len()).await) {
            let Some(failure) = outcome.failure() else {
                next[*key] += 1;
                continue;
            };
            assert!(
                !matches!(outcome, Outcome::Refused(_)),
                "{}: {outcome:?}",
                day.name
            );
            seen.insert((outcome.kind(), failure.class));
            failed = true;
        }
        if failed {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("{}: it never ended, at {next:?} with {:?}", day.name, seen);
}

/// Silences of the consumer after which what is missing does not come.
const PATIENCE: usize = ALL + 60;

/// Different records that the consumer has seen.
fn arrived_of(rig: &KafkaRig) -> usize {
    let consumed = rig.consumed.lock().unwrap();
    let ids: BTreeSet<&str> = consumed
        .iter()
        .map(|record| record.received.id.as_str())
        .collect();
    ids.len()
}

/// What a consumer finds: every record, and those of a key in order. How many come twice is nothing that the mock
/// could tell: it writes again what a broker would know by its number.
fn hold(day: &Day, rig: &KafkaRig) {
    // The consumer's own way back to the brokers may take longer than its silence tells.
    for _ in 0..PATIENCE {
        let consumed = rig.consumed.lock().unwrap().len();
        if arrived_of(rig) == ALL {
            break;
        }
        rig.consume(consumed + 1);
    }
    rig.consume(usize::MAX);
    assert_eq!(
        rig.arrived_in_order(day.name),
        ALL,
        "{}: all arrived",
        day.name
    );
}
