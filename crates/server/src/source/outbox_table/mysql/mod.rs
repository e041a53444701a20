//! A table in MySQL or MariaDB (InnoDB). The rule by which no committed row is passed over:
//!
//! - **No last id.** Every sweep begins at the front of the table; a row leaves only by being settled. What an
//!   open transaction has written is not seen, and is found by a later sweep wherever it lies.
//! - **A sweep is one plain `SELECT`** in READ COMMITTED: a consistent read of what is committed when it begins,
//!   which takes no lock, so that nobody who writes waits for it. A locking read (`FOR UPDATE SKIP LOCKED`) would
//!   not do: it reads each row as it is when the scan comes by, and would take the later of two
//!   transactions without the earlier.
//! - **A second look.** A consistent read of MariaDB collects the open transactions one by one, and may miss one
//!   that ends meanwhile while it sees another that waited for it. So a second read, begun after the first
//!   ended, looks for rows between those of the first; what lies behind one of them in its aggregate
//!   waits for the next sweep. What had ended before something in the first read began is certainly in the second.
//! - **Durable before it is taken.** Without a binary log InnoDB shows a transaction to others before its log is
//!   synced, and a crash may undo it then. Nothing is handed over before the log is synced as far as it was
//!   written when the rows had been read (`durable`).
//! - **One reader**, by `GET_LOCK` on the connection that reads: losing it ends the reading.

mod durable;
mod layout;
mod sweep;

use std::str::FromStr as _;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending};
use sha2::{Digest as _, Sha256};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, MySqlConnection};

use self::durable::Durability;
use self::layout::Layout;
use self::sweep::Sweep;
use super::port::{Connected, Database, Finding, Lag, Settler, Trouble, Waker};
use super::row::Place;
use crate::config::OutboxTableConfig;

/// Rows that one statement settles: a short one, so that its locks and its share of the log are small.
const SETTLED_AT_ONCE: usize = 1_000;

/// Longest name of a lock.
const LOCK_NAME_CHARS: usize = 64;

/// A table in a server.
pub struct Mysql {
    config: OutboxTableConfig,
    url: String,
}

impl Mysql {
    /// The configured table, in the database at `url`, which may hold a password.
    pub fn new(config: &OutboxTableConfig, url: &str) -> Self {
        Self {
            config: config.clone(),
            url: url.to_owned(),
        }
    }

    async fn open(&self) -> Result<MySqlConnection, Trouble> {
        // The error of a URL might show it.
        let options = MySqlConnectOptions::from_str(&self.url)
            .map_err(|_| Trouble::Unreachable("the url is none of MySQL's".to_owned()))?
            .disable_statement_logging();
        let mut connection = options.connect().await.map_err(trouble)?;
        // Whatever the server's default is.
        let level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        run(&mut connection, level).await?;
        Ok(connection)
    }
}

impl Database for Mysql {
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>> {
        async {
            let mut connection = self.open().await?;
            let (layout, findings) = Layout::find(&mut connection, &self.config).await?;
            let Some(layout) = layout else {
                return Err(Trouble::Misfit(findings));
            };
            take_lock(&mut connection, &layout).await?;
            let durability = Durability::of(&mut connection).await?;
            let settler = Settling {
                connection: self.open().await?,
                layout: layout.clone(),
            };
            let sweep = Sweep::new(&self.config, connection, layout, durability);
            Ok(Connected {
                reader: Box::new(sweep),
                settler: Box::new(settler),
                waker: Box::new(Never),
            })
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>> {
        async {
            let mut connection = self.open().await?;
            let (layout, mut findings) = Layout::find(&mut connection, &self.config).await?;
            if let Some(layout) = layout {
                findings.extend(layout.privileges(&mut connection).await?);
            }
            let durability = Durability::of(&mut connection).await?;
            findings.extend(durability.findings(&mut connection).await?);
            Ok(findings)
        }
        .boxed()
    }
}

/// Takes the lock under which this table is read, for as long as the connection is there.
async fn take_lock(connection: &mut MySqlConnection, layout: &Layout) -> Result<(), Trouble> {
    let mut name = format!("wayhold.{}", layout.full_name);
    if name.chars().count() > LOCK_NAME_CHARS {
        let digest = Sha256::digest(layout.full_name.as_bytes());
        let digest: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        name = format!("wayhold.{digest}");
    }
    let taken: Option<i64> = sqlx::query_scalar("SELECT CAST(GET_LOCK(?, 0) AS SIGNED)")
        .bind(name)
        .fetch_one(connection)
        .await
        .map_err(trouble)?;
    match taken {
        Some(1) => Ok(()),
        Some(_) => Err(Trouble::Elsewhere),
        None => Err(Trouble::Unreachable("GET_LOCK failed".to_owned())),
    }
}

struct Settling {
    connection: MySqlConnection,
    layout: Layout,
}

impl Settler for Settling {
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>> {
        async move {
            for places in places.chunks(SETTLED_AT_ONCE) {
                let statement = self.layout.settle(places.len());
                let mut query = sqlx::query(AssertSqlSafe(statement));
                for place in places {
                    query = match place {
                        Place::Number(number) => query.bind(*number),
                        Place::Id(id) => query.bind(id.as_str()),
                        Place::Tuple { .. } | Place::Logged { .. } => query.bind(None::<i64>),
                    };
                }
                query.execute(&mut self.connection).await.map_err(trouble)?;
            }
            Ok(())
        }
        .boxed()
    }

    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>> {
        async {
            let count = AssertSqlSafe(self.layout.lag());
            let (rows, oldest): (i64, Option<i64>) = sqlx::query_as(count)
                .fetch_one(&mut self.connection)
                .await
                .map_err(trouble)?;
            let oldest = oldest.map(|age| Duration::from_micros(age.try_into().unwrap_or(0)));
            let rows = rows.try_into().unwrap_or(0);
            Ok(Lag {
                rows,
                oldest,
                ..Lag::default()
            })
        }
        .boxed()
    }
}

/// MySQL tells nobody of a commit; the table is asked again after `poll_interval`.
struct Never;

impl Waker for Never {
    fn woken(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        pending().boxed()
    }
}

/// Runs a statement that brings nothing, in the protocol that takes every statement.
async fn run(connection: &mut MySqlConnection, statement: &'static str) -> Result<(), Trouble> {
    let done = sqlx::raw_sql(statement).execute(connection).await;
    done.map(|_| ()).map_err(trouble)
}

fn trouble(error: sqlx::Error) -> Trouble {
    Trouble::Unreachable(match &error {
        // What the server says, with its code; never the URL.
        sqlx::Error::Database(said) => match said.code() {
            Some(code) => format!("{} ({code})", said.message()),
            None => said.message().to_owned(),
        },
        sqlx::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests;
