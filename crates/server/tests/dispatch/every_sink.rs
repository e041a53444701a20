//! Order per key through every kind of sink, as configured, against receivers that fail by chance: they answer
//! that they cannot, break the connection before they took the event, or after.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
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
}

impl Kind {
    fn keys(self) -> &'static str {
        match self {
            Self::Webhook => {
                "kind = \"webhook\"\nmode = \"structured\"\nurl = \"http://HOST/hook\""
            }
            Self::Http => "kind = \"http\"\nbody = \"cloudevent\"\nurl = \"http://HOST/api/{id}\"",
            Self::Wayhold => "kind = \"wayhold\"\nbatch.events = 20\nurl = \"http://HOST\"",
        }
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
            let id = event["id"].as_str().unwrap().parse().unwrap();
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
    let text = format!(
        "[destinations.a]\n{}\nallow_networks = [\"127.0.0.0/8\"]\nconcurrency = {CONCURRENCY}\n\
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

#[tokio::test(flavor = "multi_thread")]
async fn order_per_key_holds_through_every_sink_and_nothing_is_lost() {
    for kind in [Kind::Webhook, Kind::Http, Kind::Wayhold] {
        for on_failure in [OnFailure::Block, OnFailure::Park] {
            let folder = tempfile::tempdir().unwrap();
            let (receiver, host) = Chance::start(kind).await;
            let (policy, sink) = configured(folder.path(), kind, &host, on_failure);
            let server = Server::start_sinks(folder.path(), vec![("a", policy, sink)]).await;
            for batch in 0..EVENTS / 100 {
                let events = (batch * 100..(batch + 1) * 100).map(|id| keyed(id, KEYS));
                server.accept(events).await;
            }
            until("all is delivered", || server.pending() == 0).await;
            server.assert_identity();
            server.stop().await;
            let arrived = receiver.arrived.lock().unwrap();
            let what = format!("{kind:?} {on_failure:?}: {} failed", arrived.failed);
            assert!(arrived.failed > 0, "{what}");
            assert_eq!(arrived.known.len() as u64, EVENTS, "{what}");
            // A request that was cut off after its event was taken is the only reason for a repeat.
            if kind != Kind::Wayhold {
                assert!(arrived.repeats <= arrived.failed, "{what}");
            }
            let mut newest = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for id in arrived.taken.iter().filter(|id| seen.insert(**id)) {
                let before = newest.insert(id % KEYS, *id);
                // Parked ones may be overtaken.
                let in_order = before < Some(*id) || on_failure == OnFailure::Park;
                assert!(in_order, "{what}: {id} came after {before:?}");
            }
            if kind == Kind::Wayhold {
                assert_eq!(arrived.taken.len() as u64, EVENTS, "{what}: stored once");
            }
        }
    }
}
