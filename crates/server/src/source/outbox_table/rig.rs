//! What tests of sources share: a configuration, a way in whose events are kept in memory, and waiting
//! with a bound.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};
use wayhold_model::{DestinationId, Event, Generation, Position, Sequence, ShardId};
use wayhold_store::{AppendError, NewEvent, Receipt};

use super::reader::Surroundings;
use crate::clock::{SystemClock, SystemEntropy};
use crate::config::{self, Environment, OutboxTableConfig, Overrides};
use crate::ingest::{Accept, Keeper, Rules};
use crate::telemetry::metrics::Metrics;

/// Longest that anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until it is so.
pub(super) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to this: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Keeps events in memory, each identity once.
#[derive(Default)]
pub(super) struct Memory {
    kept: Mutex<Vec<Arc<Event>>>,
    places: Mutex<HashMap<(String, String), usize>>,
    /// Whether it has no room.
    pub(super) full: AtomicBool,
}

impl Memory {
    /// Ids in the order of acceptance, each once.
    pub(super) fn ids(&self) -> Vec<String> {
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|event| event.id().to_owned()).collect()
    }

    /// All events.
    pub(super) fn events(&self) -> Vec<Arc<Event>> {
        self.kept.lock().unwrap().clone()
    }

    fn keep(&self, events: &[NewEvent]) -> Result<Vec<Receipt>, AppendError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(AppendError::Busy);
        }
        let mut kept = self.kept.lock().unwrap();
        let mut places = self.places.lock().unwrap();
        let identity = |event: &Event| (event.source().to_owned(), event.id().to_owned());
        for (index, new) in events.iter().enumerate() {
            if let Some(place) = places.get(&identity(&new.event))
                && kept[*place].data() != new.event.data()
            {
                let first = position(*place);
                return Err(AppendError::Conflict { index, first });
            }
        }
        let receipt = |new: &NewEvent| {
            let identity = identity(&new.event);
            let duplicate = places.contains_key(&identity);
            let place = *places.entry(identity).or_insert_with(|| {
                kept.push(Arc::clone(&new.event));
                kept.len() - 1
            });
            Receipt {
                position: position(place),
                duplicate,
            }
        };
        Ok(events.iter().map(receipt).collect())
    }
}

fn position(place: usize) -> Position {
    Position {
        generation: Generation(1),
        shard: ShardId(0),
        sequence: Sequence(place as u64),
    }
}

impl Keeper for Memory {
    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<Receipt>, AppendError>> {
        Box::pin(async move { self.keep(&events) })
    }
}

/// The only source of a configuration with these keys.
pub(super) fn source(keys: &str, environment: &Environment) -> OutboxTableConfig {
    config_of(keys, "", environment).sources.tables.remove(0)
}

fn config_of(keys: &str, rest: &str, environment: &Environment) -> config::Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    let text = format!(
        "[sources.erp]\nkind = \"outbox_table\"\n{keys}\n[destinations.a]\nkind = \"null\"\n\
         [[routes]]\nwhen = 'type != \"unwanted\"'\nto = [\"a\"]\n{rest}"
    );
    std::fs::write(&path, text).unwrap();
    let loaded = config::load(Some(&path), &Overrides::default(), environment);
    loaded
        .map_err(|problems| problems.to_string())
        .unwrap()
        .config
}

/// A way in that refuses events of type `unwanted`.
pub(super) fn way_in(memory: &Arc<Memory>) -> Surroundings {
    Surroundings {
        accept: Accept::into_other(
            Arc::clone(memory) as Arc<dyn Keeper>,
            rules(""),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
            Arc::new(Metrics::default()),
        ),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    }
}

/// Rules with more configuration, such as a route that wants everything.
pub(super) fn rules(rest: &str) -> Rules {
    let url = "url = \"postgres://localhost/app\"";
    let config = config_of(url, rest, &Environment::default());
    Rules::new(&config, |_| DestinationId(1))
}
