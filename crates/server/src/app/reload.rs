//! Reading the configuration again: whole or not at all. Everything that can go wrong goes wrong before the
//! catalogue records the change: the file is checked as a start checks it, what only a restart can change is
//! refused, and every sink is built. Then the lanes follow, and the door. A crash in between is a restart with
//! the newer file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wayhold_model::Timestamp;
use wayhold_store::DestinationRecord;

use super::{App, InForce, id_of};
use crate::blocking::{Interrupted, blocking};
use crate::command::Kinds;
use crate::command::gate::Rulebook;
use crate::command::rules;
use crate::config::rules::RULES;
use crate::config::{Change, Config, Effect, Loaded, Problems, changes};
use crate::dispatch::{DispatchError, Reconfiguration, Service};
use crate::ingest::Rules;
use crate::sink::Sink;
use crate::telemetry::metrics::ReloadResult;

/// What a reload changed.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// Nothing, where the file says what is in force already.
    pub changes: Vec<Change>,
    /// Since when what is in force now is.
    pub since: Timestamp,
}

/// Why a reload changed nothing.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// The configuration is wrong; correct it.
    #[error("{0}")]
    Invalid(Problems),
    /// It asks for what only a restart can change; take it back, or restart.
    #[error("{} can only be changed by a restart", paths(.0))]
    NeedsRestart(Vec<Change>),
    /// A sink cannot work as configured; change the configuration.
    #[error("destination {name}: {reason}")]
    Sink {
        /// The destination.
        name: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// The catalogue did not take it, or the server is stopping; its own words say what to do.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// It was cut off; see the log.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Most changes that the log and the audit trail name; the rest is a number.
const NAMED_MAX: usize = 20;

impl App {
    /// What a reload would change now, and what would keep it from doing so.
    ///
    /// # Errors
    /// When the configuration is wrong, or reading it was interrupted.
    pub async fn difference(self: &Arc<Self>) -> Result<Vec<Change>, ReloadError> {
        let (_, changes) = self.read_again().await?;
        Ok(changes)
    }

    /// Follows the configuration as it is now, for whoever asks. One at a time: a second one waits, and then
    /// finds little to do. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// Says why nothing has changed.
    pub async fn reload(self: &Arc<Self>, by: &str) -> Result<Reloaded, ReloadError> {
        let (this, by) = (Arc::clone(self), by.to_owned());
        let whole = tokio::spawn(async move {
            let _one_at_a_time = this.reloading.lock().await;
            let reloaded = this.reload_whole(&by).await;
            this.note(&by, &reloaded);
            reloaded
        });
        whole.await.unwrap_or(Err(DispatchError::Stopping.into()))
    }

    async fn reload_whole(self: &Arc<Self>, by: &str) -> Result<Reloaded, ReloadError> {
        let (loaded, changes) = self.read_again().await?;
        let fixed = changes
            .iter()
            .filter(|one| one.effect == Effect::NeedsRestart);
        let fixed: Vec<_> = fixed.cloned().collect();
        if !fixed.is_empty() {
            return Err(ReloadError::NeedsRestart(fixed));
        }
        if changes.is_empty() {
            let since = self.in_force().since;
            return Ok(Reloaded { changes, since });
        }
        let Loaded { config, values, .. } = loaded;
        let (config, built) = self.build_sinks(config, &changes).await?;
        let (config, kinds) = match self.build_kinds(config).await {
            Ok(kinds) => kinds,
            Err(error) => {
                let_go(built).await;
                return Err(error);
            }
        };
        let services = services_of(&config, &built);
        let reconfiguration = Reconfiguration {
            names: config
                .destinations
                .iter()
                .map(|one| one.name.to_string())
                .collect(),
            by: by.to_owned(),
            file: self.source(),
            what: paths(&changes),
        };
        let records = match self.dispatcher.follow(reconfiguration, services).await {
            Ok(records) => records,
            Err(error) => {
                let_go(built).await;
                return Err(error.into());
            }
        };
        if !config.commands.is_empty()
            && let Err(error) = self.ledger.begin().await
        {
            tracing::warn!(%error, "the ledger's key is introduced later");
        }
        self.commands.follow(kinds);
        self.move_door(&config, &records).await?;
        self.limits.replace(&config.limits);
        self.approvals.gate().follow(Rulebook::of(&config, &values));
        let before = self.in_force.load_full();
        let mut sinks = built;
        for one in &config.destinations {
            if let Some(sink) = before.sinks.get(one.name.as_str()) {
                sinks
                    .entry(one.name.to_string())
                    .or_insert_with(|| Arc::clone(sink));
            }
        }
        self.tables.follow(&config.sources, &changes).await;
        let since = self.clock.now();
        self.in_force.store(Arc::new(InForce {
            config,
            values,
            since,
            sinks,
        }));
        Ok(Reloaded { changes, since })
    }

    /// The configuration as it is now, and what of it is not in force.
    async fn read_again(&self) -> Result<(Loaded, Vec<Change>), ReloadError> {
        let place = self.place.clone();
        let loaded = blocking(move || place.read())
            .await?
            .map_err(ReloadError::Invalid)?;
        let changes = changes(&self.in_force.load().values, &loaded.values);
        Ok((loaded, changes))
    }

    /// Sinks for every destination that is new or changed: all of them, or none is left.
    async fn build_sinks(
        &self,
        config: Config,
        changes: &[Change],
    ) -> Result<(Config, BTreeMap<String, Arc<dyn Sink>>), ReloadError> {
        let changed: BTreeSet<String> = changed_destinations(&config, changes);
        let clock = Arc::clone(&self.clock);
        let desk = self.commands.clone();
        let build = move || {
            let mut built = BTreeMap::new();
            let mut failed = None;
            for one in config
                .destinations
                .iter()
                .filter(|one| changed.contains(one.name.as_str()))
            {
                match rules::sink_of(one, &config.rules, &clock, &desk) {
                    Ok(sink) => {
                        built.insert(one.name.to_string(), sink);
                    }
                    Err(error) => {
                        failed = Some((one.name.to_string(), error.to_string()));
                        break;
                    }
                }
            }
            (config, built, failed)
        };
        let (config, built, failed) = blocking(build).await?;
        if let Some((name, reason)) = failed {
            let_go(built).await;
            return Err(ReloadError::Sink { name, reason });
        }
        Ok((config, built))
    }

    /// Kinds of commands with what asks their targets, and the file of commands where they are the first.
    async fn build_kinds(&self, config: Config) -> Result<(Config, Kinds), ReloadError> {
        let (clock, desk) = (Arc::clone(&self.clock), self.commands.clone());
        let build = move || {
            let kinds = Kinds::build(&config, &clock)
                .map_err(|(name, error)| (format!("of commands {name}"), error.to_string()));
            let opened = match config.commands.is_empty() {
                true => Ok(()),
                false => desk.commands().map(drop),
            };
            let opened = opened.map_err(|error| ("of commands".to_owned(), error.to_string()));
            (config, opened.and(kinds))
        };
        let (config, kinds) = blocking(build).await?;
        let kinds = kinds.map_err(|(name, reason)| ReloadError::Sink { name, reason })?;
        Ok((config, kinds))
    }

    /// Lets events in by the newer rules and limits.
    async fn move_door(
        &self,
        config: &Config,
        records: &[DestinationRecord],
    ) -> Result<(), ReloadError> {
        let rules = Rules::new(config, |name| id_of(records, name.as_str()));
        let before = self.accept.admission();
        let admission = before.succeeding(config, |name| id_of(records, name.as_str()));
        let (store, clock) = (self.store.clone(), Arc::clone(&self.clock));
        let watched = admission.clone();
        blocking(move || watched.watch(&store, clock)).await?;
        self.accept.follow(rules, admission);
        Ok(())
    }

    /// The configuration file, as the server was started with it.
    pub fn file(&self) -> Option<String> {
        let file = self.place.file.as_ref();
        file.map(|path| path.display().to_string())
    }

    /// What the log and the audit trail call the configuration.
    fn source(&self) -> String {
        self.file().unwrap_or_else(|| "defaults".to_owned())
    }

    fn note(&self, by: &str, reloaded: &Result<Reloaded, ReloadError>) {
        let file = self.source();
        let result = match reloaded {
            Ok(reloaded) if reloaded.changes.is_empty() => {
                tracing::info!(by, file, "the configuration says what is in force already");
                ReloadResult::Unchanged
            }
            Ok(reloaded) => {
                let changed = paths(&reloaded.changes);
                tracing::info!(by, file, changed, "a newer configuration is in force");
                ReloadResult::Applied
            }
            Err(error) => {
                tracing::error!(by, file, %error, "the configuration was not reloaded; nothing has changed");
                ReloadResult::Refused
            }
        };
        self.metrics.reloaded(result).inc();
    }
}

/// Which destinations go on by a newer version: those with a key that changed, and, where the networks that
/// all may reach changed, every one.
fn changed_destinations(config: &Config, changes: &[Change]) -> BTreeSet<String> {
    let all = changes
        .iter()
        .any(|change| change.path.starts_with("network."));
    let mut changed: BTreeSet<_> = changes.iter().filter_map(Change::destination).collect();
    if changes
        .iter()
        .any(|change| change.path.starts_with("rules."))
    {
        changed.insert(RULES);
    }
    let names = config.destinations.iter().map(|one| one.name.to_string());
    names
        .filter(|name| all || changed.contains(name.as_str()))
        .collect()
}

fn services_of(
    config: &Config,
    built: &BTreeMap<String, Arc<dyn Sink>>,
) -> BTreeMap<String, Service> {
    let service = |(name, sink): (&String, &Arc<dyn Sink>)| {
        let policy = config.destination(name)?.delivery.clone();
        let sink = Arc::clone(sink);
        Some((name.clone(), Service { policy, sink }))
    };
    built.iter().filter_map(service).collect()
}

/// Lets go of sinks that nothing was given to.
async fn let_go(built: BTreeMap<String, Arc<dyn Sink>>) {
    for sink in built.values() {
        sink.stop(Duration::ZERO).await;
    }
}

/// What changed, as far as it is told.
fn paths(changes: &[Change]) -> String {
    let named: Vec<_> = changes
        .iter()
        .take(NAMED_MAX)
        .map(|one| one.path.as_str())
        .collect();
    let named = named.join(", ");
    match changes.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
