//! The ledger's public keys, and the newest checkpoint that one of them signed.

use rusqlite::{OptionalExtension, params};
use wayhold_model::Timestamp;

use super::super::change::{Change, View};
use super::super::error::CommandsError;

pub(super) const SCHEMA: &str = "
CREATE TABLE ledger_keys(
    number INTEGER PRIMARY KEY, verifier TEXT NOT NULL UNIQUE, retired INTEGER NOT NULL
) STRICT;
CREATE TABLE ledger_checkpoint(
    one INTEGER PRIMARY KEY CHECK (one = 1), size INTEGER NOT NULL, at INTEGER NOT NULL, note TEXT NOT NULL
) STRICT;
";

/// A public key of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOfLedger {
    /// As verifiers know it.
    pub verifier: String,
    /// Whether it signs no more.
    pub is_retired: bool,
}

impl View<'_> {
    /// Every key that ever signed, the oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ledger_keys(&self) -> Result<Vec<KeyOfLedger>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT verifier, retired FROM ledger_keys ORDER BY number")?
                .query_map([], |row| {
                    Ok(KeyOfLedger {
                        verifier: row.get(0)?,
                        is_retired: row.get(1)?,
                    })
                })?
                .collect()
        })
    }

    /// The newest signed checkpoint: the size that it covers, when it was signed, and its text.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn checkpoint(&self) -> Result<Option<(u64, Timestamp, String)>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT size, at, note FROM ledger_checkpoint")?
                .query_row([], |row| {
                    Ok((
                        row.get::<_, i64>(0)?.cast_unsigned(),
                        Timestamp::from_micros(row.get::<_, i64>(1)?.cast_unsigned()),
                        row.get(2)?,
                    ))
                })
                .optional()
        })
    }
}

impl Change<'_> {
    /// Knows a key from now on; the caller appends `key.added` in the same change.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn add_ledger_key(&mut self, verifier: &str) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("INSERT INTO ledger_keys(verifier, retired) VALUES (?1, 0)")?
                .execute([verifier])
        })?;
        Ok(())
    }

    /// A key signs no more; the caller appends `key.retired` in the same change.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn retire_ledger_key(&mut self, verifier: &str) -> Result<(), CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("UPDATE ledger_keys SET retired = 1 WHERE verifier = ?1")?
                .execute([verifier])
        })?;
        Ok(())
    }

    /// Keeps a signed checkpoint in the place of the one before.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn keep_checkpoint(&mut self, size: u64, note: &str) -> Result<(), CommandsError> {
        let at = self.now().as_micros().cast_signed();
        self.run(|connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO ledger_checkpoint VALUES (1, ?1, ?2, ?3)")?
                .execute(params![size.cast_signed(), at, note])
        })?;
        Ok(())
    }
}
