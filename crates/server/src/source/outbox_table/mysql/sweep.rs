//! One sweep: the first rows of the table, less what a second look says must wait, once all of it is durable.

use std::collections::HashMap;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryStreamExt as _};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::super::cells;
use super::super::port::{Batch, End, Reader, Trouble};
use super::super::row::{Place, Row};
use super::durable::Durability;
use super::layout::Layout;
use super::trouble;
use crate::config::OutboxTableConfig;

/// Reads by the connection that has the lock.
pub(super) struct Sweep {
    config: OutboxTableConfig,
    connection: MySqlConnection,
    layout: Layout,
    durability: Durability,
}

impl Sweep {
    pub(super) fn new(
        config: &OutboxTableConfig,
        connection: MySqlConnection,
        layout: Layout,
        durability: Durability,
    ) -> Self {
        Self {
            config: config.clone(),
            connection,
            layout,
            durability,
        }
    }

    async fn read(&mut self, without: &[String]) -> Result<Batch, Trouble> {
        let (rows, mut end) = self.first_look(without).await?;
        let unseen = self.second_look(&rows).await?;
        let found = rows.len();
        let rows = in_order(rows, &unseen);
        if rows.len() < found {
            // They can be read at once, behind what was not seen.
            end = End::Again;
        }
        if !rows.is_empty() {
            self.durable().await?;
        }
        Ok(Batch { rows, end })
    }

    /// Ends when all that was read is certainly on the server's disk.
    pub(super) async fn durable(&mut self) -> Result<(), Trouble> {
        self.durability.wait(&mut self.connection).await
    }

    /// The first rows, within the limits of a batch.
    pub(super) async fn first_look(
        &mut self,
        without: &[String],
    ) -> Result<(Vec<Row>, End), Trouble> {
        // One more than is taken says whether there are more.
        let select = self
            .layout
            .select(without.len(), self.config.batch_rows + 1);
        let mut query = sqlx::query(AssertSqlSafe(select));
        for key in without {
            query = query.bind(key.as_str());
        }
        let mut found = query.fetch(&mut self.connection);
        let mut rows = Vec::new();
        let mut bytes = 0;
        while let Some(row) = found.try_next().await.map_err(trouble)? {
            if rows.len() == self.config.batch_rows || bytes >= self.config.batch_bytes {
                return Ok((rows, End::Again));
            }
            let row = decode(&self.layout, &self.config, &row).map_err(trouble)?;
            bytes += row.size();
            rows.push(row);
        }
        Ok((rows, End::Empty))
    }

    /// Per key the first row that lies before the last of these and is not among them.
    pub(super) async fn second_look(
        &mut self,
        rows: &[Row],
    ) -> Result<HashMap<String, i64>, Trouble> {
        let numbers: Vec<_> = rows.iter().filter_map(|row| number(&row.place)).collect();
        let Some((last, before)) = numbers.split_last() else {
            return Ok(HashMap::new());
        };
        let Some(select) = self.layout.between(before.len()) else {
            return Ok(HashMap::new());
        };
        let mut query = sqlx::query_as(AssertSqlSafe(select)).bind(*last);
        for number in before {
            query = query.bind(*number);
        }
        let found = query.fetch_all(&mut self.connection).await;
        let found: Vec<(Option<String>, i64)> = found.map_err(trouble)?;
        Ok(found
            .into_iter()
            .filter_map(|(key, first)| key.map(|key| (key, first)))
            .collect())
    }
}

impl Reader for Sweep {
    fn next<'a>(&'a mut self, without: &'a [String]) -> BoxFuture<'a, Result<Batch, Trouble>> {
        self.read(without).boxed()
    }

    fn abandon(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        // A sweep is over when its statements are.
        async { Ok(()) }.boxed()
    }
}

/// The rows that do not lie behind an unseen one of their key.
fn in_order(rows: Vec<Row>, unseen: &HashMap<String, i64>) -> Vec<Row> {
    let waits = |row: &Row| {
        let first = row.key.as_ref().and_then(|key| unseen.get(key));
        first.is_some_and(|first| number(&row.place).is_some_and(|number| number > *first))
    };
    rows.into_iter().filter(|row| !waits(row)).collect()
}

fn number(place: &Place) -> Option<i64> {
    match place {
        Place::Number(number) => Some(*number),
        Place::Id(_) | Place::Tuple { .. } | Place::Logged { .. } => None,
    }
}

fn decode(layout: &Layout, config: &OutboxTableConfig, row: &MySqlRow) -> Result<Row, sqlx::Error> {
    let mut cells = Vec::with_capacity(layout.kinds.len());
    for (index, kind) in layout.kinds.iter().enumerate() {
        cells.push(kind.cell(row, index + 1)?);
    }
    let place = match layout.has_number {
        true => Place::Number(row.try_get(0)?),
        // The id is the first of the wanted columns.
        false => Place::Id(
            cells
                .first()
                .cloned()
                .and_then(cells::text)
                .unwrap_or_default(),
        ),
    };
    Ok(cells::row(&config.router, place, cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::outbox_table::row::Payload;

    fn row(number: i64, key: Option<&str>) -> Row {
        Row {
            place: Place::Number(number),
            id: None,
            route: None,
            key: key.map(str::to_owned),
            kind: None,
            payload: Payload::Null,
            timestamp: None,
            schema_version: None,
            additional: Vec::new(),
        }
    }

    #[test]
    fn what_lies_behind_an_unseen_row_of_its_key_waits() {
        let rows = vec![
            row(1, Some("a")),
            row(4, Some("a")),
            row(5, Some("b")),
            row(6, None),
            row(7, Some("a")),
        ];
        let unseen = HashMap::from([("a".to_owned(), 3), ("c".to_owned(), 2)]);
        let left: Vec<_> = in_order(rows, &unseen)
            .iter()
            .filter_map(|row| number(&row.place))
            .collect();
        assert_eq!(left, [1, 5, 6]);
    }
}
