//! Replays in the catalogue: what each is to deliver again, how far it is, and what became of it. A replay that has
//! not ended names the time of which it needs the events; they are held for it from the moment it is recorded here.

use rusqlite::{Connection, OptionalExtension, Row, params};
use wayhold_model::{DestinationId, Position, Timestamp};

use crate::catalog::audit;
use crate::catalog::file::{Catalog, CatalogError, Change, ChangeError, timestamp};
use crate::scan::{ScanPlace, TimeRange};

/// Most replays that have not ended, of all destinations: each is a lane and holds segments.
pub const REPLAYS_OPEN_MAX: usize = 16;

/// Ended replays that are remembered, the newest; the audit trail remembers all.
pub const REPLAYS_KEPT_MAX: usize = 100;

/// Most deliveries of a replay that are read and not resolved. They are named in its record.
pub const REPLAY_UNRESOLVED_MAX: usize = 1_024;

/// Table of replays, as a new catalogue has it.
pub(super) const SCHEMA: &str = "
CREATE TABLE replays(
    id INTEGER PRIMARY KEY AUTOINCREMENT, destination INTEGER NOT NULL, request TEXT NOT NULL,
    from_at INTEGER NOT NULL, until_at INTEGER NOT NULL, created_at INTEGER NOT NULL, created_by TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, set_by TEXT NOT NULL, since INTEGER NOT NULL,
    selected INTEGER, bytes INTEGER, oldest INTEGER, newest INTEGER, complete INTEGER,
    place TEXT, open TEXT NOT NULL, needs_from INTEGER NOT NULL, delivered INTEGER NOT NULL,
    failed INTEGER NOT NULL, dead INTEGER NOT NULL, skipped INTEGER NOT NULL, missing INTEGER NOT NULL
) STRICT;
";

const COLUMNS: &str = "id, destination, request, from_at, until_at, created_at, created_by, state, reason, set_by, \
    since, selected, bytes, oldest, newest, complete, place, open, needs_from, delivered, failed, dead, skipped, \
    missing";

/// Whether a replay delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplayState {
    /// It does.
    Running,
    /// Somebody stopped it for a while.
    Paused,
    /// Somebody ended it before it was done.
    Cancelled,
    /// Everything that it selected is resolved.
    Done,
}

impl ReplayState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Cancelled, Self::Done];

    /// Name in JSON and in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
        }
    }

    /// Whether nothing will change any more.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Cancelled | Self::Done)
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A replay that is to be begun.
#[derive(Clone, Debug)]
pub struct NewReplay {
    /// Whom it delivers to.
    pub destination: DestinationId,
    /// What it was asked for, in the words of whoever takes requests; opaque here.
    pub request: String,
    /// The time of which it needs the events.
    pub range: TimeRange,
}

/// A replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRecord {
    /// Its number: counts up, never reused.
    pub id: u64,
    /// Whom it delivers to.
    pub destination: DestinationId,
    /// What it was asked for.
    pub request: String,
    /// The time of which it selects events.
    pub range: TimeRange,
    /// When it was begun.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// Whether it delivers.
    pub state: ReplayState,
    /// Why, where somebody said so.
    pub reason: Option<String>,
    /// Who put it into its state.
    pub by: String,
    /// When.
    pub since: Timestamp,
    /// What it selected, once that is counted.
    pub size: Option<SelectedSize>,
    /// How far it is.
    pub progress: ReplayProgress,
}

/// How much a selection takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectedSize {
    /// Events.
    pub events: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// When the oldest of them was accepted.
    pub oldest: Option<Timestamp>,
    /// When the newest was.
    pub newest: Option<Timestamp>,
    /// Whether everything that was accepted in that time is still held.
    pub complete: bool,
}

/// How far a replay is, as it goes on from there after a stop: what it had read and not resolved, and then what it
/// had not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayProgress {
    /// How far it has read.
    pub place: Option<ScanPlace>,
    /// What of that is not resolved, ascending; at most [`REPLAY_UNRESOLVED_MAX`].
    pub open: Vec<Position>,
    /// When the oldest event was accepted that it still needs.
    pub needs_from: Timestamp,
    /// Counts of what it did.
    pub counts: ReplayCounts,
}

