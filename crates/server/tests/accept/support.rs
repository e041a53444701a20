//! A front with a keeper in memory behind it, and a client that sends exactly the bytes it is told to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wayhold::auth::{Auth, Openness};
use wayhold::clock::{Entropy, SystemClock, SystemEntropy};
use wayhold::config::{Limits, ParseMode, Unmatched};
use wayhold::http::{Events, Front, Listener, Server};
use wayhold::ingest::{Accept, Keeper, Rules};
use wayhold::sink::BoxFuture;
use wayhold::telemetry::metrics::Metrics;
use wayhold_model::key::KeyRules;
use wayhold_model::route::{RouteRule, Router};
use wayhold_model::{Clock, DestinationId, Event, Generation, Position, Sequence, ShardId, hash};
use wayhold_store::catalog::Catalog;
use wayhold_store::disk::SystemDisk;
use wayhold_store::{AppendError, NewEvent, Receipt};

/// Longest wait for an answer; far above what any test needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a test server differs from the defaults.
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) mode: ParseMode,
    pub(crate) unmatched: Unmatched,
    pub(crate) routes: Vec<RouteRule>,
    pub(crate) keys: KeyRules,
    pub(crate) openness: Openness,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            mode: ParseMode::Strict,
            unmatched: Unmatched::Refuse,
            routes: vec![RouteRule {
                name: "all".into(),
                when: None,
                to: vec![DestinationId(1)],
            }],
            keys: KeyRules::default(),
            openness: Openness::Guarded,
        }
    }
}

/// Keeps events as the store promises to, but in memory.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) events: Mutex<Vec<Arc<Event>>>,
    places: Mutex<HashMap<u128, usize>>,
    /// Appends that still succeed before the keeper is out of order.
    pub(crate) remaining: Mutex<Option<(usize, AppendError)>>,
    /// Whether an append panics.
    pub(crate) panics: Mutex<bool>,
}

impl Keeper for Memory {
    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<Receipt>, AppendError>> {
        Box::pin(async move { self.keep(events) })
    }
}

impl Memory {
    fn keep(&self, new: Vec<NewEvent>) -> Result<Vec<Receipt>, AppendError> {
        assert!(!*self.panics.lock().unwrap(), "as the test asked");
        if let Some((remaining, error)) = self.remaining.lock().unwrap().as_mut() {
            *remaining = remaining.checked_sub(1).ok_or_else(|| error.clone())?;
        }
        let mut events = self.events.lock().unwrap();
        let mut places = self.places.lock().unwrap();
        let position = |place: usize| Position {
            generation: Generation(1),
            shard: ShardId(0),
            sequence: Sequence(place as u64),
        };
        let (before, mut receipts) = (events.len(), Vec::new());
        let mut added: Vec<(u128, Arc<Event>)> = Vec::new();
        for (
            index,
            NewEvent {
                event, identified, ..
            },
        ) in new.into_iter().enumerate()
        {
            let id = hash::id_hash(&event, 0);
            let place = before + added.len();
            let earlier = identified.then(|| places.get(&id).copied()).flatten();
            let in_batch = added
                .iter()
                .position(|(other, _)| identified && *other == id);
            let same = |other: &Event| hash::fingerprint(other, 0) == hash::fingerprint(&event, 0);
            match (earlier, in_batch) {
                (Some(first), _) if same(&events[first]) => {
                    receipts.push(Receipt {
                        position: position(first),
                        duplicate: true,
                    });
                }
                (Some(first), _) => {
                    return Err(AppendError::Conflict {
                        index,
                        first: position(first),
                    });
                }
                (None, Some(first)) if same(&added[first].1) => {
                    receipts.push(Receipt {
                        position: position(before + first),
                        duplicate: true,
                    });
                }
                (None, Some(first)) => return Err(AppendError::ConflictInBatch { index, first }),
                (None, None) => {
                    receipts.push(Receipt {
                        position: position(place),
                        duplicate: false,
                    });
                    added.push((id, event));
                }
            }
        }
        for (id, event) in added {
            places.insert(id, events.len());
            events.push(event);
        }
        Ok(receipts)
    }
}

/// Sends one request to `address` on a connection of its own.
pub(crate) async fn send(address: &str, head: &str, body: &[u8]) -> Answer {
    let mut connection = connect(address).await;
    connection.send(&request(head, body)).await;
    connection.answer().await.expect("an answer")
}

