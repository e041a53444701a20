//! Idempotency keys: a request that comes again is answered as it was, and one that only looks like it is not.

use rusqlite::{OptionalExtension, params};
use wayhold_model::Timestamp;
use wayhold_model::command::CommandId;

use super::change::{Change, View};
use super::error::CommandsError;

/// Keys come in no order, so that each changes a page of its own of what finds them: that is an index of eight bytes of
/// each, and the rest is added at the end of the table.
pub(super) const SCHEMA: &str = "
CREATE TABLE keys(
    number INTEGER PRIMARY KEY, short INTEGER NOT NULL, key BLOB NOT NULL, fingerprint BLOB NOT NULL,
    command BLOB NOT NULL, status INTEGER NOT NULL, answer TEXT NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_short ON keys(short);
CREATE INDEX keys_at ON keys(at);
";

/// What was answered to the request that came with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// Hash of the request's content.
    pub fingerprint: [u8; 32],
    /// The command that came of it.
    pub command: CommandId,
    /// Status of the answer.
    pub status: u16,
    /// Body of the answer.
    pub answer: String,
    /// When.
    pub at: Timestamp,
}

impl View<'_> {
    /// What was answered to a key, given as the hash of its scope and itself.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn key(&self, key: &[u8; 32]) -> Result<Option<KeyRow>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT fingerprint, command, status, answer, at FROM keys WHERE short = ?1 AND key = ?2",
                )?
                .query_row(params![short(key), key], |row| {
                    Ok(KeyRow {
                        fingerprint: row.get(0)?,
                        command: CommandId::from_bytes(row.get(1)?),
                        status: row.get(2)?,
                        answer: row.get(3)?,
                        at: Timestamp::from_micros(row.get::<_, i64>(4)?.cast_unsigned()),
                    })
                })
                .optional()
        })
    }
}

impl View<'_> {
    /// Whether a key was kept before that time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_keys_before(&self, before: Timestamp) -> Result<bool, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT EXISTS (SELECT 1 FROM keys WHERE at < ?1)")?
                .query_row([before.as_micros().cast_signed()], |row| row.get(0))
        })
    }
}

impl Change<'_> {
    /// Keeps what is answered to a key, which must not be kept already.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn keep_key(
        &mut self,
        key: &[u8; 32],
        (fingerprint, command): (&[u8; 32], CommandId),
        (status, answer): (u16, &str),
    ) -> Result<(), CommandsError> {
        let at = self.now().as_micros().cast_signed();
        let kept = self.run(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO keys SELECT NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7
                     WHERE NOT EXISTS (SELECT 1 FROM keys WHERE short = ?1 AND key = ?2)",
                )?
                .execute(params![
                    short(key),
                    key,
                    fingerprint,
                    command.to_bytes(),
                    status,
                    answer,
                    at
                ])
        })?;
        match kept {
            0 => Err(CommandsError::Unfit {
                reason: "an idempotency key is kept already".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Forgets at most so many keys that were kept before that time and whose command has ended; how many it forgot.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn forget_keys(&mut self, before: Timestamp, max: u32) -> Result<usize, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "DELETE FROM keys WHERE number IN (
                         SELECT keys.number FROM keys JOIN commands ON commands.id = keys.command
                         WHERE keys.at < ?1 AND commands.ended = 1 ORDER BY keys.at LIMIT ?2)",
                )?
                .execute(params![before.as_micros().cast_signed(), max])
        })
    }
}

/// The first bytes of a key, which is a hash, as SQLite keeps integers.
fn short([a, b, c, d, e, f, g, h, ..]: &[u8; 32]) -> i64 {
    i64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
}
