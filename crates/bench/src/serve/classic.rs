//! The classic outbox, as it is published and widely rebuilt: fifty SQLite files, a mutex each, one
//! synced INSERT for every event and one synced DELETE for every acknowledgement. `auto_vacuum=FULL`
//! and `journal_size_limit=0` keep the files small, as that design does.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, params};
use wayhold_model::{Event, hash};
use wayhold_store::NewEvent;

/// Files of the outbox.
const FILES: usize = 50;
/// Rows that a poller reads at once; each is still deleted by its own transaction.
const POLL_ROWS: u32 = 100;

/// Fifty outbox tables.
pub struct Outbox {
    files: Vec<Mutex<Connection>>,
}

impl Outbox {
    /// Opens or makes the files in `dir`.
    pub fn open(dir: &Path) -> rusqlite::Result<Self> {
        let files = (0..FILES)
            .map(|number| open(&dir.join(format!("outbox-{number:02}.db"))).map(Mutex::new))
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self { files })
    }

    /// Stores one event, synced, in the file that its `hash` chooses; tells file and row. Blocking.
    pub fn insert(&self, hash: u64, event: &Event) -> rusqlite::Result<(usize, i64)> {
        let number = usize::try_from(hash % FILES as u64).unwrap_or_default();
        let file = self.file(number);
        file.prepare_cached(
            "INSERT INTO outbox (id, source, type, ordering_key, payload) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            event.id(),
            event.source(),
            event.kind(),
            event.key(),
            event.data().as_ref()
        ])?;
        Ok((number, file.last_insert_rowid()))
    }

    /// Stores events one by one, each synced, in the files that their ids choose. Blocking.
    pub fn insert_all(&self, events: &[NewEvent]) -> rusqlite::Result<Vec<(usize, i64)>> {
        let insert = |new: &NewEvent| {
            let event = &new.event;
            self.insert(hash::checksum(event.id().as_bytes(), 0), event)
        };
        events.iter().map(insert).collect()
    }

    /// Reads the oldest rows of one file and acknowledges each of them; tells how many. Blocking.
    pub fn acknowledge_some(&self, number: usize) -> rusqlite::Result<usize> {
        let rows: Vec<(i64, Vec<u8>)> = {
            let file = self.file(number);
            let mut oldest =
                file.prepare_cached("SELECT row, payload FROM outbox ORDER BY row LIMIT ?1")?;
            oldest
                .query_map(params![POLL_ROWS], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?
        };
        for (row, _) in &rows {
            self.file(number)
                .prepare_cached("DELETE FROM outbox WHERE row = ?1")?
                .execute(params![row])?;
        }
        Ok(rows.len())
    }

    /// Acknowledges everything with one poller per file; tells how many rows there were. Blocking.
    pub fn drain(&self) -> rusqlite::Result<usize> {
        std::thread::scope(|scope| {
            let pollers: Vec<_> = (0..FILES)
                .map(|number| scope.spawn(move || self.drain_file(number)))
                .collect();
            pollers
                .into_iter()
                .map(|poller| poller.join().unwrap_or(Err(rusqlite::Error::InvalidQuery)))
                .sum()
        })
    }

    fn drain_file(&self, number: usize) -> rusqlite::Result<usize> {
        let mut drained = 0;
        loop {
            match self.acknowledge_some(number)? {
                0 => return Ok(drained),
                rows => drained += rows,
            }
        }
    }

    fn file(&self, number: usize) -> std::sync::MutexGuard<'_, Connection> {
        #[expect(
            clippy::indexing_slicing,
            reason = "below FILES, and there are FILES of them"
        )]
        self.files[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let file = Connection::open(path)?;
    // The page layout is fixed with the first table, so auto_vacuum comes first.
    file.execute_batch(
        "PRAGMA auto_vacuum = FULL;
         PRAGMA journal_mode = WAL;
         PRAGMA journal_size_limit = 0;
         PRAGMA synchronous = FULL;
         CREATE TABLE IF NOT EXISTS outbox (
             row INTEGER PRIMARY KEY, id TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL,
             ordering_key TEXT, payload BLOB NOT NULL
         );",
    )?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use wayhold_model::EventParts;

    use super::*;

    #[test]
    fn what_is_stored_is_there_until_it_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let parts = EventParts {
            id: "1",
            source: "/s",
            kind: "t",
            ..EventParts::default()
        };
        let event = Event::new(&parts).unwrap();
        let outbox = Outbox::open(dir.path()).unwrap();
        for hash in 0..120 {
            outbox.insert(hash, &event).unwrap();
        }
        drop(outbox);
        let outbox = Outbox::open(dir.path()).unwrap();
        assert_eq!(outbox.drain().unwrap(), 120);
        assert_eq!(outbox.drain().unwrap(), 0);
    }
}
