//! Redrives of many dead letters in the catalogue: which letters each sends again, and how far it is, so that it goes
//! on after a stop. One that has ended is not here; the audit trail remembers it.

use rusqlite::{Connection, Row, params};
use wayhold_model::{DestinationId, Position, Timestamp};

use crate::catalog::audit;
use crate::catalog::file::{Catalog, CatalogError, timestamp};

/// Table of redrives, as a new catalogue has it.
pub(super) const SCHEMA: &str = "
CREATE TABLE redrives(
    destination INTEGER PRIMARY KEY, request TEXT NOT NULL, below INTEGER NOT NULL, selected INTEGER NOT NULL,
    redriven INTEGER NOT NULL, place TEXT, begun_at INTEGER NOT NULL, begun_by TEXT NOT NULL
) STRICT;
";

/// A redrive of many that is to be begun.
#[derive(Clone, Debug)]
pub struct NewRedrive {
    /// Whose letters.
    pub destination: DestinationId,
    /// How many it takes.
    pub selected: u64,
}

/// A redrive of many that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveRecord {
    /// Whose letters; a destination has one at a time.
    pub destination: DestinationId,
    /// What it was asked for, in the words of whoever takes requests; opaque here.
    pub request: String,
    /// It takes no letter of this number or above: those came about later.
    pub below: u64,
    /// How many letters it took when it was begun.
    pub selected: u64,
    /// How many of them are being sent again, or have been.
    pub redriven: u64,
    /// It goes by the positions of their events; up to this one they are being sent again.
    pub place: Option<Position>,
    /// When it was begun.
    pub since: Timestamp,
    /// By whom.
    pub by: String,
}

/// An entry of the audit trail that belongs to a change.
#[derive(Clone, Copy, Debug)]
pub struct AuditWords<'a> {
    /// Whom it concerns.
    pub subject: &'a str,
    /// What was selected.
    pub words: &'a str,
}

impl Catalog {
    /// The redrives of many that are under way.
    pub fn redrives(&self) -> Vec<RedriveRecord> {
        self.view().redrives.clone()
    }

    /// Begins all of these, on the audit trail together; all ask for the same, of letters with numbers below that.
    ///
    /// # Errors
    /// `InTheWay`: one at one of these destinations has not ended. Or the change could not be recorded.
    pub fn begin_redrives(
        &self,
        redrives: &[NewRedrive],
        (request, below): (&str, u64),
        by: &str,
        audited: AuditWords<'_>,
    ) -> Result<(), CatalogError> {
        self.change(|change| {
            let under_way = read(&change.transaction)?;
            for new in redrives {
                let is_same = |one: &RedriveRecord| one.destination == new.destination;
                if under_way.iter().any(is_same) {
                    let what = "a redrive of many dead letters of this destination".to_owned();
                    return Err(CatalogError::InTheWay { what }.into());
                }
                change.transaction.execute(
                    "INSERT INTO redrives VALUES (?1, ?2, ?3, ?4, 0, NULL, ?5, ?6)",
                    params![
                        new.destination.0,
                        request,
                        below.cast_signed(),
                        new.selected.cast_signed(),
                        change.now.as_micros().cast_signed(),
                        by,
                    ],
                )?;
            }
            let AuditWords { subject, words } = audited;
            audit::append(change, by, "dead_letters.redriven", subject, Some(words))?;
            Ok(())
        })
    }

    /// Records how far one is; one that has ended is left so.
    ///
    /// # Errors
    /// When the change could not be recorded: after a stop it goes on from where it was recorded before.
    pub fn set_redrive_progress(
        &self,
        destination: DestinationId,
        redriven: u64,
        place: Position,
    ) -> Result<(), CatalogError> {
        self.change(|change| {
            change.transaction.execute(
                "UPDATE redrives SET redriven = ?2, place = ?3 WHERE destination = ?1",
                params![destination.0, redriven.cast_signed(), place.to_string()],
            )?;
            Ok(())
        })
    }

