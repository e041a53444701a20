//! Attempts at commands: each is here before anything is sent.

use rusqlite::params;
use wayhold_model::command::CommandId;
use wayhold_model::{OutcomeKind, Timestamp};

use super::change::{Change, View};
use super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE attempts(
    command BLOB NOT NULL, n INTEGER NOT NULL, started_at INTEGER NOT NULL, request TEXT NOT NULL,
    finished_at INTEGER, outcome TEXT, class TEXT, status INTEGER, answer TEXT,
    PRIMARY KEY(command, n)
) STRICT, WITHOUT ROWID;
";

/// An attempt that is about to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptStart {
    /// What is sent where, as JSON; without secrets.
    pub request: String,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEnd {
    /// Whether anything may have happened.
    pub outcome: OutcomeKind,
    /// What was in the way.
    pub class: Option<String>,
    /// The receiver's own number, where it gave one.
    pub status: Option<i32>,
    /// What was answered, as JSON; bounded.
    pub answer: String,
}

/// An attempt as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    /// Its number, from 1.
    pub n: u32,
    /// When it was recorded, which is before it was sent.
    pub started_at: Timestamp,
    /// What was sent.
    pub request: String,
    /// How it ended and when; `None` while it has not, or where the process ended first.
    pub end: Option<(Timestamp, AttemptEnd)>,
}

impl View<'_> {
    /// Attempts at a command, in order; at most so many, the newest.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn attempts(&self, command: CommandId, max: u32) -> Result<Vec<AttemptRow>, CommandsError> {
        let mut attempts = self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT n, started_at, request, finished_at, outcome, class, status, answer FROM attempts
                     WHERE command = ?1 ORDER BY n DESC LIMIT ?2",
                )?
                .query_map(params![command.to_bytes(), max], attempt)?
                .collect::<Result<Vec<_>, _>>()
        })?;
        attempts.reverse();
        Ok(attempts)
    }
}

impl Change<'_> {
    /// Records an attempt that is sent once this change is synced; its number, from 1.
    ///
    /// # Errors
    /// The file takes no change: then nothing may be sent.
    pub fn start_attempt(
        &mut self,
        command: CommandId,
        start: &AttemptStart,
    ) -> Result<u32, CommandsError> {
        let now = self.now().as_micros().cast_signed();
        self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO attempts(command, n, started_at, request)
                     VALUES (?1, 1 + coalesce((SELECT max(n) FROM attempts WHERE command = ?1), 0), ?2, ?3)
                     RETURNING n",
                )?
                .query_row(params![command.to_bytes(), now, start.request], |row| {
                    row.get(0)
                })
        })
    }

    /// A person, or the target, said that the last attempt did nothing: from now on its outcome is known.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn settle_last_attempt(&mut self, command: CommandId) -> Result<(), CommandsError> {
        let now = self.now().as_micros().cast_signed();
        self.run(|connection| {
            connection
                .prepare_cached(
                    "UPDATE attempts SET outcome = ?2, finished_at = coalesce(finished_at, ?3)
                     WHERE command = ?1 AND n = (SELECT max(n) FROM attempts WHERE command = ?1)",
                )?
                .execute(params![
                    command.to_bytes(),
                    OutcomeKind::NotExecuted.name(),
                    now
                ])
        })?;
        Ok(())
    }

    /// Records how an attempt ended; `false` where it had ended before.
    ///
    /// # Errors
    /// The file takes no change: the attempt stays open, and its outcome unknown.
    pub fn finish_attempt(
        &mut self,
        (command, n): (CommandId, u32),
        end: &AttemptEnd,
    ) -> Result<bool, CommandsError> {
        let now = self.now().as_micros().cast_signed();
        let changed = self.run(|connection| {
            connection
                .prepare_cached(
                    "UPDATE attempts SET finished_at = ?3, outcome = ?4, class = ?5, status = ?6, answer = ?7
                     WHERE command = ?1 AND n = ?2 AND finished_at IS NULL",
                )?
                .execute(params![
                    command.to_bytes(),
                    n,
                    now,
                    end.outcome.name(),
                    end.class,
                    end.status,
                    end.answer
                ])
        })?;
        Ok(changed > 0)
    }
}

fn attempt(row: &rusqlite::Row<'_>) -> rusqlite::Result<AttemptRow> {
    let outcome: Option<String> = row.get(4)?;
    let finished_at: Option<i64> = row.get(3)?;
    let end = match (finished_at, outcome) {
        (Some(at), Some(outcome)) => Some((
            Timestamp::from_micros(at.cast_unsigned()),
            AttemptEnd {
                // Another word can only come of damage, and then nothing is known.
                outcome: OutcomeKind::from_name(&outcome).unwrap_or(OutcomeKind::Unknown),
                class: row.get(5)?,
                status: row.get(6)?,
                answer: row.get::<_, Option<String>>(7)?.unwrap_or_default(),
            },
        )),
        _ => None,
    };
    Ok(AttemptRow {
        n: row.get(0)?,
        started_at: Timestamp::from_micros(row.get::<_, i64>(1)?.cast_unsigned()),
        request: row.get(2)?,
        end,
    })
}
