//! Deletes or marks rows whose events are durable, and counts what waits.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::super::port::{Lag, Settler, Trouble};
use super::super::row::Place;
use super::statement::Statements;
use super::{run, trouble};

/// Settles on a connection of its own, so that reading goes on meanwhile.
pub(super) struct PostgresSettler {
    connection: PgConnection,
    statements: Statements,
}

impl PostgresSettler {
    pub(super) async fn new(
        mut connection: PgConnection,
        statements: &Statements,
    ) -> Result<Self, Trouble> {
        // A row that comes back in a crash of the database is read again and known: its sync can wait.
        run(&mut connection, "SET synchronous_commit = off".to_owned()).await?;
        Ok(Self {
            connection,
            statements: statements.clone(),
        })
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
        })
    }
}

impl Settler for PostgresSettler {
    fn settle<'a>(&'a mut self, places: &'a [Place]) -> BoxFuture<'a, Result<(), Trouble>> {
        Box::pin(run(&mut self.connection, self.statements.settle(places)))
    }

    fn lag(&mut self) -> BoxFuture<'_, Result<Lag, Trouble>> {
        Box::pin(self.count())
    }
}
