//! Finds rows: one cursor a sweep, fetched batch by batch.

use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Row as _, ValueRef as _};

use super::super::port::{Batch, End, Reader, Trouble};
use super::super::row::{Column, Payload, Place, Row};
use super::left::LeftRow;
use super::statement::{CURSOR, SWEEP_ROWS, Statements, at};
use super::table::ColumnKind;
use super::{run, trouble};
use crate::config::OutboxTableConfig;

/// How large a row is taken to be before any was seen, in bytes: the first batch of large ones must fit, too.
const ROW_BYTES_FIRST: usize = 16 * 1024;

/// Reads on the connection that holds the lock.
pub(super) struct PostgresReader {
    /// Holds the lock.
    pub(super) connection: PgConnection,
    statements: Statements,
    batch_rows: usize,
    batch_bytes: usize,
    /// What the largest rows of late take.
    row_bytes: usize,
    /// Rows that the open sweep has given so far; `None`: none is open.
    swept: Option<usize>,
    /// The snapshot before which a row was committed to be read; otherwise every row is.
    pub(super) before: Option<String>,
}

impl PostgresReader {
    pub(super) fn new(
        connection: PgConnection,
        config: &OutboxTableConfig,
        statements: Statements,
    ) -> Self {
        Self {
            connection,
            statements,
            batch_rows: config.batch_rows,
            batch_bytes: config.batch_bytes,
            row_bytes: ROW_BYTES_FIRST,
            swept: None,
            before: None,
        }
    }

    /// Everything that was committed until now.
    pub(super) async fn snapshot(&mut self) -> Result<String, Trouble> {
        sqlx::query_scalar("SELECT pg_current_snapshot()::text")
            .fetch_one(&mut self.connection)
            .await
            .map_err(trouble)
    }

    /// Rows that wait and were committed before a snapshot, in order, at most so many.
    pub(super) async fn left_over(
        &mut self,
        before: &str,
        most: usize,
    ) -> Result<Vec<LeftRow>, Trouble> {
        let found = sqlx::query(sqlx::AssertSqlSafe(self.statements.left_over.clone()))
            .bind(before)
            .bind(i64::try_from(most).unwrap_or(i64::MAX))
            .fetch_all(&mut self.connection)
            .await
            .map_err(trouble)?;
        found.iter().map(left_row).collect()
    }

    /// Those of these rows that wait, in this order.
    pub(super) async fn keys_of(&mut self, ids: &[String]) -> Result<Vec<LeftRow>, Trouble> {
        let found = sqlx::query(sqlx::AssertSqlSafe(self.statements.keys_of.clone()))
            .bind(ids)
            .fetch_all(&mut self.connection)
            .await
            .map_err(trouble)?;
        found.iter().map(left_row).collect()
    }

    /// As many of these rows as fit into a batch, in this order: those of them that wait, and how many were
    /// looked for.
    pub(super) async fn rows_of(&mut self, ids: &[String]) -> Result<(Vec<Row>, usize), Trouble> {
        let ids = ids.get(..self.wanted()).unwrap_or(ids);
        let found = sqlx::query(sqlx::AssertSqlSafe(self.statements.rows_of.clone()))
            .bind(ids)
            .fetch_all(&mut self.connection)
            .await
            .map_err(trouble)?;
        let rows = found.iter().map(|row| self.row_of(row).map_err(trouble));
        let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
        self.learn_size(&rows);
        Ok((rows, ids.len()))
    }

    async fn read(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        let before = match self.swept {
            Some(swept) => swept,
            None => {
                self.begin(without).await?;
                0
            }
        };
        let wanted = self.wanted();
        let fetch = format!("FETCH FORWARD {wanted} FROM {CURSOR}");
        let fetched = sqlx::query(sqlx::AssertSqlSafe(fetch))
            .fetch_all(&mut self.connection)
            .await
            .map_err(trouble)?;
        let mut rows = Vec::with_capacity(fetched.len());
        let mut is_open = false;
        for row in &fetched {
            is_open = row.try_get(at::OPEN).map_err(trouble)?;
            if is_open {
                break;
            }
            rows.push(self.row_of(row).map_err(trouble)?);
        }
        self.learn_size(&rows);
        let swept = before + fetched.len();
        let end = match () {
            () if is_open => End::Open,
            () if swept >= SWEEP_ROWS => End::Again,
            () if fetched.len() < wanted => End::Empty,
            () => End::More,
        };
        self.swept = Some(swept);
        if end != End::More {
            self.end().await?;
        }
        Ok(Batch { rows, end })
    }

