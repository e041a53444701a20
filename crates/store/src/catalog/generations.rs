//! Generations of shards in the catalogue. One is named here before any of its directories exists, and it
//! is recorded as retired before any of them is removed: whatever a crash leaves in between is completed by
//! the next start. Numbers are never reused, so a receipt names one place for good.

use rusqlite::{Connection, OptionalExtension, params};
use wayhold_model::shard_map::SHARDS_MAX;
use wayhold_model::{Generation, LaneId};

use crate::catalog::file::{Catalog, CatalogError, Change, ChangeError, timestamp};
use crate::catalog::{GenerationRecord, audit};
use crate::delivery::LaneTotals;

/// Tables of generations, as a new catalogue has them.
pub(super) const SCHEMA: &str = "
CREATE TABLE generations(
    generation INTEGER PRIMARY KEY, shards INTEGER NOT NULL, since INTEGER NOT NULL,
    made INTEGER NOT NULL, retired_at INTEGER
) STRICT;
CREATE TABLE retired_totals(
    lane INTEGER PRIMARY KEY, accepted INTEGER NOT NULL, delivered INTEGER NOT NULL,
    expired INTEGER NOT NULL, discarded INTEGER NOT NULL, redriven INTEGER NOT NULL
) STRICT;
";

/// Format 1 had one generation that was made with its directory and never retired.
pub(super) const FROM_FORMAT_1: &str = "
ALTER TABLE generations ADD COLUMN made INTEGER NOT NULL DEFAULT 1;
ALTER TABLE generations ADD COLUMN retired_at INTEGER;
CREATE TABLE retired_totals(
    lane INTEGER PRIMARY KEY, accepted INTEGER NOT NULL, delivered INTEGER NOT NULL,
    expired INTEGER NOT NULL, discarded INTEGER NOT NULL, redriven INTEGER NOT NULL
) STRICT;
";

impl Catalog {
    /// The generations that have files, oldest first; the last takes new events.
    pub fn generations(&self) -> Vec<GenerationRecord> {
        self.view().generations.clone()
    }

    /// Names a new generation of so many shards (1 to `SHARDS_MAX`), durably, before any of its directories
    /// exists. Its number was never used. It takes events once the store has made its files; until
    /// then [`GenerationRecord::made`] is false, and whatever is missing of it is made by the next start.
    ///
    /// # Errors
    /// When the change could not be recorded: nothing was named.
    pub fn add_generation(
        &self,
        shards: u16,
        by: &str,
        reason: Option<&str>,
    ) -> Result<Generation, CatalogError> {
        let shards = shards.clamp(1, SHARDS_MAX);
        self.change(|change| {
            let generation: u32 = change.transaction.query_row(
                "INSERT INTO generations(generation, shards, since, made)
                 SELECT max(generation) + 1, ?1, ?2, 0 FROM generations RETURNING generation",
                params![shards, change.now.as_micros().cast_signed()],
                |row| row.get(0),
            )?;
            let subject = format!("g{generation} shards={shards}");
            audit::append(change, by, "shards.set", &subject, reason)?;
            Ok(Generation(generation))
        })
    }

    /// Records that all files of a generation were made: from now on one that is missing was taken away.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub fn generation_is_made(&self, generation: Generation) -> Result<(), CatalogError> {
        self.change(|change| {
            change.transaction.execute(
                "UPDATE generations SET made = 1 WHERE generation = ?1",
                [generation.0],
            )?;
            Ok(())
        })
    }

    /// Records that a generation holds nothing any more, with what its lanes counted, once: from now on its
    /// directories may go at any time.
    ///
    /// # Errors
    /// When the change could not be recorded: then nothing of it may go.
    pub fn retire_generation(
        &self,
        generation: Generation,
        totals: &[(LaneId, LaneTotals)],
    ) -> Result<(), CatalogError> {
        self.change(|change| {
            let retired = change.transaction.execute(
                "UPDATE generations SET retired_at = ?2 WHERE generation = ?1 AND retired_at IS NULL",
                params![generation.0, change.now.as_micros().cast_signed()],
            )?;
            if retired > 0 {
                for (lane, totals) in totals {
                    add_totals(change, *lane, totals)?;
                }
            }
            Ok(())
        })
    }

    /// Whether that generation was retired. Blocking.
    ///
    /// # Errors
    /// `Unusable` when the file cannot be read.
    pub fn is_retired(&self, generation: Generation) -> Result<bool, CatalogError> {
        self.read(|connection| {
            let retired = connection
                .query_row(
                    "SELECT retired_at IS NOT NULL FROM generations WHERE generation = ?1",
                    [generation.0],
                    |row| row.get(0),
                )
                .optional()?;
            Ok(retired.unwrap_or(false))
        })
    }

    /// What the lanes counted in generations that are retired.
    pub fn retired_totals(&self) -> Vec<(LaneId, LaneTotals)> {
        self.view().retired_totals.clone()
    }
}

