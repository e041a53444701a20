//! Lanes over the real store, against a destination whose answers are scripted: what arrives, in which
//! order, how often, and what is left on record.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where what it rests on does not hold"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use wayhold::clock::{Entropy, SystemClock};
use wayhold::config::{DeliveryPolicy, OnDeadLetter, OnFailure};
use wayhold::dispatch::{Dispatcher, LaneState, Service, Surroundings, Target};
use wayhold::redelivery::{Letters, RedeliveryError};
use wayhold::sink::{Attempt, BoxFuture, Sink};
use wayhold::telemetry::metrics::Metrics;
use wayhold_model::backoff::Backoff;
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::verdict::RetryPolicy;
use wayhold_model::{
    Clock, DestinationId, DestinationSet, Event, EventParts, Failure, Outcome, Position, Timestamp,
};
use wayhold_store::{DeliveryState, LetterError, NewEvent, Options, RunState, Store};

/// Longest any test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

// --- a destination by script ---

/// What the destination does with one attempt.
#[derive(Clone, Debug)]
enum Answer {
    Ends(Outcome),
    EndsAfter(Duration, Outcome),
    Never,
    Panic,
}

#[derive(Clone, Debug)]
struct Arrival {
    id: u64,
    key: Option<String>,
    number: u32,
    delivered: bool,
}

type Script = Box<dyn FnMut(&Attempt, usize) -> Answer + Send>;

/// A destination that answers by script and writes down what arrives. It also holds the promise that
/// of one key only so many are in flight.
struct Scripted {
    script: Mutex<Script>,
    arrivals: Mutex<Vec<Arrival>>,
    in_flight: Arc<Mutex<HashMap<String, u32>>>,
    per_key_max: u32,
    unanswered: Mutex<Vec<Attempt>>,
}

impl Scripted {
    fn new(script: impl FnMut(&Attempt, usize) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            arrivals: Mutex::default(),
            in_flight: Arc::default(),
            per_key_max: 1,
            unanswered: Mutex::default(),
        })
    }

    fn delivering() -> Arc<Self> {
        Self::new(|_, _| Answer::Ends(Outcome::Delivered))
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap().clone()
    }

    fn delivered(&self) -> BTreeSet<u64> {
        self.arrivals()
            .iter()
            .filter(|arrival| arrival.delivered)
            .map(|arrival| arrival.id)
            .collect()
    }

    fn ids(&self) -> Vec<u64> {
        self.arrivals().iter().map(|arrival| arrival.id).collect()
    }
}

fn number_of(attempt: &Attempt) -> u64 {
    attempt.event.event.id().parse().unwrap()
}

impl Sink for Scripted {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        for attempt in attempts.drain(..) {
            let before = self.arrivals.lock().unwrap().len();
            let answer = (self.script.lock().unwrap())(&attempt, before);
            let key = attempt.event.event.key().map(str::to_owned);
            self.arrivals.lock().unwrap().push(Arrival {
                id: number_of(&attempt),
                key: key.clone(),
                number: attempt.number,
                delivered: matches!(
                    answer,
                    Answer::Ends(Outcome::Delivered) | Answer::EndsAfter(_, Outcome::Delivered)
                ),
            });
            match answer {
                Answer::Ends(outcome) => attempt.finish(outcome),
                Answer::EndsAfter(wait, outcome) => {
                    if let Some(key) = &key {
                        let mut in_flight = self.in_flight.lock().unwrap();
                        let of_key = in_flight.entry(key.clone()).or_default();
                        *of_key += 1;
                        assert!(*of_key <= self.per_key_max, "{key} is in flight already");
                    }
                    let in_flight = Arc::clone(&self.in_flight);
                    tokio::spawn(async move {
                        sleep(wait).await;
                        if let Some(key) = key {
                            *in_flight.lock().unwrap().get_mut(&key).unwrap() -= 1;
                        }
                        attempt.finish(outcome);
                    });
                }
                Answer::Never => self.unanswered.lock().unwrap().push(attempt),
                Answer::Panic => panic!("as the script says"),
            }
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async { Ok("scripted".to_owned()) })
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async { self.unanswered.lock().unwrap().clear() })
    }
}

// --- randomness and time by hand ---

/// SplitMix64: the same numbers in every run.
struct Seeded(AtomicU64);

impl Seeded {
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(seed)))
    }
}

impl Entropy for Seeded {
    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The system's clock, moved by hand.
#[derive(Default)]
struct Shifted {
    back: AtomicU64,
}

impl Clock for Shifted {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros() - self.back.load(Relaxed))
    }
}

