//! Replays: old events, delivered anew. The catalogue holds each replay and what it needs is kept for it; a lane of its
//! own delivers (`dispatch::replay`). This begins them, takes them up again after a start, and brings what operators
//! want to record and lane, in that order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::{error, warn};
use wayhold_model::rate::{InvalidRate, Rate};
use wayhold_model::{DestinationId, StoredEvent};
use wayhold_store::catalog::{NewReplay, ReplayRecord, ReplayState, SelectedSize};
use wayhold_store::{CatalogError, DestinationRecord, ReadError};

use super::selection::{InvalidSelection, Selection, SelectionText};
use crate::dispatch::Surroundings;
use crate::dispatch::replay::{
    ReplayCommand, ReplayLane, ReplayLive, ReplayParts, Services, Takes, count,
};

/// Longest that a dry run counts: whoever asked waits for it.
const COUNT_MAX: Duration = Duration::from_secs(60);

/// Commands that wait for one replay: it takes them at once.
const COMMANDS_MAX: usize = 16;

/// What a replay is asked for, and how it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Which events.
    #[serde(default)]
    pub select: SelectionText,
    /// Of those the events that were to go to this destination when they were accepted; and to it they go, unless `to`
    /// names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The destination that they go to, whoever they were for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Most attempts in a time, such as `50/s`; that of the destination where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
}

