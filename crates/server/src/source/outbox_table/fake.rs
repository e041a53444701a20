//! A table in memory whose database can be made to fail: what the runner is tried with.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::port::{Batch, Connected, Database, End, Finding, Lag, Reader, Settler, Trouble, Waker};
use super::row::{Payload, Place, Row};

/// A table, and how its database behaves.
#[derive(Default)]
pub(super) struct Fake {
    rows: Mutex<Vec<Row>>,
    locked: AtomicBool,
    wake: Notify,
    /// Rows from this place on belong to transactions that are open.
    pub(super) open_from: AtomicUsize,
    /// So many calls of the reader go well, then one finds the connection lost; 0 for ever.
    pub(super) breaks_after: AtomicUsize,
    /// Whether the next settling is lost.
    pub(super) loses_settling: AtomicBool,
    /// Times that it was connected to.
    pub(super) connected: AtomicUsize,
}

/// A row with this number, key and type.
pub(super) fn row(number: i64, key: &str, kind: &str) -> Row {
    Row {
        place: Place::Number(number),
        id: Some(format!("e{number}")),
        route: Some("order".to_owned()),
        key: Some(key.to_owned()),
        kind: Some(kind.to_owned()),
        payload: Payload::Json(format!("{{\"n\":{number}}}")),
        timestamp: None,
        schema_version: None,
        additional: Vec::new(),
    }
}

impl Fake {
    pub(super) fn new() -> Arc<Self> {
        let fake = Self::default();
        fake.open_from.store(usize::MAX, Ordering::Relaxed);
        Arc::new(fake)
    }

    /// Commits rows.
    pub(super) fn insert(&self, rows: impl IntoIterator<Item = Row>) {
        self.rows.lock().unwrap().extend(rows);
        self.wake.notify_one();
    }

    /// Changes a row where it lies.
    pub(super) fn mend(&self, number: i64, kind: &str) {
        let mut rows = self.rows.lock().unwrap();
        let found = rows
            .iter_mut()
            .find(|row| row.place == Place::Number(number));
        found.unwrap().kind = Some(kind.to_owned());
    }

    /// Ids of the rows that are left.
    pub(super) fn left(&self) -> Vec<String> {
        let rows = self.rows.lock().unwrap();
        rows.iter().filter_map(|row| row.id.clone()).collect()
    }
}

/// Rows of a batch.
const BATCH: usize = 3;

struct Side {
    fake: Arc<Fake>,
    sweep: Option<Vec<Row>>,
    locks: bool,
}

impl Drop for Side {
    fn drop(&mut self) {
        if self.locks {
            self.fake.locked.store(false, Ordering::Relaxed);
        }
    }
}

/// The database of a fake table.
pub(super) struct FakeDatabase(pub(super) Arc<Fake>);

impl Database for FakeDatabase {
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>> {
        Box::pin(async {
            if self.0.locked.swap(true, Ordering::Relaxed) {
                return Err(Trouble::Elsewhere);
            }
            self.0.connected.fetch_add(1, Ordering::Relaxed);
            let side = |locks| Side {
                fake: Arc::clone(&self.0),
                sweep: None,
                locks,
            };
            Ok(Connected {
                reader: Box::new(side(true)),
                settler: Box::new(side(false)),
                waker: Box::new(side(false)),
            })
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

impl Side {
    fn read(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        let breaks = &self.fake.breaks_after;
        if breaks.load(Ordering::Relaxed) > 0 && breaks.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(Trouble::Unreachable("the link is cut".to_owned()));
        }
        let open = self.fake.open_from.load(Ordering::Relaxed);
        let sweep = self.sweep.take().unwrap_or_else(|| {
            let rows = self.fake.rows.lock().unwrap();
            let waits = |row: &&Row| {
                let key = row.key.as_ref();
                key.is_none_or(|key| !without.contains(key))
            };
            rows.iter().filter(waits).cloned().collect()
        });
        let is_open = |row: &Row| matches!(row.place, Place::Number(n) if usize::try_from(n).is_ok_and(|n| n >= open));
        let mut rows: Vec<_> = sweep.iter().take(BATCH).cloned().collect();
        let rest: Vec<_> = sweep.iter().skip(BATCH).cloned().collect();
        let mut end = match rest.is_empty() {
            true => End::Empty,
            false => End::More,
        };
        if let Some(first) = rows.iter().position(is_open) {
            rows.truncate(first);
            end = End::Open;
        }
        self.sweep = (end == End::More).then_some(rest);
        Ok(Batch { rows, end })
    }
}

impl Reader for Side {
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>> {
        Box::pin(async move { self.read(without) })
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        self.sweep = None;
        Box::pin(async { Ok(()) })
    }
}

impl Settler for Side {
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(async move {
            if self.fake.loses_settling.swap(false, Ordering::Relaxed) {
                return Err(Trouble::Unreachable("the link is cut".to_owned()));
            }
            let mut rows = self.fake.rows.lock().unwrap();
            rows.retain(|row| !places.contains(&row.place));
            Ok(())
        })
    }

    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>> {
        let rows = self.fake.rows.lock().unwrap().len() as u64;
        Box::pin(async move {
            Ok(Lag {
                rows,
                ..Lag::default()
            })
        })
    }
}

impl Waker for Side {
    fn woken(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(async {
            self.fake.wake.notified().await;
            Ok(())
        })
    }
}
