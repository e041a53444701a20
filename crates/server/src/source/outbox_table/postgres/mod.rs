//! PostgreSQL, by asking the table, or by its log (`logical`). Any version from 14 on; three connections, of which the one that reads
//! holds the lock, so that whoever lost it reads nothing more.
//!
//! The rule by which nothing is passed over: a sweep is one statement, so it sees what was committed at one
//! moment, and it takes every row of that which is not deleted or marked, in order. It ends before the first
//! row whose transaction is not older than every open one (the *snapshot horizon*), since a transaction that
//! is still open may have drawn an earlier place in the order. What is committed later, however early its
//! place, is a later sweep's. Nowhere is there a "last place" from which to go on. Modules in suggested
//! reading order.

mod table;

mod statement;
mod sweep;

mod left;
mod logical;
mod pgoutput;
mod slot;
mod text;

mod settle;
mod wake;

mod check;

#[cfg(test)]
mod tests;

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use self::logical::LogicalReader;
use self::settle::{LogSettler, PostgresSettler};
use self::slot::SlotNames;
use self::sweep::PostgresReader;
use self::table::Table;
use self::wake::PostgresWaker;
use super::port::{Connected, Database, Finding, Trouble};
use crate::config::{Mode, OutboxTableConfig, Secret};

/// First of the two numbers of the advisory lock ("Wayh"); the second one is the table's.
const LOCK_CLASS: i32 = 0x5761_7968;

/// Oldest version whose snapshots can be asked for their horizon and whose rows are found by their place.
const VERSION_MIN: i32 = 140_000;

/// A table in PostgreSQL.
pub struct Postgres {
    config: OutboxTableConfig,
    url: Secret,
}

impl Postgres {
    /// The table of a source; nothing is opened.
    pub fn new(config: &OutboxTableConfig, url: &Secret) -> Self {
        Self {
            config: config.clone(),
            url: url.clone(),
        }
    }

    fn options(&self) -> Result<PgConnectOptions, Trouble> {
        // The library's words would name the URL, and with it a password.
        let options = PgConnectOptions::from_str(self.url.expose()).map_err(|_| {
            Trouble::Unreachable(
                "expected url as postgres://USER:PASSWORD@HOST/DATABASE".to_owned(),
            )
        })?;
        Ok(options
            .application_name(&format!("wayhold {}", self.config.name))
            .disable_statement_logging())
    }

    async fn open(&self) -> Result<PgConnection, Trouble> {
        let options = self.options()?;
        let mut connection = PgConnection::connect_with(&options)
            .await
            .map_err(trouble)?;
        // When this machine is gone without a word, its lock is free within half a minute.
        let settings = "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; \
                        SET tcp_keepalives_count = 3; SET client_min_messages = warning; \
                        SET timezone = 'UTC'; SET datestyle = 'ISO'; SET bytea_output = 'hex'; \
                        SET intervalstyle = 'iso_8601'";
        run(&mut connection, settings.to_owned()).await?;
        Ok(connection)
    }

    async fn open_all(&self) -> Result<Connected, Trouble> {
        let mut reading = self.open().await?;
        let table = Table::look(&mut reading, &self.config).await?;
        let table = table.map_err(|missing| Trouble::Misfit(vec![missing]))?;
        let findings = check::findings(&mut reading, &self.config, &table).await?;
        if findings.iter().any(|finding| !finding.advice) {
            return Err(Trouble::Misfit(findings));
        }
        let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCK_CLASS)
            .bind(table.oid.cast_signed())
            .fetch_one(&mut reading)
            .await
            .map_err(trouble)?;
        if !locked {
            return Err(Trouble::Elsewhere);
        }
        let statements = statement::Statements::new(&self.config, &table);
        let settled = Arc::new(AtomicU64::new(0));
        let (note, log) = match self.config.mode {
            Mode::Poll => (None, None),
            Mode::Logical => {
                let note = slot::prepare(&mut reading, &self.config, &table).await?;
                let names = SlotNames::of(&self.config);
                let settled = Arc::clone(&settled);
                (Some(note), Some(LogSettler { names, settled }))
            }
        };
        let settling = self.open().await?;
        let waker = PostgresWaker::listen(self.options()?).await?;
        let settler = PostgresSettler::new(settling, &statements, log).await?;
        let reader = PostgresReader::new(reading, &self.config, statements);
        Ok(Connected {
            reader: match note {
                None => Box::new(reader),
                Some(note) => {
                    let config = &self.config;
                    let reader = LogicalReader::open(reader, config, &table, note, settled);
                    Box::new(reader.await?)
                }
            },
            settler: Box::new(settler),
            waker: Box::new(waker),
        })
    }

    async fn look(&self) -> Result<Vec<Finding>, Trouble> {
        let mut connection = self.open().await?;
        let findings = match Table::look(&mut connection, &self.config).await? {
            Ok(table) => check::findings(&mut connection, &self.config, &table).await?,
            Err(missing) => vec![missing],
        };
        connection.close().await.ok();
        Ok(findings)
    }
}

impl Database for Postgres {
    fn connect(&self) -> BoxFuture<'_, Result<Connected, Trouble>> {
        Box::pin(self.open_all())
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, Trouble>> {
        Box::pin(self.look())
    }
}

/// Runs statements that answer nothing. Texts in them are made here, of numbers and quoted names.
async fn run(connection: &mut PgConnection, sql: String) -> Result<(), Trouble> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(connection)
        .await
        .map_err(trouble)?;
    Ok(())
}

/// What a failure means. The library's words name hosts and what the server said, never the password.
fn trouble(error: sqlx::Error) -> Trouble {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default().into_owned();
            Trouble::Unreachable(format!("the database says: {} ({code})", error.message()))
        }
        sqlx::Error::Io(error) => Trouble::Unreachable(format!("the connection failed: {error}")),
        sqlx::Error::Configuration(_) => {
            Trouble::Unreachable("the URL's parameters cannot be understood".to_owned())
        }
        other => Trouble::Unreachable(other.to_string()),
    }
}
