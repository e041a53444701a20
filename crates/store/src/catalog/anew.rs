//! Makes the catalogue of another node out of a copied one: for a restored backup, beside which the original may
//! still run.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};
use wayhold_model::{Generation, Timestamp};

use crate::catalog::file::{Change, FORMAT, PROFILE, checkpoint, draw_node_id};
use crate::catalog::{ReplayState, RunState, audit};
use crate::connection::{self, Access, ConnectionError};

/// A restored store's first generation is the first of the next thousand: the original, which counts on from
/// its own, will not come to a number that its copy has given.
const GENERATIONS_APART: u32 = 1000;

/// What the catalogue says now.
#[derive(Clone, Debug)]
pub(crate) struct Anew {
    /// Name of the node.
    pub(crate) node_id: String,
    /// The generation that takes new events; its files are made by the first start.
    pub(crate) generation: Generation,
    /// Names of the destinations that were paused by this.
    pub(crate) paused: Vec<String>,
}

/// Gives the catalogue in `path`, which nobody has open, another node's name and a new generation, and pauses
/// every destination and replay. The log beside it is empty afterwards.
pub(crate) fn renew(
    path: &Path,
    by: &str,
    reason: &str,
    now: Timestamp,
) -> Result<Anew, ConnectionError> {
    let mut connection = connection::open(path, Access::Write, PROFILE, None)?;
    FORMAT.upgrade(&mut connection)?;
    let anew = {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let change = Change { transaction, now };
        let anew = change_all(&change, by, reason)?;
        change.transaction.commit()?;
        anew
    };
    checkpoint(&connection)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(anew)
}

fn change_all(change: &Change<'_>, by: &str, reason: &str) -> rusqlite::Result<Anew> {
    let transaction = &change.transaction;
    let since = change.now.as_micros().cast_signed();
    let node_id = draw_node_id()?;
    transaction.execute("UPDATE identity SET node_id = ?1", [&node_id])?;
    let (newest, shards): (u32, u16) = transaction.query_row(
        "SELECT generation, shards FROM generations ORDER BY generation DESC LIMIT 1",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let generation = (newest / GENERATIONS_APART)
        .saturating_add(1)
        .saturating_mul(GENERATIONS_APART)
        .saturating_add(1);
    transaction.execute(
        "INSERT INTO generations(generation, shards, since, made) VALUES (?1, ?2, ?3, 0)",
        params![generation, shards, since],
    )?;
    let paused = names_that_run(transaction)?;
    // What an operator stopped before stays stopped as it was, and says so.
    transaction.execute(
        "UPDATE destinations SET state = ?1, set_by = ?2, since = ?3,
             reason = ?4 || CASE WHEN state = ?1 THEN '; it was paused before'
                 || coalesce(': ' || reason, '') ELSE '' END
         WHERE state <> ?5",
        params![
            RunState::Paused.name(),
            by,
            since,
            reason,
            RunState::Disabled.name()
        ],
    )?;
    // The original goes on with those.
    transaction.execute(
        "UPDATE replays SET state = ?1, set_by = ?2, since = ?3, reason = ?4 WHERE state = ?5",
        params![
            ReplayState::Paused.name(),
            by,
            since,
            reason,
            ReplayState::Running.name()
        ],
    )?;
    transaction.execute("DELETE FROM redrives", [])?;
    let subject = format!("g{generation} shards={shards}");
    audit::append(change, by, "store.restored", &subject, Some(reason))?;
    Ok(Anew {
        node_id,
        generation: Generation(generation),
        paused,
    })
}

fn names_that_run(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT name FROM destinations WHERE state = ?1 ORDER BY name")?;
    let names = statement.query_map([RunState::Running.name()], |row| row.get(0))?;
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::NewReplay;
    use crate::catalog::fixed;
    use crate::scan::TimeRange;

    #[test]
    fn a_copy_delivers_nothing_of_its_own_accord() {
        let folder = tempfile::tempdir().unwrap();
        let open = || fixed::open(folder.path());
        let catalog = open();
        let orders = catalog.sync_destinations(&["orders".to_owned()]).unwrap();
        let new = NewReplay {
            destination: orders[0].id,
            request: "{}".to_owned(),
            range: TimeRange::default(),
        };
        let replay = catalog.add_replay(&new, "ada").unwrap();
        drop(catalog);
        let path = folder.path().join("catalog.db");
        let anew = renew(&path, "eve", "restored", Timestamp::from_micros(9)).unwrap();
        assert_eq!(anew.paused, ["orders"]);
        let catalog = open();
        assert_eq!(catalog.destinations()[0].state, RunState::Paused);
        let held = catalog.replay(replay.id).unwrap();
        assert_eq!(
            (held.state, held.by.as_str(), held.reason.as_deref()),
            (ReplayState::Paused, "eve", Some("restored"))
        );
    }
}
