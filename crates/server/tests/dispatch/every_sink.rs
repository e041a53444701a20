//! Order per key through every kind of sink, as configured, against receivers that fail by chance: they answer
//! that they cannot, break the connection before they took the event, or after. Where the receiver cannot be made to
//! fail so, what stands between it and the lane does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use wayhold::clock::{Entropy as _, SystemClock};
use wayhold::config::{DeliveryPolicy, Environment, OnFailure, Overrides, load};
use wayhold::sink::{Sink, build};
use wayhold_model::Clock;

use crate::hand::Seeded;
use crate::miniature::{Server, keyed, until};
use crate::troubled::Troubled;

/// Attempts in flight.
const CONCURRENCY: usize = 64;

/// Events of one run, and their keys: so few that each always waits for itself.
const EVENTS: u64 = 1_500;
const KEYS: u64 = 25;

/// Of so many requests one is answered with 503, one is cut off before, and one after the event was taken.
const ONE_IN: u64 = 12;

/// Where events arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Webhook,
    Http,
    Wayhold,
    File,
    #[cfg(feature = "kafka")]
    Kafka,
}

impl Kind {
    fn keys(self) -> &'static str {
        match self {
            Self::Webhook => {
                "kind = \"webhook\"\nmode = \"structured\"\nurl = \"http://HOST/hook\""
            }
            Self::Http => "kind = \"http\"\nbody = \"cloudevent\"\nurl = \"http://HOST/api/{id}\"",
            Self::Wayhold => "kind = \"wayhold\"\nbatch.events = 20\nurl = \"http://HOST\"",
            Self::File => "kind = \"file\"\npath = \"HOST\"",
            #[cfg(feature = "kafka")]
            Self::Kafka => "kind = \"kafka\"\nbootstrap_servers = \"HOST\"\ntopic = \"orders\"",
        }
    }

    fn speaks_http(self) -> bool {
        matches!(self, Self::Webhook | Self::Http | Self::Wayhold)
    }
}

/// What came, in order.
#[derive(Default)]
struct Arrived {
    /// Ids that were taken, repeats included.
    taken: Vec<u64>,
    known: BTreeSet<u64>,
    repeats: u64,
    failed: u64,
}

/// A receiver that fails by chance.
struct Chance {
    kind: Kind,
    random: Arc<Seeded>,
    arrived: Mutex<Arrived>,
}

impl Chance {
    async fn start(kind: Kind) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let receiver = Arc::new(Self {
            kind,
            random: Seeded::new(3),
            arrived: Mutex::default(),
        });
        let serving = Arc::clone(&receiver);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        (receiver, host)
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut connection = BufReader::new(stream);
        loop {
            let body = body_of(&mut connection).await?;
            let (status, answer) = match self.random.next() % ONE_IN {
                0 => (503, String::new()),
                1 => {
                    self.failed();
                    return None;
                }
                2 => {
                    self.take(&body);
                    self.failed();
                    return None;
                }
                _ => (202, self.take(&body)),
            };
            if status == 503 {
                self.failed();
            }
            let length = answer.len();
            let head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\n\r\n");
            connection
                .write_all((head + &answer).as_bytes())
                .await
                .ok()?;
        }
    }

    fn failed(&self) {
        self.arrived.lock().unwrap().failed += 1;
    }

    /// Takes an event, or a batch of which what is known already is not taken again; the answer.
    fn take(&self, body: &[u8]) -> String {
        let body: Value = serde_json::from_slice(body).unwrap();
        let events = match body {
            Value::Array(events) => events,
            event => vec![event],
        };
        let mut arrived = self.arrived.lock().unwrap();
        for event in &events {
            let id = event.get("id").unwrap().as_str().unwrap().parse().unwrap();
            let is_new = arrived.known.insert(id);
            arrived.repeats += u64::from(!is_new);
            if is_new || self.kind != Kind::Wayhold {
                arrived.taken.push(id);
            }
        }
        let receipt = |event: &Value| json!({ "id": event["id"], "source": event["source"] });
        let receipts: Vec<_> = events.iter().map(receipt).collect();
        json!({ "receipts": receipts }).to_string()
    }
}