fn add_totals(change: &Change<'_>, lane: LaneId, totals: &LaneTotals) -> Result<(), ChangeError> {
    change.transaction.execute(
        "INSERT INTO retired_totals VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT(lane) DO UPDATE SET
             accepted = accepted + excluded.accepted, delivered = delivered + excluded.delivered,
             expired = expired + excluded.expired, discarded = discarded + excluded.discarded,
             redriven = redriven + excluded.redriven",
        params![
            lane.0,
            totals.accepted.cast_signed(),
            totals.delivered.cast_signed(),
            totals.expired.cast_signed(),
            totals.discarded.cast_signed(),
            totals.redriven.cast_signed(),
        ],
    )?;
    Ok(())
}

pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<GenerationRecord>> {
    connection
        .prepare(
            "SELECT generation, shards, since, made FROM generations
             WHERE retired_at IS NULL ORDER BY generation",
        )?
        .query_map([], |row| {
            Ok(GenerationRecord {
                generation: Generation(row.get(0)?),
                shards: row.get(1)?,
                since: timestamp(row.get(2)?),
                made: row.get(3)?,
            })
        })?
        .collect()
}

pub(super) fn read_retired(connection: &Connection) -> rusqlite::Result<Vec<(LaneId, LaneTotals)>> {
    connection
        .prepare(
            "SELECT lane, accepted, delivered, expired, discarded, redriven FROM retired_totals",
        )?
        .query_map([], |row| {
            let count =
                |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.cast_unsigned());
            let totals = LaneTotals {
                accepted: count(1)?,
                delivered: count(2)?,
                expired: count(3)?,
                discarded: count(4)?,
                redriven: count(5)?,
                ..LaneTotals::default()
            };
            Ok((LaneId(row.get(0)?), totals))
        })?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixed;

    fn known(catalog: &Catalog) -> Vec<(u32, u16, bool)> {
        let records = catalog.generations().into_iter();
        records
            .map(|one| (one.generation.0, one.shards, one.made))
            .collect()
    }

    #[test]
    fn a_generation_is_named_made_and_retired_and_its_number_is_never_given_again() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = fixed::open_of(folder.path(), 2);
        std::fs::create_dir(folder.path().join("g1")).unwrap();
        catalog.generation_is_made(Generation(1)).unwrap();
        let second = catalog
            .add_generation(3, "ada", Some("more cores"))
            .unwrap();
        assert_eq!(known(&catalog), [(1, 2, true), (2, 3, false)]);
        catalog.generation_is_made(second).unwrap();
        let counted = |delivered| LaneTotals {
            accepted: 7,
            delivered,
            expired: 2,
            discarded: 1,
            redriven: 3,
            ..LaneTotals::default()
        };
        catalog
            .retire_generation(Generation(1), &[(LaneId(4), counted(4))])
            .unwrap();
        // A repetition counts nothing twice.
        catalog
            .retire_generation(Generation(1), &[(LaneId(4), counted(4))])
            .unwrap();
        drop(catalog);

        let catalog = fixed::open_of(folder.path(), 2);
        assert_eq!(known(&catalog), [(2, 3, true)]);
        assert!(catalog.is_retired(Generation(1)).unwrap());
        assert!(
            !catalog.is_retired(second).unwrap() && !catalog.is_retired(Generation(9)).unwrap()
        );
        assert_eq!(catalog.retired_totals(), [(LaneId(4), counted(4))]);
        let third = catalog.add_generation(1, "ada", None).unwrap();
        catalog
            .retire_generation(third, &[(LaneId(4), counted(1))])
            .unwrap();
        assert_eq!(catalog.retired_totals()[0].1.delivered, 5);
        assert_eq!(
            catalog.add_generation(9, "ada", None).unwrap(),
            Generation(4)
        );
        let trail = catalog.audit_trail(None, 9).unwrap();
        assert_eq!(trail.len(), 3);
        assert_eq!(
            (
                trail[2].action.as_str(),
                trail[2].subject.as_str(),
                trail[2].reason.as_deref()
            ),
            ("shards.set", "g2 shards=3", Some("more cores"))
        );
    }
}
