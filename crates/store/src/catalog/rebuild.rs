//! A catalogue made again from what shards tell, where the real one is lost: with the hash seed and the
//! destinations that their files refer to, and nothing else. Node, tokens, audit trail and counters are new.

use std::path::Path;

use rusqlite::params;
use wayhold_model::{DestinationId, Generation, Timestamp};

use crate::catalog::RunState;
use crate::catalog::file::{self, CatalogError};
use crate::connection::{self, Access, ConnectionError};
use crate::disk::{DATABASE_SUFFIXES, Disk, unlink_database, with_suffix};

/// What a new catalogue is made of.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) hash_seed: u64,
    /// With how many shards.
    pub(crate) generations: Vec<(Generation, u16)>,
    pub(crate) destinations: Vec<(DestinationId, String)>,
}

/// Why destinations are paused, and who did that.
const REASON: &str =
    "the catalogue was made again; see that each name is the right receiver, then resume";
const BY: &str = "store repair";

impl Rebuilt {
    /// Puts the catalogue in place: whole, or not at all.
    pub(crate) fn write(
        &self,
        directory: &Path,
        disk: &dyn Disk,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        let path = directory.join(file::FILE);
        let new = with_suffix(&path, ".new");
        let unusable = |reason: &dyn std::fmt::Display| CatalogError::Unusable {
            path: path.clone(),
            reason: reason.to_string(),
        };
        // What a repair that was killed left of it.
        unlink_database(disk, &new).map_err(|error| unusable(&error))?;
        self.fill(&new, now).map_err(|error| unusable(&error))?;
        // The log is empty: all of it was moved into the file.
        for suffix in DATABASE_SUFFIXES {
            let part = with_suffix(&new, suffix);
            disk.unlink(&part).map_err(|error| unusable(&error))?;
        }
        disk.rename(&new, &path).map_err(|error| unusable(&error))
    }

    fn fill(&self, path: &Path, now: Timestamp) -> Result<(), ConnectionError> {
        let mut connection = connection::open(path, Access::Create, file::PROFILE, None)?;
        file::initialise(&mut connection, now)?;
        let at = now.as_micros().cast_signed();
        let transaction = connection.transaction()?;
        transaction.execute(
            "UPDATE identity SET hash_seed = ?",
            [self.hash_seed.cast_signed()],
        )?;
        transaction.execute("DELETE FROM generations", [])?;
        for (generation, shards) in &self.generations {
            transaction.execute(
                "INSERT INTO generations(generation, shards, since, made) VALUES (?, ?, ?, 1)",
                params![generation.0, shards, at],
            )?;
        }
        for (id, name) in &self.destinations {
            transaction.execute(
                "INSERT INTO destinations(id, name, incarnation, state, reason, set_by, since)
                 VALUES (?, ?, 1, ?, ?, ?, ?)",
                params![id.0, name, RunState::Paused.name(), REASON, BY, at],
            )?;
            // A destination's own lane has the destination's number.
            transaction.execute("INSERT INTO lanes VALUES (?, ?)", [id.0, id.0])?;
        }
        transaction.execute(
            "INSERT INTO audit(at, by, action, subject, reason) VALUES (?, ?, 'catalog.rebuilt', 'catalog.db', ?)",
            params![at, BY, REASON],
        )?;
        transaction.commit()?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }
}