/// What became of the events that a replay selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Confirmed by the destination.
    pub delivered: u64,
    /// Attempts that failed. The only one of these that counts attempts and not events.
    pub failed: u64,
    /// Given up.
    pub dead: u64,
    /// Left out, since their own delivery to the destination was still owed.
    pub skipped: u64,
    /// Damaged or gone since they were counted.
    pub missing: u64,
}

impl ReplayCounts {
    /// Events that need nothing more.
    pub fn resolved(&self) -> u64 {
        self.delivered + self.dead + self.skipped + self.missing
    }
}

impl Catalog {
    /// All replays that are remembered, oldest first.
    pub fn replays(&self) -> Vec<ReplayRecord> {
        self.view().replays.clone()
    }

    /// One of them.
    pub fn replay(&self, id: u64) -> Option<ReplayRecord> {
        let view = self.view();
        view.replays.iter().find(|replay| replay.id == id).cloned()
    }

    /// Times of which replays still need the events.
    pub(crate) fn needed_again(&self) -> Vec<TimeRange> {
        let view = self.view();
        let open = view.replays.iter();
        open.filter(|replay| !replay.state.has_ended())
            .map(|replay| TimeRange {
                from: replay.progress.needs_from,
                until: replay.range.until,
            })
            .collect()
    }

    /// Begins a replay: what it needs is held from now on.
    ///
    /// # Errors
    /// `InTheWay`: another one to this destination, or as many as there may be, have not ended. Or the change could
    /// not be recorded.
    pub fn add_replay(&self, new: &NewReplay, by: &str) -> Result<ReplayRecord, CatalogError> {
        let id = self.change(|change| {
            let open: Vec<ReplayRecord> = read(&change.transaction)?
                .into_iter()
                .filter(|replay| !replay.state.has_ended())
                .collect();
            if let Some(other) = open.iter().find(|other| other.destination == new.destination) {
                let what = format!("replay {} to this destination", other.id);
                return Err(CatalogError::InTheWay { what }.into());
            }
            if open.len() >= REPLAYS_OPEN_MAX {
                let what = format!("{} replays, as many as there may be,", open.len());
                return Err(CatalogError::InTheWay { what }.into());
            }
            let now = change.now.as_micros().cast_signed();
            change.transaction.execute(
                "INSERT INTO replays(destination, request, from_at, until_at, created_at, created_by, state, set_by,
                     since, open, needs_from, delivered, failed, dead, skipped, missing)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?6, ?5, '', ?3, 0, 0, 0, 0, 0)",
                params![
                    new.destination.0,
                    new.request,
                    new.range.from.as_micros().cast_signed(),
                    new.range.until.as_micros().cast_signed(),
                    now,
                    by,
                    ReplayState::Running.name(),
                ],
            )?;
            let id = change.transaction.last_insert_rowid();
            forget_old(change)?;
            audit::append(change, by, "replay.started", &id.to_string(), Some(&new.request))?;
            Ok(id.cast_unsigned())
        })?;
        self.replay(id).ok_or(NOT_FOUND)
    }

    /// Puts a replay that has not ended into a state. One that is in it already is left as it is.
    ///
    /// # Errors
    /// `NotFound`; `HasEnded`; or the change could not be recorded.
    pub fn set_replay_state(
        &self,
        id: u64,
        state: ReplayState,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ReplayRecord, CatalogError> {
        let before = self.replay(id).ok_or(NOT_FOUND)?;
        if before.state == state {
            return Ok(before);
        }
        self.change(|change| {
            let found: Option<String> = change
                .transaction
                .query_row(
                    "SELECT state FROM replays WHERE id = ?1",
                    [id.cast_signed()],
                    |row| row.get(0),
                )
                .optional()?;
            let found = found.ok_or(NOT_FOUND)?;
            if ReplayState::from_name(&found).is_some_and(ReplayState::has_ended) {
                return Err(CatalogError::HasEnded { what: "replay" }.into());
            }
            change.transaction.execute(
                "UPDATE replays SET state = ?2, reason = ?3, set_by = ?4, since = ?5 WHERE id = ?1",
                params![
                    id.cast_signed(),
                    state.name(),
                    reason,
                    by,
                    change.now.as_micros().cast_signed()
                ],
            )?;
            let action = match state {
                ReplayState::Running => "resumed",
                other => other.name(),
            };
            audit::append(
                change,
                by,
                &format!("replay.{action}"),
                &id.to_string(),
                reason,
            )?;
            Ok(())
        })?;
        self.replay(id).ok_or(NOT_FOUND)
    }

    /// Records what a replay selected.
    ///
    /// # Errors
    /// When the change could not be recorded.
    pub fn set_replay_size(&self, id: u64, size: &SelectedSize) -> Result<(), CatalogError> {
        let at = |time: Option<Timestamp>| time.map(|time| time.as_micros().cast_signed());
        self.change(|change| {
            change.transaction.execute(
                "UPDATE replays SET selected = ?2, bytes = ?3, oldest = ?4, newest = ?5, complete = ?6 WHERE id = ?1",
                params![
                    id.cast_signed(),
                    size.events.cast_signed(),
                    size.bytes.cast_signed(),
                    at(size.oldest),
                    at(size.newest),
                    size.complete
                ],
            )?;
            Ok(())
        })
    }

    /// Records how far a replay is.
    ///
    /// # Errors
    /// When the change could not be recorded: after a stop it goes on from where it was recorded before.
    pub fn set_replay_progress(
        &self,
        id: u64,
        progress: &ReplayProgress,
    ) -> Result<(), CatalogError> {
        let open: Vec<String> = progress.open.iter().map(ToString::to_string).collect();
        let counts = progress.counts;
        self.change(|change| {
            change.transaction.execute(
                "UPDATE replays SET place = ?2, open = ?3, needs_from = ?4, delivered = ?5, failed = ?6, dead = ?7,
                     skipped = ?8, missing = ?9 WHERE id = ?1",
                params![
                    id.cast_signed(),
                    progress.place.as_ref().map(ToString::to_string),
                    open.join(" "),
                    progress.needs_from.as_micros().cast_signed(),
                    counts.delivered.cast_signed(),
                    counts.failed.cast_signed(),
                    counts.dead.cast_signed(),
                    counts.skipped.cast_signed(),
                    counts.missing.cast_signed(),
                ],
            )?;
            Ok(())
        })
    }
}

