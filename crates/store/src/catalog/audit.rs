//! The audit trail: who did what, to what, when and why. It only grows.

use rusqlite::{Connection, params};

use crate::catalog::AuditEntry;
use crate::catalog::file::{Catalog, CatalogError, Change, timestamp};

impl Catalog {
    /// Records an action that is about to be done elsewhere, durably; returns its number. A crash in
    /// between leaves an entry of something that was not done, which is better than the reverse.
    ///
    /// # Errors
    /// When it could not be recorded: then do not act.
    pub fn audit(
        &self,
        by: &str,
        action: &str,
        subject: &str,
        reason: Option<&str>,
    ) -> Result<u64, CatalogError> {
        self.change(|change| Ok(append(change, by, action, subject, reason)?))
    }

    /// Entries with a number below `before` (or the newest), newest first. Blocking.
    ///
    /// # Errors
    /// `Unusable` when the file cannot be read.
    pub fn audit_trail(
        &self,
        before: Option<u64>,
        max: usize,
    ) -> Result<Vec<AuditEntry>, CatalogError> {
        let before = before.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let newest_first = "number < ?1 ORDER BY number DESC";
        self.read(|connection| select(connection, newest_first, before, max))
    }

    /// Entries with a number above `after`, oldest first. Blocking.
    ///
    /// # Errors
    /// `Unusable` when the file cannot be read.
    pub fn audit_after(&self, after: u64, max: usize) -> Result<Vec<AuditEntry>, CatalogError> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        self.read(|connection| select(connection, "number > ?1 ORDER BY number", after, max))
    }
}

/// At most `max` entries on one side of a number.
fn select(
    connection: &Connection,
    side: &str,
    number: i64,
    max: usize,
) -> rusqlite::Result<Vec<AuditEntry>> {
    let columns = "number, at, by, action, subject, reason";
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    connection
        .prepare_cached(&format!(
            "SELECT {columns} FROM audit WHERE {side} LIMIT ?2"
        ))?
        .query_map(params![number, max], |row| {
            Ok(AuditEntry {
                number: row.get::<_, i64>(0)?.cast_unsigned(),
                at: timestamp(row.get(1)?),
                by: row.get(2)?,
                action: row.get(3)?,
                subject: row.get(4)?,
                reason: row.get(5)?,
            })
        })?
        .collect()
}

/// Adds an entry to a change, so that the two are durable together.
pub(super) fn append(
    change: &Change<'_>,
    by: &str,
    action: &str,
    subject: &str,
    reason: Option<&str>,
) -> rusqlite::Result<u64> {
    change.transaction.execute(
        "INSERT INTO audit(at, by, action, subject, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            change.now.as_micros().cast_signed(),
            by,
            action,
            subject,
            reason
        ],
    )?;
    Ok(change.transaction.last_insert_rowid().cast_unsigned())
}
