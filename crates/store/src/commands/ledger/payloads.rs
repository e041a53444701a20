//! Payloads: what records commit to and do not hold. They lie beside the record that names them, with their salt, and can be
//! erased without any hash changing.

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use wayhold_model::OutcomeKind;
use wayhold_model::command::State;
use wayhold_model::ledger::commitment::{SALT_BYTES, commit};
use wayhold_model::ledger::{Hash, Salt};

use super::super::change::{Change, View};
use super::super::error::CommandsError;

/// A payload's place is made of the place of its record and a number beside others of that.
pub(super) const SCHEMA: &str = "
CREATE TABLE ledger_payloads(
    place INTEGER PRIMARY KEY, commitment BLOB NOT NULL, salt BLOB NOT NULL, payload BLOB NOT NULL
) STRICT;
";

/// Most payloads of one record: what a proposal and an answer bring is fewer.
pub(super) const PER_RECORD_MAX: u8 = 8;

/// Bytes that a record commits to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// What the record says in their place.
    pub commitment: Hash,
    /// Deleted with them.
    pub salt: Salt,
    /// The bytes; JSON in canonical form.
    pub bytes: Vec<u8>,
}

impl Payload {
    /// Commits to bytes.
    pub fn new(salt: Salt, bytes: Vec<u8>) -> Self {
        Self {
            commitment: commit(&salt, &bytes),
            salt,
            bytes,
        }
    }

    /// What the body of the record that it is appended with says of it, and no other record.
    pub fn reference(&self) -> Value {
        json!({ "bytes": self.bytes.len(), "commit": self.commitment.to_string() })
    }
}

/// What became of an erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erasing {
    /// It is gone.
    Erased,
    /// The record holds no such payload.
    NotHeld,
    /// Nothing was done: its command may still be sent, and needs what it says.
    NotEnded(State),
}

/// A salt that nobody can guess.
///
/// # Errors
/// The system gives no randomness.
pub fn random_salt() -> std::io::Result<Salt> {
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt)?;
    Ok(Salt(salt))
}

impl View<'_> {
    /// The payloads of a record that are held.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn payloads(&self, idx: u64) -> Result<Vec<Payload>, CommandsError> {
        self.run(|connection| {
            connection
                .prepare_cached(
                    "SELECT commitment, salt, payload FROM ledger_payloads WHERE place >= ?1 AND place < ?2",
                )?
                .query_map([place(idx), end(idx)], |row| {
                    Ok(Payload {
                        commitment: Hash(row.get(0)?),
                        salt: Salt(row.get(1)?),
                        bytes: row.get(2)?,
                    })
                })?
                .collect()
        })
    }
}

impl Change<'_> {
    /// Deletes a payload and its salt, and what the command of its record has of it besides. The caller appends
    /// `redaction.applied` in the same change, with the commitment as `erased`: without it an export lacks the payload
    /// and cannot say why.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn erase(&mut self, idx: u64, commitment: Hash) -> Result<Erasing, CommandsError> {
        let mut held = self.payloads(idx)?.into_iter();
        let Some(payload) = held.find(|held| held.commitment == commitment) else {
            return Ok(Erasing::NotHeld);
        };
        let record = self.records(idx, 1)?.into_iter().next();
        let record: Value = record
            .and_then(|row| serde_json::from_slice(&row.record).ok())
            .unwrap_or_default();
        let said = |at: &str| record.pointer(at).and_then(Value::as_str);
        let stream = said("/stream").and_then(|stream| stream.strip_prefix("cmd:"));
        let command = match stream.and_then(|id| id.parse().ok()) {
            Some(id) => self.command(id)?,
            None => None,
        };
        if let Some(command) = command.as_ref().filter(|command| !command.state.is_ended()) {
            return Ok(Erasing::NotEnded(command.state));
        }
        self.has_erased = true;
        // What is deleted is overwritten, so that it is not found in a free page.
        self.run(|connection| connection.pragma_update(None, "secure_delete", true))?;
        if let (Some(command), Ok(text)) = (command, std::str::from_utf8(&payload.bytes)) {
            let is_answer = said("/type") == Some("attempt.finished")
                && said("/body/outcome") == Some(OutcomeKind::Delivered.name());
            self.forget(command.new.id, text, is_answer)?;
        }
        self.run(|connection| {
            connection
                .prepare_cached(
                    "DELETE FROM ledger_payloads WHERE place >= ?1 AND place < ?2 AND commitment = ?3",
                )?
                .execute(params![place(idx), end(idx), commitment.0])?;
            connection.pragma_update(None, "secure_delete", false)
        })?;
        Ok(Erasing::Erased)
    }
}

/// The place of the first payload of a record.
pub(super) fn place(idx: u64) -> i64 {
    let place = idx.saturating_mul(u64::from(PER_RECORD_MAX));
    i64::try_from(place).unwrap_or(i64::MAX)
}

/// Behind the place of its last.
fn end(idx: u64) -> i64 {
    place(idx).saturating_add(i64::from(PER_RECORD_MAX))
}

/// Holds the payloads of a record, each once; the caller has seen to it that they are no more than `PER_RECORD_MAX`.
pub(super) fn hold(
    connection: &Connection,
    idx: u64,
    payloads: &[Payload],
) -> rusqlite::Result<()> {
    let is_before = |number: usize, payload: &Payload| {
        let mut before = payloads.iter().take(number);
        before.any(|held| held.commitment == payload.commitment)
    };
    for (place, (number, payload)) in (place(idx)..).zip(payloads.iter().enumerate()) {
        if is_before(number, payload) {
            continue;
        }
        connection
            .prepare_cached("INSERT INTO ledger_payloads VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                place,
                payload.commitment.0,
                payload.salt.0,
                payload.bytes
            ])?;
    }
    Ok(())
}