// --- a server in miniature ---

fn policy() -> DeliveryPolicy {
    let backoff = Backoff::try_new(Duration::from_millis(1), Duration::from_millis(20)).unwrap();
    DeliveryPolicy {
        on_failure: OnFailure::Block,
        on_dead_letter: OnDeadLetter::Release,
        retry: RetryPolicy {
            backoff,
            attempts_max: None,
        },
        breaker: BreakerPolicy {
            failures: 1_000_000,
            open: Duration::from_millis(10),
            open_max: Duration::from_millis(50),
        },
        concurrency: 16,
        in_flight_per_key: 1,
        timeout: Duration::from_secs(5),
        max_blocked_keys: 10_000,
    }
}

struct Server {
    store: Store,
    dispatcher: Dispatcher,
    ids: Vec<DestinationId>,
}

impl Server {
    async fn start(folder: &Path, lanes: Vec<(&str, DeliveryPolicy, Arc<Scripted>)>) -> Self {
        Self::start_with(folder, lanes, Arc::new(SystemClock)).await
    }

    async fn start_with(
        folder: &Path,
        lanes: Vec<(&str, DeliveryPolicy, Arc<Scripted>)>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let folder = folder.to_owned();
        let names: Vec<_> = lanes.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let mut services: BTreeMap<_, _> = lanes
            .into_iter()
            .map(|(name, policy, sink)| {
                let sink: Arc<dyn Sink> = sink;
                (name.to_owned(), Service { policy, sink })
            })
            .collect();
        let opening = move || {
            let (store, _) = Store::open(&folder, Options::default(), Arc::clone(&clock)).unwrap();
            let records = store.catalog().sync_destinations(&names).unwrap();
            (store, records, clock)
        };
        let (store, records, clock) = tokio::task::spawn_blocking(opening).await.unwrap();
        let around = Surroundings {
            store: store.clone(),
            metrics: Arc::new(Metrics::default()),
            clock,
            entropy: Seeded::new(7),
        };
        let ids = records.iter().map(|record| record.id).collect();
        let targets = records
            .into_iter()
            .map(|record| Target {
                service: services.remove(&record.name),
                record,
            })
            .collect();
        let dispatcher = Dispatcher::start(&around, targets).unwrap();
        Self {
            store,
            dispatcher,
            ids,
        }
    }

    /// Appends events whose id is their number, in one batch.
    async fn accept(
        &self,
        events: impl IntoIterator<Item = (u64, Option<String>)>,
    ) -> Vec<Position> {
        self.accept_for(&self.ids, events).await
    }

    async fn accept_for(
        &self,
        destinations: &[DestinationId],
        events: impl IntoIterator<Item = (u64, Option<String>)>,
    ) -> Vec<Position> {
        let destinations = Arc::new(DestinationSet::new(destinations.iter().copied()));
        let event = |(id, key): (u64, Option<String>)| NewEvent {
            event: Arc::new(
                Event::new(&EventParts {
                    id: &id.to_string(),
                    source: "/test",
                    kind: "t",
                    key: key.as_deref().unwrap_or_default(),
                    data: b"{}".as_slice().into(),
                    ..EventParts::default()
                })
                .unwrap(),
            ),
            destinations: Arc::clone(&destinations),
            identified: true,
        };
        let receipts = self
            .store
            .append(events.into_iter().map(event).collect())
            .await
            .unwrap();
        receipts.iter().map(|receipt| receipt.position).collect()
    }

    fn letters(&self) -> Letters {
        Letters::new(self.store.clone(), self.dispatcher.clone())
    }

    fn pending(&self) -> u64 {
        self.ids
            .iter()
            .map(|id| self.store.totals(*id).pending)
            .sum()
    }

    fn assert_identity(&self) {
        for id in &self.ids {
            let t = self.store.totals(*id);
            let sum = t.delivered + t.pending + t.dead + t.expired + t.discarded;
            assert_eq!(t.accepted, sum, "{t:?}");
        }
    }

    async fn stop(self) {
        self.dispatcher.stop(Duration::from_millis(200)).await;
        let store = self.store;
        tokio::task::spawn_blocking(move || store.stop())
            .await
            .unwrap();
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        timeout(PATIENCE, wait).await.is_ok(),
        "waited in vain until {what}"
    );
}

fn keyed(id: u64, keys: u64) -> (u64, Option<String>) {
    (id, Some(format!("k{}", id % keys)))
}

