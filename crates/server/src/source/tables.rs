//! The outbox tables that this server reads: one task each, by the configuration in force.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::outbox_table::{Database, Finding, Reading, Snapshot, Surroundings, Trouble, open};
use crate::config::{Change, Mode, OutboxTableConfig, Sources};

/// How long a source that is changed or taken away may settle what it has accepted.
const CHANGE_GRACE: Duration = Duration::from_secs(5);

/// All tables that are read.
pub struct Tables {
    around: Surroundings,
    // Never held over a wait.
    open: Mutex<BTreeMap<String, Open>>,
}

struct Open {
    database: Arc<dyn Database>,
    reading: Reading,
    about: About,
}

/// What is configured of a source, as far as people ask.
#[derive(Clone, Debug)]
struct About {
    kind: &'static str,
    mode: Mode,
    table: String,
}

/// A source at one moment.
#[derive(Clone, Debug)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// Which database.
    pub database: &'static str,
    /// Which table.
    pub table: String,
    /// How rows are found.
    pub mode: Mode,
    /// How it is doing.
    pub snapshot: Snapshot,
}

impl Tables {
    /// Begins to read all that are configured, on the current runtime.
    pub fn start(sources: &Sources, around: Surroundings) -> Self {
        let tables = Self {
            around,
            open: Mutex::default(),
        };
        for config in &sources.tables {
            tables.begin(config);
        }
        tables
    }

    /// Goes by a newer configuration: sources that changed begin anew, the others try what was refused at
    /// once, since what refuses rows may be otherwise now.
    pub(crate) async fn follow(&self, sources: &Sources, changes: &[Change]) {
        let is_changed = |name: &str| {
            let path = format!("sources.{name}.");
            changes.iter().any(|change| change.path.starts_with(&path))
        };
        let is_kept = |name: &str| {
            let configured = sources.tables.iter().any(|config| config.name == name);
            configured && !is_changed(name)
        };
        let ended: Vec<_> = {
            let mut open = self.lock();
            let names: Vec<_> = open.keys().filter(|name| !is_kept(name)).cloned().collect();
            names.iter().filter_map(|name| open.remove(name)).collect()
        };
        // The lock of a table must be free before its newer version asks for it.
        join_all(ended.into_iter().map(|one| one.reading.stop(CHANGE_GRACE))).await;
        for config in &sources.tables {
            let is_open = match self.lock().get(&config.name) {
                Some(open) => {
                    open.reading.nudge();
                    true
                }
                None => false,
            };
            if !is_open {
                self.begin(config);
            }
        }
    }

    fn begin(&self, config: &OutboxTableConfig) {
        let database = open(config);
        let reading = Reading::start(config, Arc::clone(&database), self.around.clone());
        let open = Open {
            database,
            reading,
            about: About {
                kind: config.database.kind(),
                mode: config.mode,
                table: config.table.to_string(),
            },
        };
        self.lock().insert(config.name.clone(), open);
    }

    /// Stops all of them: what they accepted is settled, as far as there is time.
    pub async fn stop(&self, grace: Duration) {
        let open = std::mem::take(&mut *self.lock());
        join_all(open.into_values().map(|one| one.reading.stop(grace))).await;
    }

    /// How all of them are, by name.
    pub fn report(&self) -> Vec<SourceReport> {
        let report = |(name, open): (&String, &Open)| SourceReport {
            name: name.clone(),
            database: open.about.kind,
            table: open.about.table.clone(),
            mode: open.about.mode,
            snapshot: open.reading.standing().snapshot(),
        };
        self.lock().iter().map(report).collect()
    }

    /// What a source lacks in its database; `None` where there is no such source.
    pub async fn check(&self, name: &str, wait: Duration) -> Option<Result<Vec<Finding>, Trouble>> {
        let database = Arc::clone(&self.lock().get(name)?.database);
        let checked = tokio::time::timeout(wait, database.check()).await;
        Some(checked.unwrap_or_else(|_| {
            let seconds = wait.as_secs();
            Err(Trouble::Unreachable(format!(
                "no answer within {seconds} s"
            )))
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