/// The body of the next request; nothing when the connection ends.
async fn body_of(connection: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.ok()?;
    Some(body)
}

/// Policy and sink of a destination as its configuration makes them.
fn configured(
    folder: &Path,
    kind: Kind,
    host: &str,
    on_failure: OnFailure,
) -> (DeliveryPolicy, Arc<dyn Sink>) {
    let word = match on_failure {
        OnFailure::Block => "block",
        OnFailure::Park => "park",
    };
    let networks = match kind.speaks_http() {
        true => "allow_networks = [\"127.0.0.0/8\"]",
        false => "",
    };
    let text = format!(
        "[destinations.a]\n{}\n{networks}\nconcurrency = {CONCURRENCY}\n\
         on_failure = \"{word}\"\nretry = {{ base = \"1ms\", cap = \"20ms\" }}\n\
         breaker = {{ failures = 100000 }}\n[[routes]]\nto = [\"a\"]\n",
        kind.keys().replace("HOST", host)
    );
    let path = folder.join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let loaded = load(Some(&path), &Overrides::default(), &Environment::default());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
    let destination = loaded.config.destination("a").unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    (
        destination.delivery.clone(),
        build(destination, &clock).unwrap(),
    )
}

async fn deliver_all(server: Server) {
    for batch in 0..EVENTS / 100 {
        let events = (batch * 100..(batch + 1) * 100).map(|id| keyed(id, KEYS));
        server.accept(events).await;
    }
    until("all is delivered", || server.pending() == 0).await;
    server.assert_identity();
    server.stop().await;
}

