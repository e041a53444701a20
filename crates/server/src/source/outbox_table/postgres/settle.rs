//! Deletes or marks rows whose events are durable, and counts what waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::super::port::{Lag, Settler, Trouble};
use super::super::row::Place;
use super::slot::{self, SlotNames};
use super::statement::Statements;
use super::{run, trouble};

/// Settles on a connection of its own, so that reading goes on meanwhile.
pub(super) struct PostgresSettler {
    connection: PgConnection,
    statements: Statements,
    log: Option<LogSettler>,
}

/// What logical mode wants of it besides.
pub(super) struct LogSettler {
    /// What is called how.
    pub(super) names: SlotNames,
    /// Rows that were settled, counted for the reader.
    pub(super) settled: Arc<AtomicU64>,
}

impl PostgresSettler {
    pub(super) async fn new(
        mut connection: PgConnection,
        statements: &Statements,
        log: Option<LogSettler>,
    ) -> Result<Self, Trouble> {
        // A row that comes back in a crash of the database is read again and known: its sync can wait.
        run(&mut connection, "SET synchronous_commit = off".to_owned()).await?;
        Ok(Self {
            connection,
            statements: statements.clone(),
            log,
        })
    }

    async fn settle_all(&mut self, places: &[Place]) -> Result<(), Trouble> {
        if let Some(sql) = self.statements.settle(places) {
            run(&mut self.connection, sql).await?;
        }
        let Some(log) = &self.log else {
            return Ok(());
        };
        let ids: Vec<&str> = places.iter().filter_map(logged_id).collect();
        if let (Some(sql), false) = (&self.statements.settle_by_id, ids.is_empty()) {
            sqlx::query(sqlx::AssertSqlSafe(sql.clone()))
                .bind(ids)
                .execute(&mut self.connection)
                .await
                .map_err(trouble)?;
        }
        log.settled
            .fetch_add(places.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn count(&mut self) -> Result<Lag, Trouble> {
        let row = sqlx::query(sqlx::AssertSqlSafe(self.statements.lag.clone()))
            .fetch_one(&mut self.connection)
            .await
            .map_err(trouble)?;
        let rows: i64 = row.try_get(0).map_err(trouble)?;
        let seconds: Option<f64> = row.try_get(1).map_err(trouble)?;
        let oldest = seconds.map(|seconds| seconds.max(0.0));
        Ok(Lag {
            rows: u64::try_from(rows).unwrap_or_default(),
            oldest: oldest.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            log_bytes: match &self.log {
                Some(log) => slot::kept(&mut self.connection, &log.names).await?,
                None => None,
            },
        })
    }
}

impl Settler for PostgresSettler {
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(self.settle_all(places))
    }

    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>> {
        Box::pin(self.count())
    }
}

fn logged_id(place: &Place) -> Option<&str> {
    match place {
        Place::Logged { id, .. } => Some(id),
        _ => None,
    }
}
