//! Tests of the Kafka sink against librdkafka's mock cluster, which fails on request.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use wayhold_model::{EventParts, FailureClass, Outcome, OutcomeKind, StoredEvent};

use super::KafkaSink;
use super::config::KafkaMode;
use super::rig::{KafkaRig, WINDOW, config, mock, outcomes_until_delivered, with_property};
use crate::sink::Sink;
use crate::sink::contract::{Lane, a_dead_destination_gives_not_executed, event, exercise, stored};

#[tokio::test]
async fn it_keeps_the_contract_with_a_mock_cluster() {
    let cluster = mock("orders", 4);
    let rig = KafkaRig::start(&config(&cluster.bootstrap_servers(), "orders"), "orders", 4);
    assert!(rig.sink.probe().await.is_ok());
    exercise(&rig).await;
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
        let class = outcome.failure().unwrap().class;
        assert_eq!(class, FailureClass::Timeout, "{outcome:?}");
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
async fn a_topic_that_is_stuck_leaves_room_for_the_others() {
    let cluster = mock("stuck", 1);
    cluster.create_topic("fine", 1, 1).unwrap();
    cluster.partition_leader("stuck", 0, None).unwrap();
    let config = config(&cluster.bootstrap_servers(), "{type}");
    let sink = KafkaSink::start(&config, 16).unwrap();
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

/// An event whose topic is its type.
fn of(kind: &str) -> Arc<StoredEvent> {
    stored(&EventParts {
        id: "1",
        source: "/contract",
        kind,
        ..EventParts::default()
    })
}

#[tokio::test]
async fn a_topic_that_confirms_nothing_is_no_trouble_of_the_destination_while_others_confirm() {
    let cluster = mock("stuck", 1);
    cluster.create_topic("fine", 1, 1).unwrap();
    cluster.partition_leader("stuck", 0, None).unwrap();
    for (others, trouble) in [(true, false), (false, true)] {
        let config = config(&cluster.bootstrap_servers(), "{type}");
        let sink = KafkaSink::start(&config, 16).unwrap();
        let mut lane = Lane::new(16);
        lane.submit(&sink, [of("fine")]);
        assert_eq!(lane.next().await.0, Outcome::Delivered);
        lane.attempt_timeout = Duration::from_millis(1_500);
        lane.submit(&sink, [of("stuck")]);
        lane.attempt_timeout = Duration::from_secs(20);
        if others {
            lane.submit(&sink, [of("fine")]);
            assert_eq!(lane.next().await.0, Outcome::Delivered);
        }
        let (outcome, _) = lane.next().await;
        let failure = outcome.failure().unwrap();
        assert_eq!(
            (outcome.kind(), failure.class, outcome.is_trouble()),
            (OutcomeKind::Unknown, FailureClass::Timeout, trouble),
            "{outcome:?}"
        );
        lane.submit(&sink, [of("fine")]);
        assert_eq!(lane.next().await.0, Outcome::Delivered);
        sink.stop(Duration::from_secs(5)).await;
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
