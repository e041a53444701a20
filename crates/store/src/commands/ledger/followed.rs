//! How far the audit trail was followed into the ledger. It is kept in the change that appends what was found there, so
//! that an entry becomes one record, whatever is killed in between.

use rusqlite::OptionalExtension;

use super::super::change::{Change, View};
use super::super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE ledger_followed(
    one INTEGER PRIMARY KEY CHECK (one = 1), audit INTEGER NOT NULL
) STRICT;
";

impl View<'_> {
    /// The last entry of the audit trail that was followed; `None` where it never was.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn audit_followed(&self) -> Result<Option<u64>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT audit FROM ledger_followed")?
                .query_row([], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))
                .optional()
        })
    }
}

impl Change<'_> {
    /// The audit trail was followed up to this entry.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn follow_audit(&mut self, number: u64) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO ledger_followed VALUES (1, ?1)")?
                .execute([number.cast_signed()])
        })?;
        Ok(())
    }
}
