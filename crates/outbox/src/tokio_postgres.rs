//! PostgreSQL by `tokio-postgres`.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Transaction};

use crate::error::InsertError;
use crate::event::Event;
use crate::schema::Database;
use crate::table::Table;

/// Inserts an event in one round trip: it is told when, and only when, the transaction commits.
///
/// # Errors
/// When the event does not fit the table, or the database refuses the row. Roll back then.
pub async fn insert(
    transaction: &Transaction<'_>,
    table: &Table,
    event: &Event,
) -> Result<(), InsertError<Error>> {
    let insert = table.insert(event, Database::Postgres)?;
    let values: Vec<_> = insert.values.iter().map(Option::as_deref).collect();
    let bound: Vec<(&(dyn ToSql + Sync), Type)> = values
        .iter()
        .map(|value| (value as &(dyn ToSql + Sync), Type::TEXT))
        .collect();
    let done = transaction.execute_typed(&insert.statement, &bound).await;
    done.map(|_| ()).map_err(InsertError::Database)
}

/// Makes the table where there is none ([`Table::create_script`]).
///
/// # Errors
/// When the database refuses it.
pub async fn create_table(client: &Client, table: &Table) -> Result<(), Error> {
    client
        .batch_execute(&table.create_script(Database::Postgres))
        .await
}
