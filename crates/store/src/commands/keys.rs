//! Idempotency keys: a request that comes again is answered as it was, and one that only looks like it is not.
//!
//! Keys are hashes and come in no order, so that an index of them would have each written to a page of its own. They are
//! added at the end of their table, and what finds them, eight bytes of each, is sorted into its place by thousands
//! (`newest`).

mod newest;

use rusqlite::{OptionalExtension, params};
use wayhold_model::Timestamp;
use wayhold_model::command::CommandId;

use super::change::{Change, View};
use super::error::CommandsError;
pub(super) use newest::{NewestKeys, Sorted};

pub(super) const SCHEMA: &str = "
CREATE TABLE keys(
    number INTEGER PRIMARY KEY, key BLOB NOT NULL, fingerprint BLOB NOT NULL, command BLOB NOT NULL,
    status INTEGER NOT NULL, answer TEXT NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE TABLE keys_sorted(
    short INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY(short, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE keys_sorted_to(one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL) STRICT;
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
    /// Which of the next `max` keys, from after a number on, were kept before a time and have a command that has ended; and
    /// where to look on, `None` where younger ones follow. One that seems to be kept after `now`, by a clock that was
    /// wrong, counts as old.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn keys_to_forget(
        &self,
        (before, now): (Timestamp, Timestamp),
        after: u64,
        max: u32,
    ) -> Result<(Vec<u64>, Option<u64>), CommandsError> {
        let young = before..=now;
        let mut ended = Vec::new();
        let mut seen = 0;
        let mut next = None;
        self.run(|connection| {
            let mut rows = connection.prepare_cached(
                "SELECT keys.number, keys.at, coalesce(commands.ended, 1)
                 FROM keys LEFT JOIN commands ON commands.id = keys.command
                 WHERE keys.number > ?1 ORDER BY keys.number LIMIT ?2",
            )?;
            let mut rows = rows.query(params![after.cast_signed(), max])?;
            while let Some(row) = rows.next()? {
                let number = row.get::<_, i64>(0)?.cast_unsigned();
                let at = Timestamp::from_micros(row.get::<_, i64>(1)?.cast_unsigned());
                if young.contains(&at) {
                    return Ok(());
                }
                if row.get(2)? {
                    ended.push(number);
                }
                seen += 1;
                next = Some(number);
            }
            Ok(())
        })?;
        Ok((ended, next.filter(|_| seen == max)))
    }
}

impl Change<'_> {
    /// What was answered to a key, given as the hash of its scope and itself.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn key(&mut self, key: &[u8; 32]) -> Result<Option<KeyRow>, CommandsError> {
        let short = short(key);
        let own = self.new_keys.of(short);
        let newest = self.known_keys.iter().flat_map(|known| known.of(short));
        let numbers: Vec<i64> = own.chain(newest).collect();
        let found = self.run(|connection| {
            for number in numbers {
                let found = connection
                    .prepare_cached(
                        "SELECT fingerprint, command, status, answer, at FROM keys
                         WHERE number = ?1 AND key = ?2",
                    )?
                    .query_row(params![number, key], key_row)
                    .optional()?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            connection
                .prepare_cached(
                    "SELECT fingerprint, command, status, answer, at FROM keys_sorted JOIN keys USING (number)
                     WHERE short = ?1 AND key = ?2",
                )?
                .query_row(params![short, key], key_row)
                .optional()
        })?;
        self.free_key = found.is_none().then_some(*key);
        Ok(found)
    }

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
        if self.free_key != Some(*key) && self.key(key)?.is_some() {
            return Err(CommandsError::Unfit {
                reason: "an idempotency key is kept already".to_owned(),
            });
        }
        let at = self.now().as_micros().cast_signed();
        let number = self.new_keys.next_number();
        self.run(|connection| {
            connection
                .prepare_cached("INSERT INTO keys VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
                .execute(params![
                    number,
                    key,
                    fingerprint,
                    command.to_bytes(),
                    status,
                    answer,
                    at
                ])
        })?;
        self.free_key = None;
        self.new_keys.add((short(key), number));
        Ok(())
    }

    /// Forgets keys by their numbers.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn forget_keys(&mut self, numbers: &[u64]) -> Result<(), CommandsError> {
        self.run(|connection| {
            let mut forget =
                connection.prepare_cached("DELETE FROM keys WHERE number = ?1 RETURNING key")?;
            let mut unsort = connection
                .prepare_cached("DELETE FROM keys_sorted WHERE short = ?1 AND number = ?2")?;
            for number in numbers {
                let number = number.cast_signed();
                let key = forget.query_row([number], |row| row.get(0)).optional()?;
                if let Some(key) = key {
                    unsort.execute(params![short(&key), number])?;
                }
            }
            Ok(())
        })
    }
}

fn key_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        fingerprint: row.get(0)?,
        command: CommandId::from_bytes(row.get(1)?),
        status: row.get(2)?,
        answer: row.get(3)?,
        at: Timestamp::from_micros(row.get::<_, i64>(4)?.cast_unsigned()),
    })
}

/// The first bytes of a key, which is a hash, as SQLite keeps integers.
fn short([a, b, c, d, e, f, g, h, ..]: &[u8; 32]) -> i64 {
    i64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
}

#[cfg(test)]
mod tests;
