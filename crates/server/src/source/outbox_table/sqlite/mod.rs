//! A table in SQLite. One process writes at a time, so rows are numbered in the order of their commits, and
//! a statement sees the file at one moment: a sweep is one statement from the front of the table. Nothing
//! is open between two statements, and rows are settled in small transactions, so that the application's
//! writers never wait for more than one of them.

mod layout;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params_from_iter};

use self::layout::Layout;
use super::cells::{self, Cell};
use super::port::{Batch, Connected, Database, End, Finding, Lag, Reader, Settler, Trouble, Waker};
use super::row::Place;
use crate::blocking::blocking;
use crate::config::OutboxTableConfig;

/// How long to wait for the application's transaction, which ends soon or is a fault of its own.
const BUSY: Duration = Duration::from_secs(5);

/// Rows that are settled in one transaction: the application waits for no more than these.
const SETTLED_AT_ONCE: usize = 500;

/// How often to look whether another connection has committed. A look reads a few bytes of shared memory.
const LOOK: Duration = Duration::from_millis(50);

/// A table in a file.
pub struct Sqlite {
    config: OutboxTableConfig,
    path: PathBuf,
}

impl Sqlite {
    /// The configured table, in the file at `path`.
    pub fn new(config: &OutboxTableConfig, path: PathBuf) -> Self {
        Self {
            config: config.clone(),
            path,
        }
    }
}

impl Database for Sqlite {
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>> {
        let (config, path) = (self.config.clone(), self.path.clone());
        async move {
            let opened = blocking(move || Opened::open(config, path)).await;
            let opened = Arc::new(opened.map_err(interrupted)??);
            Ok(Connected {
                reader: Box::new(Part(Arc::clone(&opened))),
                settler: Box::new(Part(Arc::clone(&opened))),
                waker: Box::new(Part(opened)),
            })
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>> {
        let (config, path) = (self.config.clone(), self.path.clone());
        let check = move || {
            let connection = open(&path)?;
            let (_, findings) = Layout::find(&connection, &config)?;
            Ok(findings)
        };
        async move { blocking(check).await.map_err(interrupted)? }.boxed()
    }
}

/// An open file, which the three parts share: commits of one's own connection wake nobody.
struct Opened {
    config: OutboxTableConfig,
    layout: Layout,
    connection: Mutex<Connection>,
    /// `data_version` as it was before the latest sweep.
    swept: AtomicI64,
    /// Held for as long as anything reads here.
    _lock: std::fs::File,
}

struct Part(Arc<Opened>);

impl Part {
    /// Runs something with the connection, where it may block.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Opened, &mut Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let opened = Arc::clone(&self.0);
        let work = move || work(&opened, &mut opened.connection());
        blocking(work).await.map_err(interrupted)?
    }
}

impl Reader for Part {
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>> {
        let without = without.to_vec();
        self.with(move |opened, connection| opened.sweep(connection, &without))
            .boxed()
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        // A sweep is over when its statement is.
        async { Ok(()) }.boxed()
    }
}

impl Settler for Part {
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>> {
        let places = places.to_vec();
        self.with(move |opened, connection| opened.settle(connection, &places))
            .boxed()
    }

    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>> {
        self.with(|opened, connection| opened.lag(connection))
            .boxed()
    }
}

impl Waker for Part {
    fn woken(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        async {
            loop {
                tokio::time::sleep(LOOK).await;
                let version = self.with(|_, connection| data_version(connection)).await?;
                if version != self.0.swept.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
        .boxed()
    }
}

impl Opened {
    fn open(config: OutboxTableConfig, path: PathBuf) -> Result<Self, Trouble> {
        let connection = open(&path)?;
        let (layout, findings) = Layout::find(&connection, &config)?;
        let Some(layout) = layout else {
            return Err(Trouble::Misfit(findings));
        };
        let lock = lock(&path, &config)?;
        Ok(Self {
            config,
            layout,
            connection: Mutex::new(connection),
            swept: AtomicI64::new(-1),
            _lock: lock,
        })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic leaves a connection whose transaction was rolled back.
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The first rows of the table, within the limits of a batch.
    fn sweep(&self, connection: &Connection, without: &[String]) -> Result<Batch, Trouble> {
        // Before the statement: what is committed after it shows in the next look.
        let version = data_version(connection)?;
        self.swept.store(version, Ordering::Relaxed);
        let select = self.layout.select(without.len());
        let mut statement = connection.prepare_cached(&select).map_err(trouble)?;
        let bound = params_from_iter(without);
        let mut found = statement.query(bound).map_err(trouble)?;
        let mut rows = Vec::new();
        let mut bytes = 0;
        while let Some(row) = found.next().map_err(trouble)? {
            if rows.len() == self.config.batch_rows || bytes >= self.config.batch_bytes {
                let end = End::Again;
                return Ok(Batch { rows, end });
            }
            let place = self.layout.place(row.get_ref(0).map_err(trouble)?);
            let mut values = Vec::with_capacity(self.layout.is_json.len());
            for (column, is_json) in self.layout.is_json.iter().enumerate() {
                values.push(cell(row.get_ref(column + 1).map_err(trouble)?, *is_json));
            }
            let row = cells::row(&self.config.router, place, values);
            bytes += row.size();
            rows.push(row);
        }
        let end = End::Empty;
        Ok(Batch { rows, end })
    }

    fn settle(&self, connection: &mut Connection, places: &[Place]) -> Result<(), Trouble> {
        for places in places.chunks(SETTLED_AT_ONCE) {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(trouble)?;
            {
                let settle = transaction.prepare_cached(&self.layout.settle);
                let mut settle = settle.map_err(trouble)?;
                for place in places {
                    let settled = match place {
                        Place::Number(number) => settle.execute([number]),
                        Place::Id(id) => settle.execute([id]),
                        Place::Tuple { .. } | Place::Logged { .. } => Ok(0),
                    };
                    settled.map_err(trouble)?;
                }
            }
            transaction.commit().map_err(trouble)?;
        }
        Ok(())
    }

    fn lag(&self, connection: &Connection) -> Result<Lag, Trouble> {
        let mut statement = connection
            .prepare_cached(&self.layout.lag)
            .map_err(trouble)?;
        let counted = statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)));
        let (rows, oldest): (i64, Option<f64>) = counted.map_err(trouble)?;
        let rows = rows.try_into().unwrap_or(0);
        let oldest = oldest.and_then(|age| Duration::try_from_secs_f64(age.max(0.0)).ok());
        Ok(Lag {
            rows,
            oldest,
            ..Lag::default()
        })
    }
}

fn open(path: &std::path::Path) -> Result<Connection, Trouble> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(trouble)?;
    connection.busy_timeout(BUSY).map_err(trouble)?;
    // A row is gone for good only after its event is durable; its deletion should be, too.
    connection
        .pragma_update(None, "synchronous", "FULL")
        .map_err(trouble)?;
    Ok(connection)
}