/// Why nothing came of it.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// What is asked for makes no sense; the part that is wrong is named.
    #[error(transparent)]
    Selection(#[from] InvalidSelection),
    /// The rate is none.
    #[error("rate: {0}")]
    Rate(#[from] InvalidRate),
    /// Nothing says where the events are to go.
    #[error("destination: expected the name of a destination here, or in to")]
    Nowhere,
    /// No destination of that name; list them.
    #[error("no destination is called {name:?}")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The destination left the configuration.
    #[error("{name} is not in the configuration, so nothing can be delivered to it")]
    Unserved {
        /// Its name.
        name: String,
    },
    /// There are more events than a dry run counts; ask for a shorter time.
    #[error("counting took longer than {} s; select a shorter time", COUNT_MAX.as_secs())]
    TooMany,
    /// Events cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The catalogue did not take the change; nothing has changed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The server is stopping; ask its successor.
    #[error("the server is stopping")]
    Stopping,
}

/// A replay as it is shown.
#[derive(Clone, Debug)]
pub struct ShownReplay {
    /// What the catalogue holds of it.
    pub record: ReplayRecord,
    /// What its lane says, where it has one.
    pub live: Option<ReplayLive>,
}

/// The replays, with their lanes; a cheap handle.
#[derive(Clone)]
pub struct Replays {
    inner: Arc<Inner>,
}

struct Inner {
    around: Surroundings,
    services: Services,
    lanes: Mutex<BTreeMap<u64, Running>>,
    // Taken when they stop: from then on none is begun.
    tasks: Mutex<Option<JoinSet<()>>>,
    // Held from a change in the catalogue until its lane knows, so that both see changes in one order.
    changes: tokio::sync::Mutex<()>,
}

struct Running {
    commands: mpsc::Sender<ReplayCommand>,
    shown: watch::Receiver<ReplayLive>,
}

/// What a request means.
struct Plan {
    destination: DestinationRecord,
    selection: Selection,
}

impl Replays {
    /// Takes up the replays that have not ended, on the current runtime. `services` says how each configured
    /// destination is served, at that moment.
    pub fn start(around: Surroundings, services: Services) -> Self {
        let inner = Arc::new(Inner {
            around,
            services,
            lanes: Mutex::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
            changes: tokio::sync::Mutex::new(()),
        });
        for record in inner.around.store.catalog().replays() {
            if !record.state.has_ended() {
                inner.run(record);
            }
        }
        Self { inner }
    }

    /// What a replay would deliver.
    ///
    /// # Errors
    /// When the request makes no sense, there is too much to count, or it cannot be read.
    pub async fn size_of(&self, request: ReplayRequest) -> Result<SelectedSize, ReplayError> {
        let plan = self.inner.plan(&request)?;
        let store = self.inner.around.store.clone();
        let until = Instant::now() + COUNT_MAX;
        let range = plan.selection.range();
        let takes = takes(plan.selection);
        let counted = tokio::task::spawn_blocking(move || {
            count(&store, range, &takes, || Instant::now() > until)
        });
        let counted = counted.await.map_err(|_cancelled| ReplayError::Stopping)?;
        counted?.ok_or(ReplayError::TooMany)
    }

    /// Begins a replay. Durable and audited when it returns; goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When the request makes no sense, another replay is in the way, or the catalogue cannot record it.
    pub async fn begin(
        &self,
        request: ReplayRequest,
        by: &str,
    ) -> Result<ShownReplay, ReplayError> {
        let plan = self.inner.plan(&request)?;
        let new = NewReplay {
            destination: plan.destination.id,
            request: serde_json::to_string(&request).unwrap_or_default(),
            range: plan.selection.range(),
        };
        let by = by.to_owned();
        let record = self
            .change(move |inner| inner.around.store.catalog().add_replay(&new, &by))
            .await?;
        self.show(record.id)
    }

    /// Starts no more attempts until somebody resumes it.
    ///
    /// # Errors
    /// When there is none of that number, it has ended, or the catalogue cannot record it.
    pub async fn pause(
        &self,
        id: u64,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ShownReplay, ReplayError> {
        self.set(id, ReplayState::Paused, by, reason).await
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// As `pause`.
    pub async fn resume(
        &self,
        id: u64,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ShownReplay, ReplayError> {
        self.set(id, ReplayState::Running, by, reason).await
    }

    /// Ends it for good: what it did not deliver yet it never will, and what it needs may go.
    ///
    /// # Errors
    /// As `pause`.
    pub async fn cancel(
        &self,
        id: u64,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ShownReplay, ReplayError> {
        self.set(id, ReplayState::Cancelled, by, reason).await
    }

    async fn set(
        &self,
        id: u64,
        state: ReplayState,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ShownReplay, ReplayError> {
        let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
        self.change(move |inner| {
            let catalog = inner.around.store.catalog();
            catalog.set_replay_state(id, state, &by, reason.as_deref())
        })
        .await?;
        self.show(id)
    }

    /// Makes a change and lets the lane know, which is begun where there is none. In a task of its own: a client that
    /// disconnects in between must not part the two.
    async fn change(
        &self,
        change: impl FnOnce(&Inner) -> Result<ReplayRecord, CatalogError> + Send + 'static,
    ) -> Result<ReplayRecord, ReplayError> {
        let inner = Arc::clone(&self.inner);
        let whole = tokio::spawn(async move {
            let _one_at_a_time = inner.changes.lock().await;
            let changing = Arc::clone(&inner);
            let changed = tokio::task::spawn_blocking(move || change(&changing)).await;
            let record = changed.map_err(|_cancelled| ReplayError::Stopping)??;
            let lane = inner.lane(record.id);
            match lane {
                // A lane that is ending takes nothing more; the record stands.
                Some(lane) => drop(lane.send(ReplayCommand::Changed).await),
                None if record.state.has_ended() => {}
                None => inner.run(record.clone()),
            }
            Ok(record)
        });
        whole.await.unwrap_or(Err(ReplayError::Stopping))
    }

    /// All that are remembered, newest first.
    pub fn list(&self) -> Vec<ShownReplay> {
        let records = self.inner.around.store.catalog().replays();
        let shown = records.into_iter().rev();
        shown.map(|record| self.inner.shown(record)).collect()
    }

    /// How many have not ended, by their state.
    pub fn counts(&self) -> Vec<(ReplayState, u64)> {
        let records = self.inner.around.store.catalog().replays();
        let of = |state: ReplayState| {
            let count = records
                .iter()
                .filter(|record| record.state == state)
                .count();
            (state, count as u64)
        };
        let all = ReplayState::ALL.into_iter();
        all.filter(|state| !state.has_ended()).map(of).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn show(&self, id: u64) -> Result<ShownReplay, ReplayError> {
        let record = self.inner.around.store.catalog().replay(id);
        let record = record.ok_or(CatalogError::NotFound { what: "replay" })?;
        Ok(self.inner.shown(record))
    }

    /// Stops all: nothing new starts, what is in flight ends or stays open, and how far each is is on record.
    pub async fn stop(&self, grace: Duration) {
        let by = Instant::now() + grace;
        let tasks = self.inner.tasks().take();
        let lanes = std::mem::take(&mut *self.inner.lanes());
        for lane in lanes.values() {
            // A closed queue means that it has ended.
            lane.commands.send(ReplayCommand::Stop { by }).await.ok();
        }
        let Some(mut tasks) = tasks else { return };
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                if let Err(error) = ended {
                    error!(%error, "a replay ended by a panic");
                }
            }
        };
        if timeout_at(by + LATE_MAX, all).await.is_err() {
            warn!("replays did not stop in time; they are left behind");
        }
    }
}

/// How much longer than the grace a lane may take to record how far it is.
const LATE_MAX: Duration = Duration::from_secs(3);

impl Inner {
    fn lanes(&self) -> MutexGuard<'_, BTreeMap<u64, Running>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, id: u64) -> Option<mpsc::Sender<ReplayCommand>> {
        let mut lanes = self.lanes();
        // What has ended is in the catalogue.
        lanes.retain(|_, lane| !lane.commands.is_closed());
        lanes.get(&id).map(|lane| lane.commands.clone())
    }

    fn shown(&self, record: ReplayRecord) -> ShownReplay {
        let lanes = self.lanes();
        let lane = lanes.get(&record.id);
        let live = lane.filter(|lane| !lane.commands.is_closed());
        let live = live.map(|lane| lane.shown.borrow().clone());
        ShownReplay { record, live }
    }

    /// What a request means, now.
    fn plan(&self, request: &ReplayRequest) -> Result<Plan, ReplayError> {
        let named = |name: &String| self.named(name);
        let owed_to = request.destination.as_ref().map(named).transpose()?;
        let to = request.to.as_ref().map(named).transpose()?;
        let destination = to.or_else(|| owed_to.clone()).ok_or(ReplayError::Nowhere)?;
        if (self.services)(&destination.name).is_none() {
            let name = destination.name;
            return Err(ReplayError::Unserved { name });
        }
        rate_of(request)?;
        let now = self.around.clock.now();
        let selection = Selection::read(&request.select, now)?;
        let mut range = selection.range();
        // It has an end: what comes later is delivered by its own lane.
        range.until = range.until.min(now);
        if range.from >= range.until {
            let expected = "expected a time that has passed".to_owned();
            let field = "from";
            return Err(InvalidSelection { field, expected }.into());
        }
        Ok(Plan {
            destination,
            selection: selection
                .within(range)
                .owed_to(owed_to.map(|record| record.id)),
        })
    }

    fn named(&self, name: &str) -> Result<DestinationRecord, ReplayError> {
        let records = self.around.store.catalog().destinations();
        let found = records.into_iter().find(|record| record.name == name);
        found.ok_or_else(|| ReplayError::Unknown {
            name: name.to_owned(),
        })
    }

    /// Begins the lane of a replay that is on record.
    fn run(&self, record: ReplayRecord) {
        let id = record.id;
        let read = self.read_back(&record);
        let (takes, rate) = match read {
            Ok(read) => read,
            Err(error) => {
                error!(replay = id, %error, "what a replay was asked for cannot be read; it waits");
                return;
            }
        };
        let Surroundings {
            store,
            metrics,
            clock,
            entropy,
            attempts,
        } = self.around.clone();
        let destination = store.catalog().destination(record.destination);
        let name = destination
            .map(|destination| destination.name)
            .unwrap_or_default();
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (show, shown) = watch::channel(ReplayLive {
            counts: record.progress.counts,
            size: record.size,
            ..ReplayLive::default()
        });
        let lane = ReplayLane::new(ReplayParts {
            record,
            takes,
            rate,
            services: Arc::clone(&self.services),
            store,
            attempts,
            clock,
            entropy,
            metrics: metrics.destination(&name),
            commands: received,
            shown: show,
        });
        if let Some(tasks) = &mut *self.tasks() {
            // Those that ended are let go of.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(lane.run());
            self.lanes().insert(id, Running { commands, shown });
        }
    }

    /// What was asked for, of a replay that is on record.
    fn read_back(&self, record: &ReplayRecord) -> Result<(Takes, Option<Rate>), ReplayError> {
        let request: ReplayRequest =
            serde_json::from_str(&record.request).map_err(|error| InvalidSelection {
                field: "request",
                expected: error.to_string(),
            })?;
        let owed_to = match &request.destination {
            None => None,
            Some(name) => Some(self.named(name)?.id),
        };
        let rate = rate_of(&request)?;
        let selection = Selection::read(&request.select, record.created_at)?;
        let selection = selection.within(record.range).owed_to(owed_to);
        Ok((takes(selection), rate))
    }
}

fn rate_of(request: &ReplayRequest) -> Result<Option<Rate>, InvalidRate> {
    request.rate.as_deref().map(str::parse).transpose()
}

fn takes(selection: Selection) -> Takes {
    Arc::new(move |event: &StoredEvent| selection.takes(event))
}

/// Whom a replay delivers to, by name; the number where it is not known any more.
pub fn name_of(destination: DestinationId, names: &[DestinationRecord]) -> String {
    let found = names.iter().find(|record| record.id == destination);
    found.map_or_else(|| destination.0.to_string(), |record| record.name.clone())
}
