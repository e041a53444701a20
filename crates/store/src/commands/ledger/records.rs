//! Records: appended within a change, read by place and by stream.

use rusqlite::{Connection, OptionalExtension, Row, params};
use wayhold_model::Timestamp;
use wayhold_model::ledger::{Draft, Hash, Place};

use super::super::change::{Change, View};
use super::super::error::CommandsError;
use super::payloads::{self, Payload};
use super::{retention, tree};

pub(super) const SCHEMA: &str = "
CREATE TABLE ledger(
    idx INTEGER PRIMARY KEY, stream TEXT NOT NULL, sseq INTEGER NOT NULL, at INTEGER NOT NULL,
    leaf BLOB NOT NULL, record BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX ledger_by_stream ON ledger(stream, sseq);
";

/// A record of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRow {
    /// Its place in the tree.
    pub idx: u64,
    /// When it was written.
    pub at: Timestamp,
    /// Its leaf hash.
    pub leaf: Hash,
    /// The record in canonical form.
    pub record: Vec<u8>,
}

const COLUMNS: &str = "idx, at, leaf, record";

fn read(row: &Row<'_>) -> rusqlite::Result<RecordRow> {
    Ok(RecordRow {
        idx: row.get::<_, i64>(0)?.cast_unsigned(),
        at: Timestamp::from_micros(row.get::<_, i64>(1)?.cast_unsigned()),
        leaf: Hash(row.get(2)?),
        record: row.get(3)?,
    })
}

impl View<'_> {
    /// Number of records that were ever written, which is the size of the tree.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ledger_size(&self) -> Result<u64, CommandsError> {
        self.run(size)
    }

    /// The first record that is still held; the ledger's size where there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn first_record(&self) -> Result<u64, CommandsError> {
        self.run(|connection| {
            let first: Option<i64> =
                connection.query_row("SELECT min(idx) FROM ledger", [], |row| row.get(0))?;
            Ok(first.unwrap_or(0).cast_unsigned())
        })
    }

    /// At most so many records, in order, from that place on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn records(&self, from: u64, max: u32) -> Result<Vec<RecordRow>, CommandsError> {
        self.run(|connection| {
            let query =
                format!("SELECT {COLUMNS} FROM ledger WHERE idx >= ?1 ORDER BY idx LIMIT ?2");
            connection
                .prepare_cached(&query)?
                .query_map(params![from.cast_signed(), max], read)?
                .collect()
        })
    }

    /// At most so many records of a stream, in order, from that place in the stream on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn records_of(
        &self,
        stream: &str,
        from: u64,
        max: u32,
    ) -> Result<Vec<RecordRow>, CommandsError> {
        self.run(|connection| {
            let query = format!(
                "SELECT {COLUMNS} FROM ledger WHERE stream = ?1 AND sseq >= ?2 ORDER BY sseq LIMIT ?3"
            );
            connection
                .prepare_cached(&query)?
                .query_map(params![stream, from.cast_signed(), max], read)?
                .collect()
        })
    }

    /// The last record of a stream that is still held.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last_record_of(&self, stream: &str) -> Result<Option<RecordRow>, CommandsError> {
        self.run(|connection| {
            let query = format!(
                "SELECT {COLUMNS} FROM ledger WHERE stream = ?1 ORDER BY sseq DESC LIMIT 1"
            );
            connection
                .prepare_cached(&query)?
                .query_row([stream], read)
                .optional()
        })
    }
}

impl Change<'_> {
    /// Writes a record, in this change; its place in the tree.
    ///
    /// # Errors
    /// The file takes no change.
    pub fn append(&mut self, draft: &Draft) -> Result<u64, CommandsError> {
        self.append_with(draft, &[])
    }

    /// Writes a record and holds the payloads that its body names, each by [`Payload::reference`].
    ///
    /// # Errors
    /// The file takes no change.
    pub fn append_with(&mut self, draft: &Draft, held: &[Payload]) -> Result<u64, CommandsError> {
        let next = match &self.last_stream {
            Some((stream, next)) if stream == draft.stream() => *next,
            _ => self.run(|connection| next_of_stream(connection, draft.stream()))?,
        };
        self.append_at(next, draft, held)
    }

    /// The same for the first record of a stream that is known to have none, which is not looked for.
    ///
    /// # Errors
    /// The stream has records, or the file takes no change.
    pub fn append_first(&mut self, draft: &Draft, held: &[Payload]) -> Result<u64, CommandsError> {
        self.append_at((0, Hash::ZERO), draft, held)
    }

    fn append_at(
        &mut self,
        (sseq, prev): (u64, Hash),
        draft: &Draft,
        held: &[Payload],
    ) -> Result<u64, CommandsError> {
        if held.len() > usize::from(payloads::PER_RECORD_MAX) {
            return Err(CommandsError::Unfit {
                reason: format!(
                    "a record holds {} payloads at most",
                    payloads::PER_RECORD_MAX
                ),
            });
        }
        let (idx, at) = (self.tree.size(), self.now());
        let leaf = self.run(|connection| {
            let place = Place {
                idx,
                sseq,
                prev,
                ts: at,
            };
            let (record, leaf) = draft.seal(&place);
            connection
                .prepare_cached("INSERT INTO ledger VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![
                    idx.cast_signed(),
                    draft.stream(),
                    sseq.cast_signed(),
                    at.as_micros().cast_signed(),
                    leaf.0,
                    record
                ])?;
            payloads::hold(connection, idx, held)?;
            Ok(leaf)
        })?;
        self.tree.push(leaf);
        let size = self.tree.size();
        self.run(|connection| tree::complete(connection, size))?;
        self.last_stream = Some((draft.stream().to_owned(), (sseq + 1, leaf)));
        Ok(idx)
    }
}

/// Place in its stream and `prev` of a stream's next record.
fn next_of_stream(connection: &Connection, stream: &str) -> rusqlite::Result<(u64, Hash)> {
    let last = connection
        .prepare_cached(
            "SELECT sseq, leaf FROM ledger WHERE stream = ?1 ORDER BY sseq DESC LIMIT 1",
        )?
        .query_row([stream], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), Hash(row.get(1)?)))
        })
        .optional()?;
    let last = match last {
        Some(last) => Some(last),
        None => retention::last_removed(connection, stream)?,
    };
    Ok(last.map_or((0, Hash::ZERO), |(sseq, leaf)| (sseq + 1, leaf)))
}

pub(super) fn size(connection: &Connection) -> rusqlite::Result<u64> {
    let last: Option<i64> =
        connection.query_row("SELECT max(idx) FROM ledger", [], |row| row.get(0))?;
    Ok(last.map_or(0, |last| last.cast_unsigned() + 1))
}
