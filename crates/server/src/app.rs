//! The running server: its parts, the order in which they start and stop, and the report of them all.
//!
//! Start: store, catalogue, sinks, lanes, then (by `cli::serve`) listeners, so that whoever can be
//! reached can also accept. Stop is the reverse, and each step makes durable what it holds: after a
//! crash at any point the store opens to everything that was acknowledged.

mod reload;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use wayhold_model::{Clock, DestinationId, Timestamp};
use wayhold_store::attempt_log::AttemptLog;
use wayhold_store::{CatalogError, DestinationRecord, LetterError, Recovery, Store};

use crate::auth::{Auth, Openness};
use crate::backups::Backups;
use crate::blocking::{Interrupted, blocking};
use crate::clock::Entropy;
use crate::command::anchors::Anchors;
use crate::command::approvals::Approvals;
use crate::command::checkpoints;
use crate::command::gate::{Gate, Rulebook};
use crate::command::ledger::{Ledger, LedgerError};
use crate::command::rules;
use crate::command::timer;
use crate::command::{CommandDesk, CommandError, Kinds};
use crate::config::{Config, ConfigPlace, Loaded, ShownValue};
use crate::dispatch::{Dispatcher, LaneSnapshot, Service, Surroundings, Target};
use crate::http::SharedLimits;
use crate::ingest::{Accept, Admission, Rules};
use crate::redelivery::{Letters, Replays, keep};
use crate::sink::Sink;
use crate::source::outbox_table::{State, Surroundings as SourceSurroundings};
use crate::source::{SourceReport, Tables};
use crate::telemetry::accounting::Accounting;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::report::{DestinationReport, Readiness, Report};

pub use reload::{ReloadError, Reloaded};

/// How long a lane may take to say how it is. One that is stuck is reported as such and hides no other.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(2);

/// The running server; shared as `Arc<App>` with every handler.
pub struct App {
    /// Where events lie.
    pub store: Store,
    /// The way in.
    pub accept: Accept,
    /// The lanes.
    pub dispatcher: Dispatcher,
    /// The record of attempts.
    pub attempts: AttemptLog,
    /// Tables that are read.
    pub tables: Tables,
    /// Dead letters, and what operators do with them.
    pub letters: Letters,
    /// What is to be done outside.
    pub commands: CommandDesk,
    /// Old events that are delivered anew.
    pub replays: Replays,
    /// What waits for people, and the gate that commands go through.
    pub approvals: Approvals,
    /// Copies of the store.
    pub backups: Arc<Backups>,
    /// The record of commands and decisions.
    pub ledger: Arc<Ledger>,
    /// Second places for its checkpoints.
    pub anchors: Arc<Anchors>,
    /// Who may do what.
    pub auth: Auth,
    /// What the process counts.
    pub metrics: Arc<Metrics>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    in_force: Arc<ArcSwap<InForce>>,
    /// Where that is read from, and read again.
    place: ConfigPlace,
    // Held by a reload from reading the file to its end.
    reloading: tokio::sync::Mutex<()>,
    limits: SharedLimits,
    recovery: Arc<Recovery>,
    started_at: Timestamp,
    stopping: AtomicBool,
}

/// The configuration that is in force, and what was made of it; replaced as a whole by a reload.
pub struct InForce {
    /// What everybody goes by.
    pub config: Config,
    /// Every value of it, as it is shown.
    pub values: Vec<ShownValue>,
    /// Since when.
    pub since: Timestamp,
    sinks: Sinks,
}

impl InForce {
    /// How a destination is served; `None` where it is not configured.
    fn service(&self, name: &str) -> Option<Service> {
        Some(Service {
            policy: self.config.destination(name)?.delivery.clone(),
            sink: Arc::clone(self.sinks.get(name)?),
        })
    }
}

/// What the server takes from outside.
#[derive(Clone)]
pub struct Ports {
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for ids and jitter.
    pub entropy: Arc<dyn Entropy>,
}