/// Within each key, first appearances come in order of acceptance, which is by number here.
fn assert_first_appearances_in_order(arrivals: &[Arrival]) {
    let mut seen = BTreeSet::new();
    let mut last: HashMap<&str, u64> = HashMap::new();
    for arrival in arrivals.iter().filter(|arrival| seen.insert(arrival.id)) {
        if let Some(key) = &arrival.key
            && let Some(before) = last.insert(key, arrival.id)
        {
            assert!(
                before < arrival.id,
                "{} of {key} came after {before}",
                arrival.id
            );
        }
    }
}

/// Under `block`, nothing of a key is sent between a failed attempt and the one that delivers it.
fn assert_failed_ones_block(arrivals: &[Arrival]) {
    let mut open: HashMap<&str, u64> = HashMap::new();
    for arrival in arrivals {
        let Some(key) = &arrival.key else { continue };
        if let Some(blocks) = open.get(key.as_str()) {
            assert_eq!(
                *blocks, arrival.id,
                "{} overtook {blocks} of {key}",
                arrival.id
            );
        }
        if arrival.delivered {
            open.remove(key.as_str());
        } else {
            open.insert(key, arrival.id);
        }
    }
}

// --- delivery and order ---

#[tokio::test(flavor = "multi_thread")]
async fn everything_accepted_arrives_in_order_per_key_through_failures() {
    for on_failure in [OnFailure::Block, OnFailure::Park] {
        let folder = tempfile::tempdir().unwrap();
        let random = Seeded::new(1);
        let sink = Scripted::new(move |_, _| {
            let wait = Duration::from_micros(random.next() % 2_000);
            let failure = || Failure::new("by chance");
            match random.next() % 10 {
                0 => Answer::EndsAfter(wait, Outcome::NotExecuted(failure())),
                1 => Answer::EndsAfter(wait, Outcome::Unknown(failure())),
                2 => Answer::Ends(Outcome::Unknown(failure())),
                _ => Answer::EndsAfter(wait, Outcome::Delivered),
            }
        });
        let policy = DeliveryPolicy {
            on_failure,
            ..policy()
        };
        let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
        let random = Seeded::new(2);
        for batch in 0..20 {
            let events = (0..100).map(|n| {
                let key = random.next() % 40;
                (batch * 100 + n, (key < 30).then(|| format!("k{key}")))
            });
            server.accept(events).await;
        }
        until("all is delivered", || server.pending() == 0).await;
        assert_eq!(sink.delivered().len(), 2_000);
        assert_first_appearances_in_order(&sink.arrivals());
        if on_failure == OnFailure::Block {
            assert_failed_ones_block(&sink.arrivals());
        }
        server.assert_identity();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_outgrows_memory_delays_no_other_and_comes_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let sink = Scripted::new(move |attempt, _| {
        let blocked = attempt.event.event.key() == Some("hot") && !gate.load(Relaxed);
        Answer::Ends(if blocked {
            Outcome::Unknown(Failure::new("the gate is shut"))
        } else {
            Outcome::Delivered
        })
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let key = |id: u64| {
        if id.is_multiple_of(10) {
            format!("cold{}", id % 7)
        } else {
            "hot".to_owned()
        }
    };
    for batch in 0..5 {
        server
            .accept((batch * 1_000..(batch + 1) * 1_000).map(|id| (id, Some(key(id)))))
            .await;
    }
    until("the other keys are through", || {
        sink.delivered().len() == 500
    })
    .await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.blocked_keys, 1);
    assert_eq!(snapshot.blocked[0].key.as_deref(), Some("hot"));
    assert_eq!(snapshot.blocked[0].event_id.as_deref(), Some("1"));
    assert_eq!(snapshot.blocked[0].waiting, 4_499);
    open.store(true, Relaxed);
    until("the hot key is through", || server.pending() == 0).await;
    assert_failed_ones_block(&sink.arrivals());
    assert_first_appearances_in_order(&sink.arrivals());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_destination_does_not_delay_another() {
    let folder = tempfile::tempdir().unwrap();
    let dead = Scripted::new(|_, _| Answer::Never);
    let down = Scripted::new(|_, _| Answer::Ends(Outcome::NotExecuted(Failure::new("refused"))));
    let well = Scripted::delivering();
    let lanes = vec![
        ("dead", policy(), Arc::clone(&dead)),
        ("down", policy(), Arc::clone(&down)),
        ("well", policy(), Arc::clone(&well)),
    ];
    let server = Server::start(folder.path(), lanes).await;
    for batch in 0..20 {
        server
            .accept((batch * 100..(batch + 1) * 100).map(|id| keyed(id, 50)))
            .await;
    }
    until("the healthy one has all", || {
        well.delivered().len() == 2_000
    })
    .await;
    assert_eq!(
        dead.arrivals().len(),
        policy().concurrency,
        "bounded by concurrency"
    );
    assert!(down.delivered().is_empty());
    server.assert_identity();
    server.stop().await;
}

// --- failures and policy ---

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_dead_at_once_and_a_redrive_goes_before_unsent_ones() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&gate);
    let sink = Scripted::new(
        move |attempt, _| match (number_of(attempt), attempt.number) {
            (1, 1) => Answer::Ends(Outcome::Refused(Failure::new("too large").with_status(413))),
            (2, _) if !open.load(Relaxed) => {
                Answer::Ends(Outcome::Unknown(Failure::new("the gate is shut")))
            }
            _ => Answer::Ends(Outcome::Delivered),
        },
    );
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let positions = server.accept((1..=3).map(|id| keyed(id, 1))).await;
    until("the first is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    let listed = server.letters().list(None, None, 10).await.unwrap();
    let [letter] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (letter.status, letter.event.position),
        (Some(413), positions[0])
    );
    assert_eq!(
        (letter.class.as_str(), letter.reason.as_str()),
        ("refused", "too large")
    );

    // 2 blocks, 3 waits; the redriven 1 goes before 3.
    let redriven = server.letters().redrive(letter.id, "ada").await.unwrap();
    assert!(redriven.redriving);
    until("the letter is gone", || {
        server.store.totals(server.ids[0]).dead == 0
    })
    .await;
    gate.store(true, Relaxed);
    until("all is delivered", || server.pending() == 0).await;
    let ids = sink.ids();
    let last = |id| ids.iter().rposition(|other| *other == id).unwrap();
    assert!(last(1) < last(3), "{ids:?}");
    let totals = server.store.totals(server.ids[0]);
    assert_eq!((totals.delivered, totals.dead, totals.redriven), (3, 0, 1));
    server.assert_identity();
    assert!(matches!(
        server.letters().redrive(letter.id, "ada").await,
        Err(RedeliveryError::Letter(LetterError::NotFound { .. }))
    ));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_redrives_at_once_one_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match attempt.number {
        1 => Answer::Ends(Outcome::Refused(Failure::new("no"))),
        _ => Answer::Never,
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept([keyed(1, 1)]).await;
    until("it is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    let id = server.letters().list(None, None, 10).await.unwrap()[0].id;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let letters = server.letters();
        calls.spawn(async move { letters.redrive(id, "ada").await });
    }
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for answer in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(answer.to_string().contains("already under way"), "{answer}");
    }
    until("it is sent again", || sink.arrivals().len() == 2).await;
    assert_eq!(server.pending(), 1, "a letter under redrive is pending");
    assert!(matches!(
        server.letters().discard(id, "ada", "obsolete").await,
        Err(RedeliveryError::Letter(LetterError::Redriving { .. }))
    ));
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_waits_until_its_letter_is_discarded_also_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let policy = DeliveryPolicy {
        on_dead_letter: OnDeadLetter::Hold,
        ..policy()
    };
    let refuse_first = || {
        Scripted::new(|attempt, _| match number_of(attempt) {
            1 => Answer::Ends(Outcome::Refused(Failure::new("no"))),
            _ => Answer::Ends(Outcome::Delivered),
        })
    };
    let sink = refuse_first();
    let lane = |sink: &Arc<Scripted>| vec![("a", policy.clone(), Arc::clone(sink))];
    let server = Server::start(folder.path(), lane(&sink)).await;
    server
        .accept([1, 2].map(|id| (id, Some("held".to_owned()))))
        .await;
    server.accept([(3, Some("free".to_owned()))]).await;
    until("the free key is through", || sink.ids().contains(&3)).await;
    until("the first is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    server.stop().await;

    let sink = refuse_first();
    let server = Server::start(folder.path(), lane(&sink)).await;
    server.accept([(4, Some("free".to_owned()))]).await;
    until("the free key is through", || sink.ids() == [4]).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert!(snapshot.blocked[0].held);
    let id = server
        .letters()
        .list(Some(server.ids[0]), None, 10)
        .await
        .unwrap()[0]
        .id;
    assert!(matches!(
        server.letters().discard(id, "ada", " ").await,
        Err(RedeliveryError::NoReason)
    ));
    server
        .letters()
        .discard(id, "ada", "the order was cancelled")
        .await
        .unwrap();
    until("the held key goes on", || server.pending() == 0).await;
    assert_eq!(sink.ids(), [4, 2]);
    assert_eq!(server.store.totals(server.ids[0]).discarded, 1);
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_up_to_their_limit_and_kept_with_the_letter() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|_, _| {
        Answer::Ends(Outcome::NotExecuted(
            Failure::new("try later").with_status(503),
        ))
    });
    let mut policy = policy();
    policy.retry.attempts_max = Some(3);
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    server.accept([keyed(1, 1)]).await;
    until("it is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    assert_eq!(
        sink.arrivals().iter().map(|a| a.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    let letter = server
        .letters()
        .list(None, None, 10)
        .await
        .unwrap()
        .remove(0);
    let numbers: Vec<_> = letter
        .attempts
        .iter()
        .map(|attempt| attempt.number)
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(letter.class, "not_executed");

    // A redrive gets the whole policy anew.
    server.letters().redrive(letter.id, "ada").await.unwrap();
    until("it is dead again", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    assert_eq!(
        sink.arrivals().iter().map(|a| a.number).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_opens_the_breaker_and_recovery_starts_with_one_probe() {
    let folder = tempfile::tempdir().unwrap();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let sink = Scripted::new(move |_, _| {
        Answer::Ends(if is_up.load(Relaxed) {
            Outcome::Delivered
        } else {
            Outcome::NotExecuted(Failure::new("connection refused"))
        })
    });
    let mut policy = policy();
    policy.breaker.failures = 5;
    policy.breaker.open = Duration::from_millis(20);
    policy.breaker.open_max = Duration::from_millis(20);
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    server.accept((0..200).map(|id| keyed(id, 200))).await;
    until("a probe failed", || sink.arrivals().len() > 20).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Waiting);
    assert_eq!(snapshot.reason.as_deref(), Some("connection refused"));
    assert!(snapshot.last_error.unwrap().failing_since.is_some());
    up.store(true, Relaxed);
    until("all is delivered", || server.pending() == 0).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Running);
    assert_eq!(snapshot.last_error.unwrap().failing_since, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_costs_an_attempt_and_not_the_lane() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match (number_of(attempt), attempt.number) {
        (3, 1 | 2) => Answer::Panic,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((1..=9).map(|id| keyed(id, 3))).await;
    until("all is delivered", || server.pending() == 0).await;
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_back_stalls_no_retry() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Shifted::default());
    let shift = Arc::clone(&clock);
    let sink = Scripted::new(move |attempt, _| match attempt.number {
        1 => {
            shift.back.store(2 * 3_600 * 1_000_000, Relaxed);
            Answer::Ends(Outcome::NotExecuted(Failure::new("not yet")))
        }
        2 => {
            shift.back.store(0, Relaxed);
            Answer::Ends(Outcome::NotExecuted(Failure::new("not yet")))
        }
        _ => Answer::Ends(Outcome::Delivered),
    });
    let lanes = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start_with(folder.path(), lanes, clock).await;
    server.accept((0..100).map(|id| keyed(id, 100))).await;
    until("all is delivered", || server.pending() == 0).await;
    server.stop().await;
}

// --- operators and restarts ---

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_lane_holds_everything_over_a_restart_and_resumes_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::delivering();
    let lane = |sink: &Arc<Scripted>| vec![("a", policy(), Arc::clone(sink))];
    let server = Server::start(folder.path(), lane(&sink)).await;
    let record = server
        .dispatcher
        .pause("a", "ada", Some("stock-taking"))
        .await
        .unwrap();
    assert_eq!(record.state, RunState::Paused);
    let positions = server.accept((0..50).map(|id| keyed(id, 2))).await;
    server.stop().await;
    assert!(sink.arrivals().is_empty());

    let sink = Scripted::delivering();
    let server = Server::start(folder.path(), lane(&sink)).await;
    // What lies first is read from disk, beside the loop.
    let snapshot = loop {
        let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
        if snapshot.oldest.is_some() {
            break snapshot;
        }
        sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(snapshot.state, LaneState::Paused);
    assert_eq!(snapshot.reason.as_deref(), Some("stock-taking"));
    assert_eq!(snapshot.oldest, Some(positions[0]));
    assert_eq!(server.pending(), 50);
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("all is delivered", || server.pending() == 0).await;
    assert_eq!(sink.ids().len(), 50);
    assert_first_appearances_in_order(&sink.arrivals());
    assert!(server.dispatcher.pause("b", "ada", None).await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_at_a_stop_stays_pending_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 2 {
        0 => Answer::Never,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((0..10).map(|id| keyed(id, 10))).await;
    until("half is delivered", || server.pending() == 5).await;
    server.dispatcher.stop(Duration::from_millis(50)).await;
    assert_eq!(server.pending(), 5);
    server.stop().await;

    let again = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&again))]).await;
    until("the rest is delivered", || server.pending() == 0).await;
    assert_eq!(again.delivered(), BTreeSet::from([0, 2, 4, 6, 8]));
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.repeats_possible, 0, "the stop was clean");
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_destination_holds_what_it_is_owed() {
    let folder = tempfile::tempdir().unwrap();
    let silent = Scripted::new(|_, _| Answer::Never);
    let server = Server::start(folder.path(), vec![("a", policy(), silent)]).await;
    server.accept([keyed(1, 1)]).await;
    server.stop().await;

    let other = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("b", policy(), other)]).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(
        (snapshot.name.as_str(), snapshot.state),
        ("a", LaneState::Retired)
    );
    assert_eq!(server.store.totals(server.ids[0]).pending, 1);
    assert!(server.dispatcher.resume("a", "ada", None).await.is_err());
    server.stop().await;

    let back = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&back))]).await;
    until("it is delivered", || {
        back.delivered() == BTreeSet::from([1])
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_can_say_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|_, _| Answer::Never);
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let positions = server.accept((1..=3).map(|id| keyed(id, 1))).await;
    until("the first is sent", || sink.arrivals().len() == 1).await;
    let last = server
        .store
        .event(positions[2])
        .unwrap()
        .unwrap()
        .event
        .unwrap();
    let behind = server.dispatcher.behind(&last, server.ids[0]).await;
    assert_eq!(behind, Some(positions[0]));
    let first = server
        .store
        .event(positions[0])
        .unwrap()
        .unwrap()
        .event
        .unwrap();
    assert_eq!(server.dispatcher.behind(&first, server.ids[0]).await, None);
    assert_eq!(
        server
            .store
            .delivery_state(positions[2], server.ids[0])
            .unwrap(),
        DeliveryState::Pending
    );
    server.stop().await;
}

