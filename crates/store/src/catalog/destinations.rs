//! Destinations and their lanes in the catalogue: names get numbers that are never reused, and whether
//! deliveries run survives restarts, with who decided it, when and why.

use rusqlite::{Connection, params};
use wayhold_model::{DestinationId, LaneId};

use crate::catalog::audit;
use crate::catalog::file::{Catalog, CatalogError, Change, ChangeError, timestamp};
use crate::catalog::{DestinationRecord, RunState};

/// Who is named in the audit trail where the configuration file decided.
const CONFIGURATION: &str = "configuration";

impl Catalog {
    /// Brings the catalogue in line with the configured names: a new name gets a number and a lane, a
    /// known one keeps them, a retired one runs again, and one that is not named becomes retired.
    /// Returns every destination, also the retired.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub fn sync_destinations(
        &self,
        names: &[String],
    ) -> Result<Vec<DestinationRecord>, CatalogError> {
        let steps = Steps::towards(names, self.destinations());
        // A restart with the same configuration writes nothing.
        if !steps.is_empty() {
            self.change(|change| steps.take(change))?;
        }
        Ok(self.destinations())
    }

    /// The same for a running server that follows a newer configuration, together with an entry in the audit
    /// trail that says who wanted it, of which file, and what changed.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub fn follow_configuration(
        &self,
        names: &[String],
        by: &str,
        file: &str,
        what: &str,
    ) -> Result<Vec<DestinationRecord>, CatalogError> {
        let steps = Steps::towards(names, self.destinations());
        self.change(|change| {
            audit::append(change, by, "config.reloaded", file, Some(what))?;
            steps.take(change)
        })?;
        Ok(self.destinations())
    }

    /// Every destination that was ever configured, by number.
    pub fn destinations(&self) -> Vec<DestinationRecord> {
        self.view().destinations.clone()
    }

    /// The destination of that number.
    pub fn destination(&self, id: DestinationId) -> Option<DestinationRecord> {
        self.view()
            .destinations
            .iter()
            .find(|record| record.id == id)
            .cloned()
    }

    /// Sets whether deliveries run, durably, with who and why.
    ///
    /// # Errors
    /// `NotFound`; `Retired` where only the configuration may decide; or the change could not be
    /// recorded.
    pub fn set_run_state(
        &self,
        id: DestinationId,
        state: RunState,
        by: &str,
        reason: Option<&str>,
    ) -> Result<DestinationRecord, CatalogError> {
        let record = self.destination(id).ok_or(CatalogError::NotFound {
            what: "destination",
        })?;
        if record.state == RunState::Retired {
            return Err(CatalogError::Retired);
        }
        self.change(|change| set_state(change, &record, state, Some(by), reason))?;
        self.destination(id).ok_or(CatalogError::NotFound {
            what: "destination",
        })
    }

    /// Records that everything a retired destination was owed was ended, with who and how much.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub(crate) fn note_ended(
        &self,
        id: DestinationId,
        by: &str,
        reason: &str,
    ) -> Result<DestinationRecord, CatalogError> {
        let not_found = CatalogError::NotFound {
            what: "destination",
        };
        let Some(record) = self.destination(id) else {
            return Err(not_found);
        };
        self.change(|change| {
            set_state(change, &record, RunState::Retired, Some(by), Some(reason))
        })?;
        self.destination(id).ok_or(not_found)
    }
}

/// What brings the catalogue in line with configured names.
struct Steps {
    new: Vec<String>,
    returning: Vec<DestinationRecord>,
    leaving: Vec<DestinationRecord>,
}