    /// Ends one; on the audit trail where somebody stops it before it is done. Whether it was under way.
    ///
    /// # Errors
    /// When the change could not be recorded: then it goes on.
    pub fn end_redrive(
        &self,
        destination: DestinationId,
        stopped: Option<(&str, AuditWords<'_>)>,
    ) -> Result<bool, CatalogError> {
        self.change(|change| {
            let ended = change.transaction.execute(
                "DELETE FROM redrives WHERE destination = ?1",
                [destination.0],
            )? > 0;
            if let Some((by, AuditWords { subject, words })) = stopped.filter(|_| ended) {
                let action = "dead_letters.redrive_stopped";
                audit::append(change, by, action, subject, Some(words))?;
            }
            Ok(ended)
        })
    }
}

pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<RedriveRecord>> {
    let mut statement = connection.prepare_cached(
        "SELECT destination, request, below, selected, redriven, place, begun_at, begun_by
         FROM redrives ORDER BY destination",
    )?;
    statement.query_map([], read_row)?.collect()
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<RedriveRecord> {
    let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let place: Option<String> = row.get(5)?;
    let place = place.map(|text| text.parse()).transpose();
    Ok(RedriveRecord {
        destination: DestinationId(row.get(0)?),
        request: row.get(1)?,
        below: number(2)?,
        selected: number(3)?,
        redriven: number(4)?,
        place: place.map_err(|_| rusqlite::Error::InvalidQuery)?,
        since: timestamp(row.get(6)?),
        by: row.get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixed::open;

    const AUDITED: AuditWords<'static> = AuditWords {
        subject: "wms",
        words: "3 of class gone",
    };

    fn new(destination: u32) -> NewRedrive {
        NewRedrive {
            destination: DestinationId(destination),
            selected: 3,
        }
    }

    #[test]
    fn a_redrive_goes_on_from_where_it_was_recorded_to_be_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let both = [new(1), new(2)];
        catalog
            .begin_redrives(&both, ("{}", 9), "ada", AUDITED)
            .unwrap();
        let place: Position = "g1.s0.17".parse().unwrap();
        catalog
            .set_redrive_progress(DestinationId(2), 2, place)
            .unwrap();
        drop(catalog);

        let catalog = open(folder.path());
        let [one, two] = catalog.redrives().try_into().unwrap();
        assert_eq!((one.redriven, one.place), (0, None));
        let expected = RedriveRecord {
            destination: DestinationId(2),
            request: "{}".to_owned(),
            below: 9,
            selected: 3,
            redriven: 2,
            place: Some(place),
            since: Timestamp::from_micros(7),
            by: "ada".to_owned(),
        };
        assert_eq!(two, expected);

        assert!(catalog.end_redrive(DestinationId(1), None).unwrap());
        let stopped = Some(("eve", AUDITED));
        assert!(catalog.end_redrive(DestinationId(2), stopped).unwrap());
        assert!(!catalog.end_redrive(DestinationId(2), stopped).unwrap());
        catalog
            .set_redrive_progress(DestinationId(2), 3, place)
            .unwrap();
        assert_eq!(catalog.redrives(), []);
        let trail = catalog.audit_trail(None, 9).unwrap();
        let told: Vec<_> = trail
            .iter()
            .map(|entry| (entry.by.as_str(), entry.action.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("eve", "dead_letters.redrive_stopped"),
                ("ada", "dead_letters.redriven")
            ]
        );
    }

    #[test]
    fn a_destination_has_one_at_a_time_and_none_begins_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let begin = |destinations: &[u32]| {
            let new: Vec<_> = destinations.iter().copied().map(new).collect();
            catalog.begin_redrives(&new, ("{}", 9), "ada", AUDITED)
        };
        begin(&[2]).unwrap();
        assert!(matches!(begin(&[1, 2]), Err(CatalogError::InTheWay { .. })));
        let under_way = catalog.redrives();
        assert_eq!(under_way.len(), 1);
        assert_eq!(catalog.audit_trail(None, 9).unwrap().len(), 1);
        catalog.end_redrive(DestinationId(2), None).unwrap();
        begin(&[1, 2]).unwrap();
    }
}
