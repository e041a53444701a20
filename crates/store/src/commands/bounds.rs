//! What holds commands back: budgets that were taken from, and what is halted. Both last over restarts.

use rusqlite::{OptionalExtension, Row, params};
use wayhold_model::Timestamp;
use wayhold_model::approval::{Amount, Per, Used};
use wayhold_model::command::CommandId;

use super::change::{Change, View};
use super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE budgets(
    name TEXT NOT NULL, budget TEXT NOT NULL, slice INTEGER NOT NULL, count INTEGER NOT NULL, amount TEXT NOT NULL,
    PRIMARY KEY(name, budget, slice)
) STRICT, WITHOUT ROWID;
CREATE TABLE charges(
    command BLOB NOT NULL, name TEXT NOT NULL, budget TEXT NOT NULL, slice INTEGER NOT NULL, amount TEXT NOT NULL,
    PRIMARY KEY(command, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX charges_by_slice ON charges(name, budget, slice);
CREATE TABLE halts(
    scope TEXT NOT NULL, name TEXT NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY(scope, name)
) STRICT, WITHOUT ROWID;
";

/// A place in a budget.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Name of the limit.
    pub limit: &'a str,
    /// Whose budget it is.
    pub budget: &'a str,
    /// The slice of time.
    pub slice: u64,
}

/// Something whose commands do not leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// What kind of thing.
    pub scope: Per,
    /// Its name.
    pub name: String,
    /// Who halted it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

impl View<'_> {
    /// What was taken of a budget from a slice on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn used(&self, from: Slot<'_>) -> Result<Used, CommandsError> {
        let rows: Vec<(i64, String)> = self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT count, amount FROM budgets WHERE name = ?1 AND budget = ?2 AND slice >= ?3",
                )?
                .query_map(
                    params![from.limit, from.budget, from.slice.cast_signed()],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )?
                .collect()
        })?;
        rows.into_iter()
            .try_fold(Used::default(), |sum, (count, amount)| {
                let count = count.cast_unsigned();
                let amount = amount_of(&amount)?;
                Ok(sum.and(Used { count, amount }))
            })
    }

    /// Everything that is halted.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn halts(&self) -> Result<Vec<Halt>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT scope, name, by, reason, since FROM halts")?
                .query_map([], halt)?
                .collect()
        })
    }

    /// Why a command may not leave now; `None` where nothing holds it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn halted(
        &self,
        principal: &str,
        kind: &str,
        destination: &str,
    ) -> Result<Option<Halt>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT scope, name, by, reason, since FROM halts
                     WHERE (scope, name) IN (VALUES ('principal', ?1), ('kind', ?2), ('destination', ?3)) LIMIT 1",
                )?
                .query_row(params![principal, kind, destination], halt)
                .optional()
        })
    }
}

impl Change<'_> {
    /// Takes from a budget for a command, and lets go of slices before `keep_from`.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn charge(
        &mut self,
        command: CommandId,
        slot: Slot<'_>,
        amount: Amount,
        keep_from: u64,
    ) -> Result<(), CommandsError> {
        let Slot {
            limit,
            budget,
            slice,
        } = slot;
        let before = self.slice_of(slot)?.unwrap_or_default();
        let then = before.and(Used { count: 1, amount });
        self.run(|connection| {
            connection
                .prepare_cached(
                    "DELETE FROM budgets WHERE name = ?1 AND budget = ?2 AND slice < ?3",
                )?
                .execute(params![limit, budget, keep_from.cast_signed()])?;
            // What counts no more cannot be given back.
            connection
                .prepare_cached(
                    "DELETE FROM charges WHERE name = ?1 AND budget = ?2 AND slice < ?3",
                )?
                .execute(params![limit, budget, keep_from.cast_signed()])?;
            connection
                .prepare_cached("INSERT OR REPLACE INTO charges VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    command.to_bytes(),
                    limit,
                    budget,
                    slice.cast_signed(),
                    amount.to_string()
                ])
        })?;
        self.keep_slice(slot, then)
    }

    /// Gives back what was taken for a command that will never leave.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn give_back(&mut self, command: CommandId) -> Result<(), CommandsError> {
        let charges: Vec<(String, String, i64, String)> = self.run(|connection| {
            connection
                .prepare_cached(
                    "DELETE FROM charges WHERE command = ?1 RETURNING name, budget, slice, amount",
                )?
                .query_map([command.to_bytes()], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })?
                .collect()
        })?;
        for (limit, budget, slice, amount) in charges {
            let slot = Slot {
                limit: &limit,
                budget: &budget,
                slice: slice.cast_unsigned(),
            };
            // A slice that is gone already counts no more.
            let Some(before) = self.slice_of(slot)? else {
                continue;
            };
            let amount = before.amount.millionths() - amount_of(&amount)?.millionths();
            let then = Used {
                count: before.count.saturating_sub(1),
                amount: Amount::from_millionths(amount.max(0)),
            };
            self.keep_slice(slot, then)?;
        }
        Ok(())
    }

    /// Halts something; `false` where it was halted before, and nothing was changed.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn halt(
        &mut self,
        scope: Per,
        name: &str,
        by: &str,
        reason: &str,
    ) -> Result<bool, CommandsError> {
        let now = self.now().as_micros().cast_signed();
        let changed = self.run(|connection| {
            connection
                .prepare_cached("INSERT OR IGNORE INTO halts VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![scope.name(), name, by, reason, now])
        })?;
        Ok(changed > 0)
    }

    /// Lets it go on; `false` where it was not halted.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn end_halt(&mut self, scope: Per, name: &str) -> Result<bool, CommandsError> {
        let changed = self.run(|connection| {
            connection
                .prepare_cached("DELETE FROM halts WHERE scope = ?1 AND name = ?2")?
                .execute(params![scope.name(), name])
        })?;
        Ok(changed > 0)
    }

    fn slice_of(&self, slot: Slot<'_>) -> Result<Option<Used>, CommandsError> {
        let row: Option<(i64, String)> = self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT count, amount FROM budgets WHERE name = ?1 AND budget = ?2 AND slice = ?3",
                )?
                .query_row(
                    params![slot.limit, slot.budget, slot.slice.cast_signed()],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()
        })?;
        row.map(|(count, amount)| {
            Ok(Used {
                count: count.cast_unsigned(),
                amount: amount_of(&amount)?,
            })
        })
        .transpose()
    }

    fn keep_slice(&mut self, slot: Slot<'_>, used: Used) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO budgets VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    slot.limit,
                    slot.budget,
                    slot.slice.cast_signed(),
                    used.count.cast_signed(),
                    used.amount.to_string()
                ])
        })?;
        Ok(())
    }
}

/// An amount as it is kept: exact, in words that a person can read.
fn amount_of(text: &str) -> Result<Amount, CommandsError> {
    Amount::parse(text).ok_or_else(|| CommandsError::Unfit {
        reason: format!("expected an amount, not {text:?}"),
    })
}

fn halt(row: &Row<'_>) -> rusqlite::Result<Halt> {
    let scope: String = row.get(0)?;
    let unknown = || {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(0, kind, format!("scope {scope:?}").into())
    };
    Ok(Halt {
        scope: Per::from_name(&scope).ok_or_else(unknown)?,
        name: row.get(1)?,
        by: row.get(2)?,
        reason: row.get(3)?,
        since: Timestamp::from_micros(row.get::<_, i64>(4)?.cast_unsigned()),
    })
}
