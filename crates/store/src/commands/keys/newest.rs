//! The newest keys, which are known in memory until they are sorted into the index. When there are enough of them for many
//! to share a page of it they are sorted in one run, a few with each group. A start reads again those that were not.

use std::collections::BTreeSet;
use std::ops::Bound;

use rusqlite::{Connection, OptionalExtension, params};

use super::short;

/// Keys that are sorted in one run: enough for many to share a page of a large index, few enough to be read again at a start
/// in a moment.
const SORTED_TOGETHER: usize = 8192;

/// Keys of a run that are sorted with one group, so that nobody waits long for it; more where the group brought many.
const SORTED_AT_ONCE: usize = 128;

/// First bytes and number of a key.
type Place = (i64, i64);

/// Keys that are not sorted into their places.
#[derive(Debug, Default)]
pub(in super::super) struct NewestKeys {
    places: BTreeSet<Place>,
    /// The highest number that any key had.
    last: i64,
    /// Those that are being sorted.
    run: Option<Run>,
}

/// Keys that are sorted a few at a time, and known here until all are.
#[derive(Debug)]
struct Run {
    places: BTreeSet<Place>,
    /// The last that is sorted.
    done: Option<Place>,
    /// The highest number of any of them; every key with a lower one is among them or sorted.
    last: i64,
}

/// How far the keys of a run are sorted, in a group that is not synced yet: `None` where all are.
#[derive(Debug)]
pub(in super::super) struct Sorted(Option<Place>);

impl NewestKeys {
    /// Those of the file.
    pub(in super::super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let sorted_to: Option<i64> = connection
            .query_row("SELECT number FROM keys_sorted_to", [], |row| row.get(0))
            .optional()?;
        let mut newest = Self {
            last: sorted_to.unwrap_or(0),
            ..Self::default()
        };
        let mut rows = connection.prepare("SELECT number, key FROM keys WHERE number > ?1")?;
        let mut rows = rows.query([newest.last])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            newest.places.insert((short(&row.get(1)?), number));
            newest.last = newest.last.max(number);
        }
        Ok(newest)
    }

    /// None yet, numbered on from these.
    pub(in super::super) fn after(&self) -> Self {
        Self {
            last: self.last,
            ..Self::default()
        }
    }

    /// Adds later ones.
    pub(in super::super) fn extend(&mut self, later: Self) {
        self.places.extend(later.places);
        self.last = later.last;
    }

    /// Lets go of those that are sorted, once they are synced, and begins a run where there are enough for one.
    pub(in super::super) fn follow(&mut self, sorted: Option<Sorted>) {
        match (sorted, &mut self.run) {
            (Some(Sorted(None)), run) => *run = None,
            (Some(Sorted(done)), Some(run)) => run.done = done,
            (Some(Sorted(_)), None) | (None, _) => {}
        }
        if self.run.is_none() && self.places.len() >= SORTED_TOGETHER {
            self.run = Some(Run {
                places: std::mem::take(&mut self.places),
                done: None,
                last: self.last,
            });
        }
    }

    /// Sorts the next keys of a run into their places, at least twice as many as the group brought; how far it came, `None`
    /// where there is no run.
    pub(in super::super) fn sort_some(
        &self,
        brought: &Self,
        connection: &Connection,
    ) -> rusqlite::Result<Option<Sorted>> {
        let Some(run) = &self.run else {
            return Ok(None);
        };
        // One that was forgotten meanwhile is not there; one that was sorted before a crash is there already.
        let mut sort = connection.prepare_cached(
            "INSERT OR IGNORE INTO keys_sorted SELECT ?1, number FROM keys WHERE number = ?2",
        )?;
        let at_once = SORTED_AT_ONCE.max(2 * brought.places.len());
        let from = run.done.map_or(Bound::Unbounded, Bound::Excluded);
        let mut done = None;
        let left = run.places.range((from, Bound::Unbounded));
        for (sorted, (short, number)) in left.enumerate() {
            if sorted == at_once {
                return Ok(Some(Sorted(done)));
            }
            sort.execute(params![short, number])?;
            done = Some((*short, *number));
        }
        connection
            .prepare_cached("INSERT OR REPLACE INTO keys_sorted_to VALUES (1, ?1)")?
            .execute([run.last])?;
        Ok(Some(Sorted(None)))
    }

    /// The number of the next key.
    pub(super) fn next_number(&self) -> i64 {
        self.last + 1
    }

    /// Adds a key, which has that number.
    pub(super) fn add(&mut self, place: Place) {
        self.places.insert(place);
        self.last = place.1;
    }

    /// Numbers of keys that begin so.
    pub(super) fn of(&self, short: i64) -> impl Iterator<Item = i64> {
        let all = (short, i64::MIN)..=(short, i64::MAX);
        let run = self.run.iter().flat_map({
            let all = all.clone();
            move |run| run.places.range(all.clone())
        });
        self.places.range(all).chain(run).map(|(_, number)| *number)
    }
}
