//! The suite that every sink runs, against a rig: the sink and something that tells what arrived at
//! its destination.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayhold_model::{
    DestinationSet, Event, EventParts, Generation, Outcome, OutcomeKind, Position, Sequence,
    ShardId, StoredEvent, Timestamp,
};

use super::{Attempt, BoxFuture, Finished, Sink};

/// Longest that any single wait of the suite may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a destination got of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) id: String,
    pub(crate) subject: String,
    pub(crate) note: String,
    pub(crate) data: Vec<u8>,
}

impl Received {
    /// What one structured CloudEvent says.
    pub(crate) fn of_structured(line: &str) -> Self {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let data = if let Some(encoded) = value["data_base64"].as_str() {
            STANDARD.decode(encoded).unwrap()
        } else if value["datacontenttype"] == "application/json" {
            #[derive(serde::Deserialize)]
            struct Line<'a> {
                #[serde(borrow)]
                data: &'a serde_json::value::RawValue,
            }
            let line: Line<'_> = serde_json::from_str(line).unwrap();
            line.data.get().as_bytes().to_vec()
        } else {
            text("data").into_bytes()
        };
        Self {
            id: text("id"),
            subject: text("subject"),
            note: text("note"),
            data,
        }
    }
}

/// A sink and a view of its destination.
pub(crate) trait Rig: Sync {
    /// The sink under test; the same each time.
    fn sink(&self) -> &dyn Sink;
    /// Everything that arrived so far, in order; `None` where the destination keeps nothing.
    fn received(&self, at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>>;
}

/// Runs the whole suite, and stops the sink.
pub(crate) async fn exercise(rig: &dyn Rig) {
    every_attempt_finishes_exactly_once_and_arrives(rig).await;
    order_of_submission_is_kept_per_key(rig).await;
    hostile_attributes_and_data_arrive_as_they_were(rig).await;
    nothing_is_held_after_ten_thousand_attempts(rig).await;
    stopping_ends_every_attempt(rig.sink()).await;
}

/// A destination that is not there gives "not executed": nothing can have happened.
pub(crate) async fn a_dead_destination_gives_not_executed(sink: &dyn Sink) {
    let mut lane = Lane::new(8);
    lane.submit(
        sink,
        (0..8).map(|n| event(&format!("dead-{n}"), Some("k"), b"1")),
    );
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted, "{outcome:?}");
    }
    sink.stop(Duration::from_secs(2)).await;
}

/// The place of a lane: hands out attempts and collects how they ended.
pub(crate) struct Lane {
    finished: mpsc::Sender<Finished>,
    results: mpsc::Receiver<Finished>,
    submitted: u64,
    ended: HashSet<u64>,
    pub(crate) attempt_timeout: Duration,
}

impl Lane {
    pub(crate) fn new(window: usize) -> Self {
        let (finished, results) = mpsc::channel(window);
        Self {
            finished,
            results,
            submitted: 0,
            ended: HashSet::new(),
            attempt_timeout: Duration::from_secs(10),
        }
    }

    /// Submits the first attempt of each event, in one batch.
    pub(crate) fn submit(
        &mut self,
        sink: &dyn Sink,
        events: impl IntoIterator<Item = Arc<StoredEvent>>,
    ) {
        self.submit_numbered(sink, 1, events);
    }

    /// Submits attempts of this number.
    pub(crate) fn submit_numbered(
        &mut self,
        sink: &dyn Sink,
        number: u32,
        events: impl IntoIterator<Item = Arc<StoredEvent>>,
    ) {
        let mut attempts: Vec<_> = events
            .into_iter()
            .map(|event| {
                let token = self.submitted;
                self.submitted += 1;
                Attempt::new(
                    event,
                    number,
                    self.attempt_timeout,
                    token,
                    self.finished.clone(),
                )
            })
            .collect();
        sink.submit(&mut attempts);
        assert!(attempts.is_empty(), "a sink drains what it is given");
    }

    /// The next attempt that ends: how, and its token.
    pub(crate) async fn next(&mut self) -> (Outcome, u64) {
        let finished = timeout(PATIENCE, self.results.recv())
            .await
            .expect("every attempt ends in time")
            .expect("the lane holds a sender");
        assert!(self.ended.insert(finished.token), "an attempt ended twice");
        (finished.outcome, finished.token)
    }

    /// Waits until everything submitted has ended; the outcomes in the order of submission.
    pub(crate) async fn finish_all(&mut self) -> Vec<(Outcome, u64)> {
        let mut all = Vec::new();
        while (self.ended.len() as u64) < self.submitted {
            all.push(self.next().await);
        }
        all.sort_by_key(|(_, token)| *token);
        all
    }

    /// The next `count` attempts that end, in the order of submission.
    #[cfg(feature = "kafka")]
    pub(crate) async fn finish_new(&mut self, count: usize) -> Vec<(Outcome, u64)> {
        let mut ended = Vec::new();
        for _ in 0..count {
            ended.push(self.next().await);
        }
        ended.sort_by_key(|(_, token)| *token);
        ended
    }

    async fn expect_all_delivered(&mut self) {
        for (outcome, token) in self.finish_all().await {
            assert_eq!(outcome, Outcome::Delivered, "attempt {token}");
        }
    }
}

/// An event with JSON data.
pub(crate) fn event(id: &str, key: Option<&str>, data: &[u8]) -> Arc<StoredEvent> {
    stored(&EventParts {
        id,
        source: "/contract",
        kind: "contract.tested",
        key: key.unwrap_or_default(),
        content_type: "application/json",
        data: Bytes::copy_from_slice(data),
        ..EventParts::default()
    })
}