/// First arrivals of each key come in order; those that were parked may be overtaken.
fn assert_order(arrived: &[u64], on_failure: OnFailure, what: &str) {
    let mut newest = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for id in arrived.iter().filter(|id| seen.insert(**id)) {
        let before = newest.insert(id % KEYS, *id);
        let in_order = before < Some(*id) || on_failure == OnFailure::Park;
        assert!(in_order, "{what}: {id} came after {before:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_per_key_holds_through_every_sink_and_nothing_is_lost() {
    for kind in [Kind::Webhook, Kind::Http, Kind::Wayhold] {
        for on_failure in [OnFailure::Block, OnFailure::Park] {
            let folder = tempfile::tempdir().unwrap();
            let (receiver, host) = Chance::start(kind).await;
            let (policy, sink) = configured(folder.path(), kind, &host, on_failure);
            let server = Server::start_sinks(folder.path(), vec![("a", policy, sink)]).await;
            deliver_all(server).await;
            let arrived = receiver.arrived.lock().unwrap();
            let what = format!("{kind:?} {on_failure:?}: {} failed", arrived.failed);
            assert!(arrived.failed > 0, "{what}");
            assert_eq!(arrived.known.len() as u64, EVENTS, "{what}");
            // A request that was cut off after its event was taken is the only reason for a repeat.
            if kind != Kind::Wayhold {
                assert!(arrived.repeats <= arrived.failed, "{what}");
            }
            assert_order(&arrived.taken, on_failure, &what);
            if kind == Kind::Wayhold {
                assert_eq!(arrived.taken.len() as u64, EVENTS, "{what}: stored once");
            }
        }
    }
}

/// What a file holds.
fn lines_of(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let id = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event.get("id").unwrap().as_str().unwrap().parse().unwrap()
    };
    text.lines().map(id).collect()
}

/// Delivers through a sink that is kept from its receiver by chance; how many answers were lost.
async fn deliver_troubled(folder: &Path, kind: Kind, host: &str, on_failure: OnFailure) -> u64 {
    let (policy, sink) = configured(folder, kind, host, on_failure);
    let (sink, counts) = Troubled::before(sink);
    let server = Server::start_sinks(folder, vec![("a", policy, sink)]).await;
    deliver_all(server).await;
    assert!(counts.kept_back.load(Ordering::Relaxed) > 0);
    counts.lost.load(Ordering::Relaxed)
}

/// Nothing is lost, each key is in order, and every repeat has its lost answer.
fn assert_held(arrived: &[u64], lost: u64, on_failure: OnFailure, what: &str) {
    let known: BTreeSet<_> = arrived.iter().collect();
    assert_eq!(known.len() as u64, EVENTS, "{what}");
    assert!(lost > 0, "{what}");
    assert_eq!(
        (arrived.len() - known.len()) as u64,
        lost,
        "{what}: each lost answer is a repeat"
    );
    assert_order(arrived, on_failure, what);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_each_key_in_order_and_a_line_more_for_each_lost_answer() {
    for on_failure in [OnFailure::Block, OnFailure::Park] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delivered.ndjson");
        let host = path.to_str().unwrap();
        let lost = deliver_troubled(folder.path(), Kind::File, host, on_failure).await;
        assert_held(
            &lines_of(&path),
            lost,
            on_failure,
            &format!("{on_failure:?}"),
        );
    }
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_each_key_in_order_and_a_record_more_for_each_lost_answer() {
    for on_failure in [OnFailure::Block, OnFailure::Park] {
        let folder = tempfile::tempdir().unwrap();
        let topic = kafka::Topic::new("orders", 4);
        let servers = topic.servers();
        let lost = deliver_troubled(folder.path(), Kind::Kafka, &servers, on_failure).await;
        let expected = usize::try_from(EVENTS + lost).unwrap();
        let records = tokio::task::block_in_place(|| topic.records(expected));
        assert_held(&records, lost, on_failure, &format!("{on_failure:?}"));
    }
}

/// A topic of librdkafka's mock cluster.
#[cfg(feature = "kafka")]
mod kafka {
    use std::time::{Duration, Instant};

    use rdkafka::config::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::{Headers as _, Message as _};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::{Offset, TopicPartitionList};

    /// How long records that were confirmed may take to be read, and how long silence means that there are no more.
    const PATIENCE: Duration = Duration::from_secs(30);
    const QUIET: Duration = Duration::from_secs(1);

    pub(super) struct Topic {
        cluster: MockCluster<'static, DefaultProducerContext>,
        name: &'static str,
        partitions: i32,
    }

    impl Topic {
        pub(super) fn new(name: &'static str, partitions: i32) -> Self {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic(name, partitions, 1).unwrap();
            Self {
                cluster,
                name,
                partitions,
            }
        }

        pub(super) fn servers(&self) -> String {
            self.cluster.bootstrap_servers()
        }

        /// Ids of all records, those of each partition in its order; at least so many.
        pub(super) fn records(&self, at_least: usize) -> Vec<u64> {
            let consumer: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", self.servers())
                .set("group.id", "judge")
                .create()
                .unwrap();
            let mut all = TopicPartitionList::new();
            for partition in 0..self.partitions {
                all.add_partition_offset(self.name, partition, Offset::Beginning)
                    .unwrap();
            }
            consumer.assign(&all).unwrap();
            let begun = Instant::now();
            let mut ids = Vec::new();
            loop {
                match consumer.poll(QUIET) {
                    Some(Ok(message)) => {
                        let headers = message.headers().unwrap();
                        let id = headers.iter().find(|header| header.key == "ce_id").unwrap();
                        let id = std::str::from_utf8(id.value.unwrap()).unwrap();
                        ids.push(id.parse().unwrap());
                    }
                    Some(Err(_)) => {}
                    None if ids.len() >= at_least => return ids,
                    None => assert!(begun.elapsed() < PATIENCE, "{} of {at_least}", ids.len()),
                }
            }
        }
    }
}