pub(crate) async fn connect(address: &str) -> Connection {
    Connection {
        stream: TcpStream::connect(address).await.unwrap(),
        received: Vec::new(),
    }
}

/// A running front; its events are kept in memory.
pub(crate) struct Running {
    pub(crate) memory: Arc<Memory>,
    pub(crate) address: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) auth: Auth,
    pub(crate) server: Server,
    folder: TempDir,
}

impl Running {
    pub(crate) async fn start(setup: Setup) -> Self {
        Self::start_on("127.0.0.1:0", setup).await
    }

    pub(crate) async fn start_on(address: &str, setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let catalog = Catalog::open(folder.path(), &SystemDisk, Arc::clone(&clock), 1).unwrap();
        let auth = Auth::new(Arc::new(catalog), setup.openness, Arc::clone(&clock));
        let metrics = Arc::new(Metrics::default());
        let limits = setup.limits.clone();
        let rules = Rules {
            router: Router::new(setup.routes),
            keys: setup.keys,
            unmatched: setup.unmatched,
            mode: setup.mode,
            source: "/plain".into(),
            limits: setup.limits,
        };
        let memory = Arc::new(Memory::default());
        let keeper: Arc<dyn Keeper> = Arc::clone(&memory) as _;
        let accept = Accept::into_other(keeper, rules, clock, entropy, Arc::clone(&metrics));
        let events = Events::new(accept, auth.clone(), Arc::clone(&metrics));
        let router = wayhold::http::unserved(wayhold::http::pages());
        let front = Arc::new(Front::new(events, router));
        let listener = Listener::bind(&address.parse().unwrap()).await.unwrap();
        let server = Server::start(vec![listener], front, &limits).unwrap();
        let address = server.addresses()[0].to_string();
        Self {
            memory,
            address,
            metrics,
            auth,
            server,
            folder,
        }
    }

    /// How many events are kept.
    pub(crate) fn accepted(&self) -> usize {
        self.memory.events.lock().unwrap().len()
    }

    /// The event that was kept last.
    pub(crate) fn last(&self) -> Arc<Event> {
        Arc::clone(self.memory.events.lock().unwrap().last().expect("an event"))
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, head: &str, body: &[u8]) -> Answer {
        send(&self.address, head, body).await
    }

    /// `POST /v1/events` with these headers (each line ending with CRLF) and body.
    pub(crate) async fn post(&self, query: &str, headers: &str, body: &[u8]) -> Answer {
        self.send(
            &format!("POST /v1/events{query} HTTP/1.1\r\n{headers}"),
            body,
        )
        .await
    }

    pub(crate) async fn connect(&self) -> Connection {
        connect(&self.address).await
    }
}

/// A request whose length is right.
pub(crate) fn request(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{head}Host: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Last segment of the problem's type.
    pub(crate) fn problem(&self) -> String {
        let json = self.json();
        let kind = json["type"].as_str().unwrap_or_default();
        kind.strip_prefix("/problems/")
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A raw connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Sends bytes; a server that has closed already is no error here.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes).await);
    }

    /// The next answer, or `None` when the server closed instead.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        tokio::time::timeout(PATIENCE, self.read_answer())
            .await
            .expect("an answer in time")
    }

    /// Everything until the server closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.received);
        let read = self.stream.read_to_end(&mut bytes);
        drop(
            tokio::time::timeout(PATIENCE, read)
                .await
                .expect("a closed connection in time"),
        );
        bytes
    }

    async fn read_answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.received[..end]).into_owned();
                if head.starts_with("HTTP/1.1 100") {
                    self.received.drain(..end + 4);
                    continue;
                }
                let answer = Answer {
                    status: head[9..12].parse().unwrap(),
                    head,
                    body: Vec::new(),
                };
                let length: usize = answer
                    .header("content-length")
                    .map_or(0, |value| value.parse().unwrap());
                if self.received.len() >= end + 4 + length {
                    let body = self.received[end + 4..end + 4 + length].to_vec();
                    self.received.drain(..end + 4 + length);
                    return Some(Answer { body, ..answer });
                }
            }
            if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
}

/// `bytes` as gzip.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
