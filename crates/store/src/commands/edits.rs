//! Edits of commands that wait for approval: what each was before.

use rusqlite::{OptionalExtension, params};
use wayhold_model::Timestamp;
use wayhold_model::approval::Digest;
use wayhold_model::command::CommandId;

use super::change::{Change, View};
use super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE edits(
    command BLOB NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, by TEXT NOT NULL, arguments TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY(command, number)
) STRICT, WITHOUT ROWID;
";

/// What a command was before somebody edited it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditRow {
    /// When it was edited.
    pub at: Timestamp,
    /// By whom.
    pub by: String,
    /// Its arguments before, as canonical JSON.
    pub arguments: String,
    /// Its digest before.
    pub digest: Digest,
}

/// What an edit makes of a command.
#[derive(Clone, Copy, Debug)]
pub struct Edited<'a> {
    /// Its arguments, as canonical JSON.
    pub arguments: &'a str,
    /// Its digest.
    pub digest: &'a Digest,
    /// What its order is kept by.
    pub order_key: Option<&'a str>,
}

impl View<'_> {
    /// What a command was before each edit, the oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn edits_of(&self, command: CommandId) -> Result<Vec<EditRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT at, by, arguments, digest FROM edits WHERE command = ?1 ORDER BY number",
                )?
                .query_map([command.to_bytes()], |row| {
                    Ok(EditRow {
                        at: Timestamp::from_micros(row.get::<_, i64>(0)?.cast_unsigned()),
                        by: row.get(1)?,
                        arguments: row.get(2)?,
                        digest: Digest(row.get(3)?),
                    })
                })?
                .collect()
        })
    }
}

impl Change<'_> {
    /// Puts an edited command in place of what was proposed, and keeps what it was. Only a command that waits for
    /// approval can be: the answer is `false` for any other, and nothing was changed.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn edit_command(
        &mut self,
        id: CommandId,
        by: &str,
        edited: Edited<'_>,
    ) -> Result<bool, CommandsError> {
        let Edited {
            arguments,
            digest,
            order_key,
        } = edited;
        let now = self.now().as_micros().cast_signed();
        self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO edits SELECT id,
                         (SELECT count(*) FROM edits WHERE command = ?1), ?2, ?3, arguments, digest
                     FROM commands JOIN proposals USING (number)
                     WHERE id = ?1 AND state = 'pending_approval'",
                )?
                .execute(params![id.to_bytes(), now, by])?;
            let number: Option<i64> = connection
                .prepare_cached(
                    "UPDATE commands SET digest = ?2, changed_at = ?3, order_key = ?4
                     WHERE id = ?1 AND state = 'pending_approval' RETURNING number",
                )?
                .query_row(params![id.to_bytes(), digest.0, now, order_key], |row| {
                    row.get(0)
                })
                .optional()?;
            let Some(number) = number else {
                return Ok(false);
            };
            connection
                .prepare_cached("UPDATE proposals SET arguments = ?2 WHERE number = ?1")?
                .execute(params![number, arguments])?;
            Ok(true)
        })
    }
}
