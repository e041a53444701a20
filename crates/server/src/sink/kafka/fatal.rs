//! Producers that cannot go on, by librdkafka's mock cluster: whatever it was, the failure is recorded as what it is, the
//! destination goes on with another producer, every record arrives, and no record of a key overtakes another.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::types::RDKafkaApiKey;
use rdkafka::types::RDKafkaRespErr::{
    self, RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH as EPOCH,
    RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as REPLICAS,
    RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER as SEQUENCE,
    RD_KAFKA_RESP_ERR_PRODUCER_FENCED as FENCED,
    RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID as UNKNOWN_PRODUCER,
};
use wayhold_model::{FailureClass, Outcome, OutcomeKind};

use super::rig::{KafkaRig, WINDOW, config, with_property};
use crate::sink::contract::{Lane, event};

const TOPIC: &str = "orders";

/// A full window: every key has one record under way.
const KEYS: usize = WINDOW;

/// Records of each key.
const EACH: usize = 5;

/// The round before which it happens: neither the first nor the last.
const WHEN: usize = 2;

/// Rounds after which it will not end well any more.
const ROUNDS_MAX: usize = 60;

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// What the brokers answer to the next writes, and on how many partitions.
const CASES: [(&str, &[RDKafkaRespErr], i32); 4] = [
    ("its numbers are not the broker's", &[SEQUENCE], 4),
    (
        "the broker forgot it while it tried again",
        &[REPLICAS, UNKNOWN_PRODUCER],
        1,
    ),
    ("its epoch is an old one", &[EPOCH], 4),
    ("another took its place", &[FENCED], 4),
];

#[tokio::test]
async fn a_producer_that_cannot_go_on_is_replaced_and_nothing_is_lost_or_overtaken() {
    for (name, errors, partitions) in CASES {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, partitions, 1).unwrap();
        let config = config(&cluster.bootstrap_servers(), TOPIC);
        let config = with_property(config, "retry.backoff.ms", "10");
        // One write to a partition and round: the mock takes a later one before an earlier one, as no broker does.
        let config = with_property(config, "linger.ms", "50");
        let rig = KafkaRig::start(&config, TOPIC, partitions);
        let mut lane = Lane::new(WINDOW);
        let (mut next, mut fatal, mut rounds) = ([0; KEYS], 0, 0);
        while next.iter().any(|next| *next < EACH) {
            assert!(rounds < ROUNDS_MAX, "{name}: it never ended");
            if rounds == WHEN {
                cluster.request_errors(RDKafkaApiKey::Produce, errors);
            }
            rounds += 1;
            let sent: Vec<usize> = (0..KEYS).filter(|key| next[*key] < EACH).collect();
            let of_key = |&key: &usize| {
                let id = format!("{key:03}-{}", next[key]);
                event(&id, Some(&key.to_string()), b"{}")
            };
            lane.submit(&rig.sink, sent.iter().map(of_key));
            for (key, (outcome, _)) in sent.iter().zip(lane.finish_new(sent.len()).await) {
                assert!(
                    !matches!(outcome, Outcome::Refused(_)),
                    "{name}: {outcome:?}"
                );
                let class = outcome.failure().map(|failure| failure.class);
                next[*key] += usize::from(class.is_none());
                // One that came after the error was not even taken, with the same class.
                let told = (outcome.kind(), class);
                fatal +=
                    usize::from(told == (OutcomeKind::Unknown, Some(FailureClass::FatalProducer)));
            }
            // The next producer is not there at once.
            tokio::time::sleep(PAUSE).await;
        }
        assert!(fatal > 0, "{name}: it never happened");
        hold(name, &rig);
    }
}

/// What a consumer finds: every record, and those of a key in order.
fn hold(name: &str, rig: &KafkaRig) {
    // The consumer is done where it has been silent for a while.
    rig.consume(usize::MAX);
    assert_eq!(
        rig.arrived_in_order(name),
        KEYS * EACH,
        "{name}: all arrived"
    );
}