const NOT_FOUND: CatalogError = CatalogError::NotFound { what: "replay" };

fn forget_old(change: &Change<'_>) -> Result<(), ChangeError> {
    change.transaction.execute(
        "DELETE FROM replays WHERE state IN (?1, ?2) AND id NOT IN
             (SELECT id FROM replays WHERE state IN (?1, ?2) ORDER BY id DESC LIMIT ?3)",
        params![
            ReplayState::Done.name(),
            ReplayState::Cancelled.name(),
            i64::try_from(REPLAYS_KEPT_MAX).unwrap_or(i64::MAX)
        ],
    )?;
    Ok(())
}

pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<ReplayRecord>> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM replays ORDER BY id"))?;
    statement.query_map([], read_row)?.collect()
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<ReplayRecord> {
    let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let optional =
        |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(i64::cast_unsigned));
    let invalid = || rusqlite::Error::InvalidQuery;
    let state: String = row.get(7)?;
    let size = match optional(11)? {
        None => None,
        Some(events) => Some(SelectedSize {
            events,
            bytes: optional(12)?.unwrap_or(0),
            oldest: optional(13)?.map(Timestamp::from_micros),
            newest: optional(14)?.map(Timestamp::from_micros),
            complete: row.get::<_, Option<bool>>(15)?.unwrap_or(false),
        }),
    };
    let place: Option<String> = row.get(16)?;
    let open: String = row.get(17)?;
    let open = open.split(' ').filter(|text| !text.is_empty());
    Ok(ReplayRecord {
        id: number(0)?,
        destination: DestinationId(row.get(1)?),
        request: row.get(2)?,
        range: TimeRange {
            from: timestamp(row.get(3)?),
            until: timestamp(row.get(4)?),
        },
        created_at: timestamp(row.get(5)?),
        created_by: row.get(6)?,
        state: ReplayState::from_name(&state).ok_or_else(invalid)?,
        reason: row.get(8)?,
        by: row.get(9)?,
        since: timestamp(row.get(10)?),
        size,
        progress: ReplayProgress {
            place: place
                .map(|text| text.parse())
                .transpose()
                .map_err(|_| invalid())?,
            open: open
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| invalid())?,
            needs_from: timestamp(row.get(18)?),
            counts: ReplayCounts {
                delivered: number(19)?,
                failed: number(20)?,
                dead: number(21)?,
                skipped: number(22)?,
                missing: number(23)?,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixed::open;

    fn new(destination: u32) -> NewReplay {
        NewReplay {
            destination: DestinationId(destination),
            request: "{}".to_owned(),
            range: TimeRange {
                from: Timestamp::from_micros(3),
                until: Timestamp::from_micros(9),
            },
        }
    }

    #[test]
    fn a_replay_goes_on_from_where_it_was_recorded_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let begun = catalog.add_replay(&new(1), "ada").unwrap();
        assert_eq!((begun.state, begun.size), (ReplayState::Running, None));
        assert_eq!(begun.progress.needs_from, begun.range.from);
        let size = SelectedSize {
            events: 5,
            bytes: 70,
            oldest: Some(Timestamp::from_micros(4)),
            newest: None,
            complete: true,
        };
        let progress = ReplayProgress {
            place: Some("g2.7.".parse().unwrap()),
            open: vec!["g1.s0.5".parse().unwrap(), "g2.s0.7".parse().unwrap()],
            needs_from: Timestamp::from_micros(4),
            counts: ReplayCounts {
                delivered: 1,
                failed: 2,
                dead: 3,
                skipped: 4,
                missing: u64::MAX,
            },
        };
        catalog.set_replay_size(begun.id, &size).unwrap();
        catalog.set_replay_progress(begun.id, &progress).unwrap();
        drop(catalog);
        let catalog = open(folder.path());
        let still = TimeRange {
            from: Timestamp::from_micros(4),
            ..begun.range
        };
        assert_eq!(
            catalog.needed_again(),
            [still],
            "as far as it is not done with it"
        );
        let found = catalog.replay(begun.id).unwrap();
        let expected = ReplayRecord {
            size: Some(size),
            progress,
            ..begun
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_replay_needs_is_held_until_it_ends_and_an_end_is_final() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let replay = catalog.add_replay(&new(1), "ada").unwrap();
        let needed = |catalog: &Catalog| catalog.needed_again();
        assert_eq!(needed(&catalog), [replay.range]);
        let set = |state| catalog.set_replay_state(replay.id, state, "eve", Some("enough"));
        assert_eq!(set(ReplayState::Paused).unwrap().by, "eve");
        let version = catalog.version();
        set(ReplayState::Paused).unwrap();
        assert_eq!(catalog.version(), version, "again changes nothing");
        set(ReplayState::Cancelled).unwrap();
        assert_eq!(needed(&catalog), []);
        for state in [ReplayState::Running, ReplayState::Paused, ReplayState::Done] {
            assert!(matches!(set(state), Err(CatalogError::HasEnded { .. })));
        }
        let trail = catalog.audit_trail(None, 10).unwrap();
        let told: Vec<_> = trail.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!(
            told,
            ["replay.cancelled", "replay.paused", "replay.started"]
        );
        assert!(matches!(
            catalog.set_replay_state(99, ReplayState::Paused, "eve", None),
            Err(CatalogError::NotFound { .. })
        ));
    }

    #[test]
    fn replays_are_bounded_in_number_while_they_run_and_after_they_ended() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        let in_the_way = |added| matches!(added, Err(CatalogError::InTheWay { .. }));
        for destination in 0..u32::try_from(REPLAYS_OPEN_MAX).unwrap() {
            catalog.add_replay(&new(destination), "ada").unwrap();
            assert!(in_the_way(catalog.add_replay(&new(destination), "ada")));
        }
        assert!(in_the_way(catalog.add_replay(&new(99), "ada")));
        for _ in 0..REPLAYS_KEPT_MAX + 5 {
            let oldest = catalog
                .replays()
                .into_iter()
                .find(|one| !one.state.has_ended());
            let oldest = oldest.unwrap();
            catalog
                .set_replay_state(oldest.id, ReplayState::Done, "wayhold", None)
                .unwrap();
            catalog
                .add_replay(&new(oldest.destination.0), "ada")
                .unwrap();
        }
        let ended = catalog
            .replays()
            .into_iter()
            .filter(|one| one.state.has_ended());
        assert_eq!(ended.count(), REPLAYS_KEPT_MAX);
    }
}