impl Steps {
    fn towards(names: &[String], known: Vec<DestinationRecord>) -> Self {
        let is_known = |name: &&String| known.iter().any(|record| record.name == **name);
        let new = names
            .iter()
            .filter(|name| !is_known(name))
            .cloned()
            .collect();
        let is_named = |record: &DestinationRecord| names.contains(&record.name);
        let (named, unnamed): (Vec<_>, Vec<_>) = known.into_iter().partition(is_named);
        let is_retired = |record: &DestinationRecord| record.state == RunState::Retired;
        Self {
            new,
            returning: named.into_iter().filter(is_retired).collect(),
            leaving: unnamed.into_iter().filter(|one| !is_retired(one)).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.returning.is_empty() && self.leaving.is_empty()
    }

    fn take(&self, change: &Change<'_>) -> Result<(), ChangeError> {
        for name in &self.new {
            add(change, name)?;
        }
        for record in &self.returning {
            change.transaction.execute(
                "UPDATE destinations SET incarnation = incarnation + 1 WHERE id = ?1",
                [record.id.0],
            )?;
            set_state(change, record, RunState::Running, None, None)?;
        }
        for record in &self.leaving {
            set_state(change, record, RunState::Retired, None, None)?;
        }
        Ok(())
    }
}

fn add(change: &Change<'_>, name: &str) -> Result<(), ChangeError> {
    let now = change.now.as_micros().cast_signed();
    change.transaction.execute(
        "INSERT INTO destinations(name, incarnation, state, since) VALUES (?1, 1, ?2, ?3)",
        params![name, RunState::Running.name(), now],
    )?;
    change.transaction.execute(
        "INSERT INTO lanes(destination) VALUES (?1)",
        [change.transaction.last_insert_rowid()],
    )?;
    audit::append(change, CONFIGURATION, "destination.added", name, None)?;
    Ok(())
}

fn set_state(
    change: &Change<'_>,
    record: &DestinationRecord,
    state: RunState,
    by: Option<&str>,
    reason: Option<&str>,
) -> Result<(), ChangeError> {
    change.transaction.execute(
        "UPDATE destinations SET state = ?2, reason = ?3, set_by = ?4, since = ?5 WHERE id = ?1",
        params![
            record.id.0,
            state.name(),
            reason,
            by,
            change.now.as_micros().cast_signed()
        ],
    )?;
    let action = format!("destination.{}", state.name());
    audit::append(
        change,
        by.unwrap_or(CONFIGURATION),
        &action,
        &record.name,
        reason,
    )?;
    Ok(())
}

pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<DestinationRecord>> {
    let mut statement = connection.prepare(
        "SELECT id, lane, name, incarnation, state, reason, set_by, since
         FROM destinations JOIN lanes ON destination = id ORDER BY id",
    )?;
    let rows = statement.query_map([], |row| {
        let state: String = row.get(4)?;
        Ok(DestinationRecord {
            id: DestinationId(row.get(0)?),
            lane: LaneId(row.get(1)?),
            name: row.get(2)?,
            incarnation: row.get(3)?,
            state: RunState::from_name(&state).ok_or(rusqlite::Error::InvalidQuery)?,
            reason: row.get(5)?,
            by: row.get(6)?,
            since: timestamp(row.get(7)?),
        })
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixed::open;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_keeps_its_number_through_absence_and_return() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let before = catalog.sync_destinations(&names(&["a", "b"])).unwrap();
        let gone = catalog.sync_destinations(&names(&["b", "c"])).unwrap();
        drop(catalog);
        let catalog = open(folder.path());
        let back = catalog.sync_destinations(&names(&["a", "b", "c"])).unwrap();

        assert_eq!(gone[0].state, RunState::Retired);
        assert_eq!(back[0].state, RunState::Running);
        assert_eq!((back[0].id, back[0].lane), (before[0].id, before[0].lane));
        assert_eq!((back[0].incarnation, back[1].incarnation), (2, 1));
        assert_eq!(back[1], before[1]);
        assert_ne!(back[2].id, before[0].id);
    }

    #[test]
    fn an_operators_state_survives_a_restart_and_names_who_and_why() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let a = catalog.sync_destinations(&names(&["a"])).unwrap().remove(0);
        catalog
            .set_run_state(a.id, RunState::Paused, "ada", Some("stock-taking"))
            .unwrap();
        drop(catalog);
        let catalog = open(folder.path());
        let version = catalog.version();
        let a = catalog.sync_destinations(&names(&["a"])).unwrap().remove(0);
        assert_eq!(catalog.version(), version, "nothing was written");
        assert_eq!(a.state, RunState::Paused);
        assert_eq!(
            (a.by.as_deref(), a.reason.as_deref()),
            (Some("ada"), Some("stock-taking"))
        );
        let trail = catalog.audit_trail(None, 10).unwrap();
        let told: Vec<_> = trail
            .iter()
            .map(|e| (e.by.as_str(), e.action.as_str(), e.subject.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("ada", "destination.paused", "a"),
                ("configuration", "destination.added", "a")
            ]
        );
    }

    #[test]
    fn a_retired_or_unknown_destination_is_not_an_operators_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let a = catalog.sync_destinations(&names(&["a"])).unwrap().remove(0);
        catalog.sync_destinations(&[]).unwrap();
        assert!(matches!(
            catalog.set_run_state(a.id, RunState::Running, "ada", None),
            Err(CatalogError::Retired)
        ));
        assert!(matches!(
            catalog.set_run_state(DestinationId(99), RunState::Running, "ada", None),
            Err(CatalogError::NotFound { .. })
        ));
    }
}
