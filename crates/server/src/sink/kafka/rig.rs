//! The rig of the Kafka sink's tests: a sink, a cluster that is librdkafka's mock or real, and a
//! consumer of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{Offset, TopicPartitionList};
use wayhold_model::Outcome;
use wayhold_model::template::Template;

use super::KafkaSink;
use super::config::{Compression, KafkaConfig, KafkaMode};
use crate::config::Secret;
use crate::sink::contract::{Lane, Received, Rig, event};
use crate::sink::{BoxFuture, Sink};

/// Attempts of a sink under test at once.
pub(super) const WINDOW: usize = 128;

/// How long a consumer's silence means that nothing more comes.
const QUIET: Duration = Duration::from_secs(1);

pub(super) fn config(bootstrap_servers: &str, topic: &str) -> KafkaConfig {
    KafkaConfig {
        bootstrap_servers: bootstrap_servers.to_owned(),
        topic: Template::parse_attributes(topic).unwrap(),
        partition: None,
        mode: KafkaMode::Binary,
        headers: Vec::new(),
        compression: Compression::None,
        properties: BTreeMap::new(),
    }
}

pub(super) fn mock(topic: &str, partitions: i32) -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    cluster
}

pub(super) fn with_property(mut config: KafkaConfig, name: &str, value: &str) -> KafkaConfig {
    config
        .properties
        .insert(name.to_owned(), Secret::new(value));
    config
}

pub(super) fn client(servers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", servers);
    client
}

/// A record as a consumer sees it.
pub(super) struct Consumed {
    pub(super) received: Received,
    pub(super) key: Option<String>,
    pub(super) partition: i32,
    pub(super) value: Vec<u8>,
}

pub(super) struct KafkaRig {
    pub(super) sink: KafkaSink,
    consumer: BaseConsumer,
    pub(super) consumed: Mutex<Vec<Consumed>>,
}

impl KafkaRig {
    pub(super) fn start(config: &KafkaConfig, topic: &str, partitions: i32) -> Self {
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

    pub(super) fn consume(&self, at_least: usize) {
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

    /// How many records were consumed, each counted once. Those of a key have come in order, by their ids, `whatever`
    /// happened.
    pub(super) fn arrived_in_order(&self, whatever: &str) -> usize {
        let consumed = self.consumed.lock().unwrap();
        let (mut arrived, mut newest) = (BTreeSet::new(), BTreeMap::new());
        for record in consumed.iter() {
            let id = record.received.id.clone();
            if arrived.insert(id.clone()) {
                let before = newest.insert(record.key.clone(), id.clone());
                assert!(
                    before.as_ref() < Some(&id),
                    "{whatever}: {id} came after {before:?}"
                );
            }
        }
        arrived.len()
    }
}

fn consumed_of(message: &BorrowedMessage<'_>) -> Consumed {
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
pub(super) async fn outcomes_until_delivered(
    sink: &dyn Sink,
    lane: &mut Lane,
    id: &str,
) -> Vec<Outcome> {
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