/// One reader at a time: a lock on a file beside the database's, which goes when its holder does. The
/// database's own file is opened by SQLite alone.
fn lock(path: &std::path::Path, config: &OutboxTableConfig) -> Result<std::fs::File, Trouble> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!("-wayhold-{}", layout::file_name(&config.table)));
    let unusable = |error: std::io::Error| {
        Trouble::Unreachable(format!("{}: {error}", beside.to_string_lossy()))
    };
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&beside)
        .map_err(unusable)?;
    let wanted = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    match rustix::fs::flock(&file, wanted) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Trouble::Elsewhere),
        Err(error) => Err(unusable(error.into())),
    }
}

/// Changes when another connection has committed, and only then.
fn data_version(connection: &Connection) -> Result<i64, Trouble> {
    let version = connection.pragma_query_value(None, "data_version", |row| row.get(0));
    version.map_err(trouble)
}

fn cell(value: ValueRef<'_>, is_json: bool) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Number(number.to_string()),
        ValueRef::Real(number) => match serde_json::Number::from_f64(number) {
            Some(number) => Cell::Number(number.to_string()),
            None => Cell::Text(number.to_string()),
        },
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text).into_owned();
            match is_json {
                true => Cell::Json(text),
                false => Cell::Text(text),
            }
        }
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
    }
}

fn trouble(error: rusqlite::Error) -> Trouble {
    // Its statement says nothing to a person who looks for what is wrong.
    let text = match &error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    };
    Trouble::Unreachable(text)
}

fn interrupted(error: crate::blocking::Interrupted) -> Trouble {
    Trouble::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests;