/// What a kill leaves at a quiet moment: the files as they are, without a stop.
async fn copy_of(folder: &Path) -> tempfile::TempDir {
    // Longer than any flush of the store, so that nothing is being written.
    sleep(Duration::from_millis(300)).await;
    let copy = tempfile::tempdir().unwrap();
    copy_into(folder, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_attempts_holds_though_every_attempt_is_followed_by_a_kill() {
    let mut policy = policy();
    policy.retry.attempts_max = Some(3);
    let mut folder = tempfile::tempdir().unwrap();
    let mut numbers = Vec::new();
    for round in 0..5 {
        let sink = Scripted::new(|_, _| Answer::Never);
        let lanes = vec![("a", policy.clone(), Arc::clone(&sink))];
        let server = Server::start(folder.path(), lanes).await;
        if round == 0 {
            server.accept([keyed(1, 1)]).await;
        }
        if round == 4 {
            until("it is dead", || {
                server.store.totals(server.ids[0]).dead == 1
            })
            .await;
        } else {
            until("it is sent", || sink.arrivals().len() == 1).await;
        }
        numbers.extend(sink.arrivals().iter().map(|arrival| arrival.number));
        let copy = copy_of(folder.path()).await;
        server.assert_identity();
        server.stop().await;
        folder = copy;
    }
    // The first was cut off before it could be recorded.
    assert_eq!(numbers, [1, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_only_what_was_under_way_comes_again_and_the_bound_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 10 {
        0 => Answer::Never,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((0..100).map(|id| keyed(id, 100))).await;
    until("nine in ten are delivered", || server.pending() == 10).await;
    let copy = copy_of(folder.path()).await;

    let again = Scripted::delivering();
    let lanes = vec![("a", policy(), Arc::clone(&again))];
    let successor = Server::start(copy.path(), lanes).await;
    until("the rest is delivered", || successor.pending() == 0).await;
    assert_eq!(again.delivered(), (0..10).map(|n| n * 10).collect());
    let snapshot = successor
        .dispatcher
        .snapshot(successor.ids[0])
        .await
        .unwrap();
    assert_eq!(snapshot.repeats_possible, 10);
    successor.assert_identity();
    successor.stop().await;
    server.stop().await;
}
