//! How many commands are in each state: kept beside them, so that neither a start nor a look at metrics counts rows.

use rusqlite::{Connection, params};
use wayhold_model::command::State;

pub(super) const SCHEMA: &str = "
CREATE TABLE counts(state TEXT PRIMARY KEY, commands INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

const STATES: usize = State::ALL.len();

/// Commands by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; STATES]);

impl Counts {
    /// How many are in a state.
    pub fn of(&self, state: State) -> u64 {
        self.0.get(state as usize).copied().unwrap_or(0)
    }

    /// Every state with its commands.
    pub fn iter(&self) -> impl Iterator<Item = (State, u64)> {
        State::ALL.into_iter().zip(self.0)
    }

    /// Reads what is kept.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        Self::of_query(connection, "SELECT state, commands FROM counts")
    }

    /// Counts the commands themselves, which takes as long as there are many.
    pub(super) fn count(connection: &Connection) -> rusqlite::Result<Self> {
        Self::of_query(
            connection,
            "SELECT state, count(*) FROM commands GROUP BY state",
        )
    }

    fn of_query(connection: &Connection, query: &str) -> rusqlite::Result<Self> {
        let mut counts = Self::default();
        let mut rows = connection.prepare(query)?;
        let rows = rows.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
        })?;
        for row in rows {
            let (name, commands) = row?;
            if let Some(place) = State::named(&name).and_then(|s| counts.0.get_mut(s as usize)) {
                *place = commands.cast_unsigned();
            }
        }
        Ok(counts)
    }

    /// The same after these differences.
    pub(super) fn after(&self, deltas: &Deltas) -> Self {
        let mut counts = *self;
        for (count, delta) in counts.0.iter_mut().zip(deltas.0) {
            *count = count.saturating_add_signed(delta);
        }
        counts
    }
}

/// What changes and groups of them do to counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deltas([i64; STATES]);

impl Deltas {
    pub(super) fn move_one(&mut self, from: Option<State>, to: Option<State>) {
        for (state, difference) in [(from, -1), (to, 1)] {
            if let Some(place) = state.and_then(|state| self.0.get_mut(state as usize)) {
                *place += difference;
            }
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Writes them in the group's transaction.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for (state, delta) in State::ALL
            .iter()
            .zip(self.0)
            .filter(|(_, delta)| *delta != 0)
        {
            connection
                .prepare_cached(
                    "INSERT INTO counts VALUES (?1, ?2)
                     ON CONFLICT(state) DO UPDATE SET commands = commands + ?2",
                )?
                .execute(params![state.name(), delta])?;
        }
        Ok(())
    }
}