/// The server cannot start as configured; nothing is running.
#[derive(Debug, Error)]
pub enum StartError {
    /// The catalogue did not take the destinations; its own words say what to do.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A sink cannot work as configured; change the configuration.
    #[error("destination {name}: {reason}")]
    Sink {
        /// The destination.
        name: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// The ledger has no key to sign with; its own words say what to do.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// There is no HTTP client for second places of the ledger.
    #[error("ledger.anchors: {0}")]
    Anchors(#[from] reqwest::Error),
    /// What asks the target of a kind of commands cannot work as configured; change the configuration.
    #[error("commands of kind {kind}: {reason}")]
    Commands {
        /// The kind.
        kind: String,
        /// What is wrong.
        reason: String,
    },
    /// Commands cannot be opened; says what to do.
    #[error(transparent)]
    Desk(#[from] CommandError),
    /// Dead letters, which may hold their keys, cannot be read; see the log.
    #[error(transparent)]
    Letters(#[from] LetterError),
}

impl App {
    /// Starts everything but the listeners on the current runtime. Blocking: it reads the disk.
    ///
    /// # Errors
    /// Says what to change.
    pub fn start(
        loaded: Loaded,
        (store, recovery): (Store, Recovery),
        ports: Ports,
    ) -> Result<Arc<Self>, StartError> {
        let Loaded {
            config,
            values,
            place,
        } = loaded;
        let metrics = Arc::new(Metrics::default());
        if let Some(finding) = other_shards(&config, store.shards()) {
            tracing::warn!("{finding}");
        }
        let records = sync_destinations(&config, &store)?;
        let kinds = kinds_of(&config, &ports.clock)?;
        let gate = Gate::new(Rulebook::of(&config, &values));
        let commands =
            CommandDesk::new(store.clone(), kinds, gate.clone(), Arc::clone(&ports.clock));
        if !config.commands.is_empty() {
            commands.commands()?;
        }
        let (sinks, targets) = targets_of(&config, &records, &ports.clock, &commands)?;
        let around = Surroundings {
            store: store.clone(),
            metrics: Arc::clone(&metrics),
            attempts: record_of(&config, &ports.clock),
            clock: Arc::clone(&ports.clock),
            entropy: Arc::clone(&ports.entropy),
        };
        let dispatcher = Dispatcher::start(&around, targets)?;
        let attempts = around.attempts.clone();
        let openness = match config.no_auth {
            true => Openness::Open,
            false => Openness::Guarded,
        };
        let rules = Rules::new(&config, |name| id_of(&records, name.as_str()));
        let admission = Admission::new(&config, |name| id_of(&records, name.as_str()));
        admission.watch(&store, Arc::clone(&ports.clock));
        let limits = SharedLimits::from(&config.limits);
        let approvals = Approvals::new(store.clone(), gate, Arc::clone(&ports.clock));
        let (ledger, anchors) = start_ledger(&config, &store, &ports.clock)?;
        let in_force = Arc::new(ArcSwap::from_pointee(InForce {
            config,
            values,
            since: ports.clock.now(),
            sinks,
        }));
        let followed = Arc::clone(&in_force);
        let accept = Accept::new(
            store.clone(),
            admission,
            rules,
            Arc::clone(&ports.clock),
            Arc::clone(&ports.entropy),
            Arc::clone(&metrics),
        );
        let tables = Tables::start(
            &in_force.load().config.sources,
            SourceSurroundings {
                accept: accept.clone(),
                clock: Arc::clone(&ports.clock),
                entropy: ports.entropy,
            },
        );
        let app = Arc::new(Self {
            accept,
            tables,
            auth: Auth::new(
                Arc::clone(store.catalog()),
                openness,
                Arc::clone(&ports.clock),
            ),
            commands,
            letters: Letters::new(store.clone(), dispatcher.clone(), Arc::clone(&ports.clock)),
            replays: Replays::start(around, Arc::new(move |name| followed.load().service(name))),
            approvals,
            ledger,
            anchors,
            backups: Arc::new(Backups::new(store.clone(), Arc::clone(&ports.clock))),
            started_at: ports.clock.now(),
            limits,
            in_force,
            place,
            reloading: tokio::sync::Mutex::new(()),
            clock: ports.clock,
            recovery: Arc::new(recovery),
            stopping: AtomicBool::new(false),
            attempts,
            store,
            dispatcher,
            metrics,
        });
        app.begin_tasks();
        Ok(app)
    }

    /// Begins what goes on by itself until the server stops.
    fn begin_tasks(self: &Arc<Self>) {
        self.commands.start();
        self.letters.take_up();
        let keeping = Arc::downgrade(self);
        let keeps = move || keeping.upgrade().and_then(|app| app.keeps());
        tokio::spawn(keep::run(self.letters.clone(), keeps));
        let timed = Arc::downgrade(self);
        tokio::spawn(timer::run(move || {
            timed.upgrade().and_then(|app| app.timed())
        }));
    }

    /// How long destinations keep their dead letters, where they do not do so for ever; `None` once the server
    /// stops.
    fn keeps(&self) -> Option<Vec<(DestinationId, Duration)>> {
        if self.stopping.load(Ordering::Relaxed) {
            return None;
        }
        let in_force = self.in_force();
        let keep = |record: DestinationRecord| {
            let destination = in_force.config.destination(&record.name)?;
            Some((record.id, destination.keep?))
        };
        let records = self.store.catalog().destinations();
        Some(records.into_iter().filter_map(keep).collect())
    }

    /// What time does to requests for approval; `None` once the server stops.
    fn timed(&self) -> Option<timer::Timed> {
        if self.stopping.load(Ordering::Relaxed) {
            return None;
        }
        let config = &self.in_force.load().config;
        Some(timer::Timed {
            // A store that never had commands gets none for the sake of a timer.
            approvals: self.store.has_commands().then(|| self.approvals.clone()),
            announce_to: config
                .approving
                .requests_to
                .as_ref()
                .map(ToString::to_string),
        })
    }

    /// Says from now on that the server is not ready, so that nobody sends new requests here.
    pub fn announce_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Stops everything but the listeners, which must have stopped before: lanes settle what they can
    /// within `grace`, then the store makes the rest durable and lets go of the data directory.
    pub async fn stop(&self, grace: Duration) {
        self.announce_stop();
        wayhold_store::failpoint!("stop.begun");
        self.tables.stop(grace).await;
        self.commands.stop(grace).await;
        tokio::join!(self.replays.stop(grace), self.dispatcher.stop(grace));
        wayhold_store::failpoint!("stop.lanes-stopped");
        self.ledger.stop().await;
        let (store, attempts) = (self.store.clone(), self.attempts.clone());
        // An interrupted stop was logged; the next start recovers, as after a crash.
        let stop = move || {
            attempts.stop();
            store.stop();
        };
        blocking(stop).await.ok();
    }

    /// The configuration that is in force at this moment.
    pub fn in_force(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// The limits of listeners and connections, which follow the configuration.
    pub fn limits(&self) -> SharedLimits {
        self.limits.clone()
    }

    /// What speaks to a configured destination.
    pub fn sink(&self, name: &str) -> Option<Arc<dyn Sink>> {
        self.in_force.load().sinks.get(name).cloned()
    }

    /// Whether events can be accepted, and what is not as it should be.
    pub async fn readiness(&self) -> Readiness {
        let lanes = self.lanes(&self.store.catalog().destinations()).await;
        self.decide_readiness(&lanes)
    }

    /// Everything at this moment.
    ///
    /// # Errors
    /// When reading it was interrupted.
    pub async fn report(&self) -> Result<Report, Interrupted> {
        let records = self.store.catalog().destinations();
        let lanes = self.lanes(&records).await;
        let in_force = self.in_force();
        let store = self.store.clone();
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        let ledger = Arc::clone(&self.ledger);
        let read = move || {
            let accounting = ids
                .iter()
                .map(|id| Accounting::take(|| store.totals(*id)))
                .collect::<Vec<_>>();
            // Letters that cannot be read now are named in health; their number stays in the totals.
            let letters = store.dead_letters().counts().unwrap_or_default();
            let (figures, generations) = (store.figures(), store.generations());
            (figures, generations, accounting, letters, ledger.standing())
        };
        let (figures, generations, accounting, letters, ledger) = blocking(read).await?;
        let readiness = self.decide_readiness(&lanes);
        let destinations = records
            .into_iter()
            .zip(lanes)
            .zip(accounting)
            .map(|((record, lane), accounting)| DestinationReport {
                kind: in_force
                    .config
                    .destination(&record.name)
                    .map(|one| one.sink.kind()),
                by: record.by,
                accounting,
                dead_letters: letters
                    .iter()
                    .filter(|(destination, ..)| *destination == record.id)
                    .map(|(_, class, count)| (class.clone(), *count))
                    .collect(),
                lane,
            })
            .collect();
        Ok(Report {
            at: self.clock.now(),
            started_at: self.started_at,
            node: self.store.catalog().node_id().to_owned(),
            no_auth: in_force.config.no_auth,
            config_since: in_force.since,
            readiness,
            limits: self.accept.admission().report(),
            figures,
            generations,
            recovery: Arc::clone(&self.recovery),
            destinations,
            sources: self.tables.report(),
            replays: self.replays.counts(),
            commands: self.store.command_counts(),
            ledger,
            anchors: self.anchors.states(),
            decisions: self.approvals.counted(),
            reconciled: self.commands.answers(),
        })
    }

    fn decide_readiness(&self, lanes: &[LaneSnapshot]) -> Readiness {
        let stopping = self.stopping.load(Ordering::Relaxed);
        let mut health = self.store.health();
        health.degraded.extend(other_shards(
            &self.in_force.load().config,
            self.store.shards(),
        ));
        health.degraded.extend(self.accept.admission().findings());
        let sources = self.tables.report();
        health.degraded.extend(sources.iter().filter_map(unwell));
        health.degraded.extend(self.ledger.findings());
        health.degraded.extend(self.anchors.findings());
        Readiness::decide(health, stopping, self.auth.openness(), lanes)
    }

    /// How each of these destinations' lanes is, in the same order.
    async fn lanes(&self, records: &[DestinationRecord]) -> Vec<LaneSnapshot> {
        let asked = records.iter().map(async |record| {
            let snapshot = self.dispatcher.snapshot(record.id);
            match tokio::time::timeout(SNAPSHOT_WAIT, snapshot).await {
                Ok(Some(snapshot)) => snapshot,
                Ok(None) | Err(_) => LaneSnapshot::unanswered(record),
            }
        });
        futures_util::future::join_all(asked).await
    }
}

/// What to know of a source that does not read, or leaves rows where they are.
fn unwell(source: &SourceReport) -> Option<String> {
    let (name, snapshot) = (&source.name, &source.snapshot);
    let state = snapshot.state;
    match state {
        State::Unfit | State::Stopped => Some(format!(
            "source {name} reads nothing ({}); `wayhold sources check {name}` says why",
            state.name()
        )),
        State::Connecting if snapshot.reason.is_some() => {
            Some(format!("source {name} does not reach its database"))
        }
        _ if snapshot.refused > 0 => Some(format!(
            "source {name} holds {} refused rows; GET /v1/sources names them",
            snapshot.refused
        )),
        _ => None,
    }
}

/// What to know where the configuration asks for another number of shards than there are.
fn other_shards(config: &Config, made: usize) -> Option<String> {
    let wanted = config.store.shards;
    (config.shards_chosen && usize::from(wanted) != made).then(|| {
        format!(
            "store.shards = {wanted} is for a new data directory; this one spreads new events over {made} \
             (`wayhold shards set` changes it)"
        )
    })
}

/// What speaks to each destination, by name.
type Sinks = BTreeMap<String, Arc<dyn Sink>>;

/// What speaks to each destination, and what the dispatcher serves.
fn targets_of(
    config: &Config,
    records: &[DestinationRecord],
    clock: &Arc<dyn Clock>,
    commands: &CommandDesk,
) -> Result<(Sinks, Vec<Target>), StartError> {
    let mut sinks = BTreeMap::new();
    let mut targets = Vec::new();
    for record in records {
        let service = config
            .destination(&record.name)
            .map(|destination| {
                let built = rules::sink_of(destination, &config.rules, clock, commands);
                let sink = built.map_err(|error| StartError::Sink {
                    name: record.name.clone(),
                    reason: error.to_string(),
                })?;
                sinks.insert(record.name.clone(), Arc::clone(&sink));
                Ok::<_, StartError>(Service {
                    policy: destination.delivery.clone(),
                    sink,
                })
            })
            .transpose()?;
        targets.push(Target {
            record: record.clone(),
            service,
        });
    }
    Ok((sinks, targets))
}

/// Kinds of commands, and what asks their targets.
fn kinds_of(config: &Config, clock: &Arc<dyn Clock>) -> Result<Kinds, StartError> {
    Kinds::build(config, clock).map_err(|(kind, error)| StartError::Commands {
        kind,
        reason: error.to_string(),
    })
}

/// The record of attempts that the configuration asks for. Nothing depends on it, so a server whose disk has no
/// place for it goes on without.
fn record_of(config: &Config, clock: &Arc<dyn Clock>) -> AttemptLog {
    if config.record.time.is_zero() {
        return AttemptLog::off();
    }
    let opened = AttemptLog::open(&config.data, config.record, Arc::clone(clock));
    opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "attempts are not recorded");
        AttemptLog::off()
    })
}

/// The ledger and its second places. Where there are records, a key is at hand before anything is added to them.
fn start_ledger(
    config: &Config,
    store: &Store,
    clock: &Arc<dyn Clock>,
) -> Result<(Arc<Ledger>, Arc<Anchors>), StartError> {
    let origin = config.ledger.origin.clone();
    let ledger = Arc::new(Ledger::new(store.clone(), config.data.clone(), origin));
    if ledger.commands().is_some() {
        tokio::runtime::Handle::current().block_on(ledger.begin())?;
    }
    let anchors = Arc::new(Anchors::start(&config.ledger.anchors, clock)?);
    tokio::spawn(checkpoints::run(
        Arc::downgrade(&ledger),
        Arc::clone(&anchors),
        config.ledger.keep,
        Arc::clone(clock),
    ));
    Ok((ledger, anchors))
}

/// Gives configured destinations their durable ids and answers all that the catalogue knows.
fn sync_destinations(
    config: &Config,
    store: &Store,
) -> Result<Vec<DestinationRecord>, CatalogError> {
    let names: Vec<_> = config
        .destinations
        .iter()
        .map(|one| one.name.to_string())
        .collect();
    store.catalog().sync_destinations(&names)
}

fn id_of(records: &[DestinationRecord], name: &str) -> DestinationId {
    let found = records.iter().find(|record| record.name == name);
    found
        .expect("every configured name was just given its id")
        .id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Environment, Overrides};

    #[test]
    fn another_number_of_shards_is_told_to_whoever_chose_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wayhold.toml");
        let config = |store: &str| {
            let rest = "[destinations.a]\nkind = \"null\"\n[[routes]]\nto = [\"a\"]\n";
            std::fs::write(&path, format!("[store]\n{store}\n{rest}")).unwrap();
            let environment = Environment::default().with_cores(16);
            let loaded = config::load(Some(&path), &Overrides::default(), &environment);
            loaded.unwrap().config
        };
        assert_eq!(
            other_shards(&config(""), 1),
            None,
            "nobody chose the default"
        );
        assert_eq!(other_shards(&config("shards = 3"), 3), None);
        let told = other_shards(&config("shards = 3"), 2).unwrap();
        assert!(
            told.contains("store.shards = 3") && told.contains("over 2"),
            "{told}"
        );
    }
}
