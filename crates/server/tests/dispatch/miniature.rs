//! A server in miniature, and what must hold of what arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use wayhold::clock::SystemClock;
use wayhold::config::{DeliveryPolicy, OnDeadLetter, OnFailure, Recorded};
use wayhold::dispatch::{Dispatcher, Service, Surroundings, Target};
use wayhold::redelivery::Letters;
use wayhold::sink::Sink;
use wayhold::telemetry::metrics::Metrics;
use wayhold_model::backoff::{Backoff, Waits};
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::verdict::{Patience, RetryPolicy};
use wayhold_model::{Clock, DestinationId, DestinationSet, Event, EventParts, Position};
use wayhold_store::attempt_log::AttemptLog;
use wayhold_store::{NewEvent, Options, Store};

use crate::PATIENCE;
use crate::destination::{Arrival, Scripted};
use crate::hand::Seeded;

pub(crate) fn policy() -> DeliveryPolicy {
    let backoff = Backoff::try_new(Duration::from_millis(1), Duration::from_millis(20)).unwrap();
    DeliveryPolicy {
        on_failure: OnFailure::Block,
        on_dead_letter: OnDeadLetter::Release,
        retry: RetryPolicy::new(Patience {
            waits: Waits::Backoff(backoff),
            attempts_max: None,
            age_max: None,
        }),
        breaker: BreakerPolicy {
            failures: 1_000_000,
            open: Duration::from_millis(10),
            open_max: Duration::from_millis(50),
            probes: 1,
        },
        record: Recorded::Failures,
        rate: None,
        concurrency: 16,
        in_flight_per_key: 1,
        timeout: Duration::from_secs(5),
        max_blocked_keys: 10_000,
    }
}

pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) ids: Vec<DestinationId>,
}

impl Server {
    pub(crate) async fn start(
        folder: &Path,
        lanes: Vec<(&str, DeliveryPolicy, Arc<Scripted>)>,
    ) -> Self {
        Self::start_with(folder, lanes, Arc::new(SystemClock)).await
    }

    /// The same with sinks of any kind.
    pub(crate) async fn start_sinks(
        folder: &Path,
        lanes: Vec<(&str, DeliveryPolicy, Arc<dyn Sink>)>,
    ) -> Self {
        Self::start_lanes(folder, lanes, Arc::new(SystemClock)).await
    }

    pub(crate) async fn start_with(
        folder: &Path,
        lanes: Vec<(&str, DeliveryPolicy, Arc<Scripted>)>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let lanes = lanes.into_iter().map(|(name, policy, sink)| {
            let sink: Arc<dyn Sink> = sink;
            (name, policy, sink)
        });
        Self::start_lanes(folder, lanes.collect(), clock).await
    }

    async fn start_lanes(
        folder: &Path,
        lanes: Vec<(&str, DeliveryPolicy, Arc<dyn Sink>)>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let folder = folder.to_owned();
        let names: Vec<_> = lanes.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let mut services: BTreeMap<_, _> = lanes
            .into_iter()
            .map(|(name, policy, sink)| (name.to_owned(), Service { policy, sink }))
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
            attempts: AttemptLog::off(),
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
    pub(crate) async fn accept(
        &self,
        events: impl IntoIterator<Item = (u64, Option<String>)>,
    ) -> Vec<Position> {
        self.accept_for(&self.ids, events).await
    }

    pub(crate) async fn accept_for(
        &self,
        destinations: &[DestinationId],
        events: impl IntoIterator<Item = (u64, Option<String>)>,
    ) -> Vec<Position> {
        self.accept_aside(destinations, &[], events).await
    }

    /// The same with destinations that are over their limit.
    pub(crate) async fn accept_aside(
        &self,
        destinations: &[DestinationId],
        set_aside: &[DestinationId],
        events: impl IntoIterator<Item = (u64, Option<String>)>,
    ) -> Vec<Position> {
        let set_aside = Some(Arc::new(DestinationSet::new(set_aside.iter().copied())));
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
            set_aside: set_aside.clone(),
        };
        let receipts = self
            .store
            .append(events.into_iter().map(event).collect())
            .await
            .unwrap();
        receipts.iter().map(|receipt| receipt.position).collect()
    }

    pub(crate) fn letters(&self) -> Letters {
        Letters::new(
            self.store.clone(),
            self.dispatcher.clone(),
            Arc::new(SystemClock),
        )
    }

    pub(crate) fn pending(&self) -> u64 {
        self.ids
            .iter()
            .map(|id| self.store.totals(*id).pending)
            .sum()
    }

    pub(crate) fn assert_identity(&self) {
        for id in &self.ids {
            let t = self.store.totals(*id);
            let sum = t.delivered + t.pending + t.dead + t.expired + t.discarded;
            assert_eq!(t.accepted, sum, "{t:?}");
        }
    }

    pub(crate) async fn stop(self) {
        self.dispatcher.stop(Duration::from_millis(200)).await;
        let store = self.store;
        tokio::task::spawn_blocking(move || store.stop())
            .await
            .unwrap();
    }
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
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

pub(crate) fn keyed(id: u64, keys: u64) -> (u64, Option<String>) {
    (id, Some(format!("k{}", id % keys)))
}

/// Within each key, first appearances come in order of acceptance, which is by number here.
pub(crate) fn assert_first_appearances_in_order(arrivals: &[Arrival]) {
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
pub(crate) fn assert_failed_ones_block(arrivals: &[Arrival]) {
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