/// The same from any parts.
pub(crate) fn stored(parts: &EventParts<'_>) -> Arc<StoredEvent> {
    let event = Event::new(parts).unwrap();
    Arc::new(StoredEvent {
        position: Position {
            generation: Generation(1),
            shard: ShardId(0),
            sequence: Sequence(1),
        },
        accepted_at: Timestamp::from_micros(1_700_000_000_000_000),
        destinations: Arc::new(DestinationSet::new([])),
        key_hash: None,
        event: Arc::new(event),
    })
}

async fn received_starting(rig: &dyn Rig, prefix: &str, count: usize) -> Option<Vec<Received>> {
    // The rig may hold what earlier parts of the suite sent: wait until enough of ours is there.
    for more in [count, count * 4, count * 16, count * 64, count * 1024] {
        let mut all = rig.received(more).await?;
        all.retain(|received| received.id.starts_with(prefix));
        if all.len() >= count {
            return Some(all);
        }
    }
    panic!("{count} events {prefix}* never arrived");
}

async fn every_attempt_finishes_exactly_once_and_arrives(rig: &dyn Rig) {
    let mut lane = Lane::new(64);
    lane.submit(
        rig.sink(),
        (0..64).map(|n| event(&format!("once-{n}"), None, b"1")),
    );
    lane.expect_all_delivered().await;
    if let Some(received) = received_starting(rig, "once-", 64).await {
        let ids: HashSet<_> = received.iter().map(|r| r.id.as_str()).collect();
        assert_eq!((ids.len(), received.len()), (64, 64));
    }
}

async fn order_of_submission_is_kept_per_key(rig: &dyn Rig) {
    const KEYS: usize = 8;
    const EACH: usize = 12;
    let mut lane = Lane::new(KEYS);
    for round in 0..EACH {
        let of_round = |key| {
            event(
                &format!("order-{key}-{round:03}"),
                Some(&format!("key {key}")),
                b"{}",
            )
        };
        lane.submit(rig.sink(), (0..KEYS).map(of_round));
        lane.expect_all_delivered().await;
    }
    let Some(received) = received_starting(rig, "order-", KEYS * EACH).await else {
        return;
    };
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Received { id, .. } in received {
        let (key, round) = id.rsplit_once('-').unwrap();
        by_key
            .entry(key.to_owned())
            .or_default()
            .push(round.to_owned());
    }
    assert_eq!(by_key.len(), KEYS);
    for (key, rounds) in by_key {
        assert!(rounds.is_sorted(), "{key}: {rounds:?}");
    }
}

async fn hostile_attributes_and_data_arrive_as_they_were(rig: &dyn Rig) {
    let texts = [
        "a b",
        "100%",
        "\"q\"",
        "%41 is not A",
        "Zürich",
        "Euro € 😀",
        "a+b&c=d;e,f",
    ];
    let data: [(&str, &[u8]); 5] = [
        (
            "application/json",
            br#"{ "price": 1.00, "name": "Z\u00fcrich" }"#,
        ),
        ("application/json", b"12345678901234567890.10"),
        ("text/plain", "Grüße\n\"x\"\t".as_bytes()),
        ("application/octet-stream", &[0, 1, 255, 10, 13, 0]),
        ("", b"of no known type"),
    ];
    let mut sent = Vec::new();
    let mut lane = Lane::new(texts.len() * data.len());
    for (t, text) in texts.iter().enumerate() {
        for (d, (content_type, bytes)) in data.iter().enumerate() {
            let id = format!("hostile-{t}-{d} {text}");
            let extensions = serde_json::json!({ "note": text }).to_string();
            lane.submit(
                rig.sink(),
                [stored(&EventParts {
                    id: &id,
                    source: "/contract",
                    kind: "contract.tested",
                    subject: text,
                    content_type,
                    extensions: &extensions,
                    data: Bytes::copy_from_slice(bytes),
                    ..EventParts::default()
                })],
            );
            sent.push(Received {
                id,
                subject: (*text).to_owned(),
                note: (*text).to_owned(),
                data: bytes.to_vec(),
            });
        }
    }
    lane.expect_all_delivered().await;
    let Some(mut received) = received_starting(rig, "hostile-", sent.len()).await else {
        return;
    };
    received.sort_by(|a, b| a.id.cmp(&b.id));
    sent.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(received, sent);
}

async fn nothing_is_held_after_ten_thousand_attempts(rig: &dyn Rig) {
    const WINDOW: usize = 100;
    let event = event("many", None, b"{}");
    let mut lane = Lane::new(WINDOW);
    for _ in 0..10_000 / WINDOW {
        lane.submit(rig.sink(), (0..WINDOW).map(|_| Arc::clone(&event)));
        lane.expect_all_delivered().await;
    }
    // An attempt's event is let go right after it was reported, perhaps by another thread.
    timeout(PATIENCE, async {
        while Arc::strong_count(&event) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a sink lets go of events whose attempts have ended");
}

async fn stopping_ends_every_attempt(sink: &dyn Sink) {
    let mut lane = Lane::new(32);
    lane.submit(
        sink,
        (0..32).map(|n| event(&format!("stop-{n}"), None, b"1")),
    );
    timeout(PATIENCE, sink.stop(Duration::from_secs(5)))
        .await
        .expect("stopping is bounded");
    assert_eq!(lane.finish_all().await.len(), 32);
    sink.stop(Duration::ZERO).await;
}