    /// Takes the largest of these rows for what rows are like: at once where it is larger than those before,
    /// little by little where it is smaller.
    pub(super) fn learn_size(&mut self, rows: &[Row]) {
        if let Some(largest) = rows.iter().map(Row::size).max() {
            self.row_bytes = largest.max(self.row_bytes / 2).max(1);
        }
    }

    /// As many rows as fit into a batch.
    pub(super) fn wanted(&self) -> usize {
        let fit = (self.batch_bytes / self.row_bytes).clamp(1, self.batch_rows);
        match fit == self.batch_rows {
            true => fit,
            false => rounded(fit),
        }
    }

    async fn begin(&mut self, without: &[String]) -> Result<(), Trouble> {
        run(&mut self.connection, "BEGIN READ ONLY".to_owned()).await?;
        self.swept = Some(0);
        let declare = match &self.before {
            None => sqlx::query(sqlx::AssertSqlSafe(self.statements.sweep.clone())).bind(without),
            Some(before) => sqlx::query(sqlx::AssertSqlSafe(self.statements.sweep_before.clone()))
                .bind(without)
                .bind(before.clone()),
        };
        declare
            .execute(&mut self.connection)
            .await
            .map_err(trouble)?;
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Trouble> {
        if self.swept.take().is_some() {
            run(&mut self.connection, "COMMIT".to_owned()).await?;
        }
        Ok(())
    }

    fn row_of(&self, row: &PgRow) -> Result<Row, sqlx::Error> {
        let place: &str = row.try_get(at::PLACE)?;
        let xid: i64 = row.try_get(at::XID)?;
        let additional = self.statements.additional.iter().enumerate();
        let additional = additional.map(|(index, kind)| {
            let text: Option<String> = row.try_get(at::ADDITIONAL + index)?;
            Ok(text.map_or(Column::Null, |text| Column::of(text, kind.is_of_json())))
        });
        Ok(Row {
            place: place_of(place, xid)
                .ok_or_else(|| sqlx::Error::Protocol(format!("no place of a row: {place}")))?,
            id: row.try_get(at::ID)?,
            route: row.try_get(at::ROUTE)?,
            key: row.try_get(at::KEY)?,
            kind: row.try_get(at::KIND)?,
            payload: self.payload_of(row)?,
            timestamp: row.try_get(at::TIMESTAMP)?,
            schema_version: row.try_get(at::SCHEMA_VERSION)?,
            additional: additional.collect::<Result<_, sqlx::Error>>()?,
        })
    }

    fn payload_of(&self, row: &PgRow) -> Result<Payload, sqlx::Error> {
        if row.try_get_raw(at::PAYLOAD)?.is_null() {
            return Ok(Payload::Null);
        }
        Ok(match self.statements.payload {
            ColumnKind::Bytes => Payload::Binary(row.try_get(at::PAYLOAD)?),
            ColumnKind::Json => Payload::Json(row.try_get(at::PAYLOAD)?),
            _ => Payload::Text(row.try_get(at::PAYLOAD)?),
        })
    }
}

impl Reader for PostgresReader {
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>> {
        Box::pin(self.read(without))
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(self.end())
    }
}

fn left_row(row: &PgRow) -> Result<LeftRow, Trouble> {
    let id: Option<String> = row.try_get(0).map_err(trouble)?;
    let key: Option<String> = row.try_get(1).map_err(trouble)?;
    Ok(LeftRow {
        id: id.unwrap_or_default(),
        key: key.filter(|key| !key.is_empty()),
    })
}

/// About as many rows, never more, in one of eight steps between a power of two and the next: few statements are
/// prepared, and a batch is hardly smaller than it may be, which counts, since each costs a sync.
fn rounded(rows: usize) -> usize {
    let bits = rows.checked_ilog2().unwrap_or(0).saturating_sub(3);
    rows >> bits << bits
}

/// `(block,offset)`, as a tuple's place is written.
fn place_of(text: &str, xid: i64) -> Option<Place> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    let (block, offset) = inner.split_once(',')?;
    Some(Place::Tuple {
        block: block.parse().ok()?,
        offset: offset.parse().ok()?,
        xid: u32::try_from(xid).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn batches_are_of_few_sizes_and_nearly_as_large_as_they_may_be() {
        let sizes: BTreeSet<usize> = (1..=10_000).map(rounded).collect();
        assert!(
            sizes.len() <= 100,
            "statements that a connection keeps: {}",
            sizes.len()
        );
        for rows in 1..=10_000 {
            let rounded = rounded(rows);
            assert!(
                rounded <= rows && rounded * 9 >= rows * 8,
                "{rows}: {rounded}"
            );
        }
    }
}
