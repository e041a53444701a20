//! PostgreSQL by `sqlx`.

use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::error::InsertError;
use crate::event::Event;
use crate::schema::Database;
use crate::table::Table;

/// Inserts an event: it is told when, and only when, the transaction commits.
///
/// # Errors
/// When the event does not fit the table, or the database refuses the row. Roll back then.
pub async fn insert(
    transaction: &mut Transaction<'_, Postgres>,
    table: &Table,
    event: &Event,
) -> Result<(), InsertError<sqlx::Error>> {
    let insert = table.insert(event, Database::Postgres)?;
    // The statement is made of the table's names, which are plain; all else is bound.
    let mut query = sqlx::query(AssertSqlSafe(insert.statement));
    for value in insert.values {
        query = query.bind(value.map(String::from));
    }
    let done = query.execute(&mut **transaction).await;
    done.map(|_| ()).map_err(InsertError::Database)
}

/// Makes the table where there is none ([`Table::create_script`]).
///
/// # Errors
/// When the database refuses it.
pub async fn create_table(
    connection: &mut <Postgres as sqlx::Database>::Connection,
    table: &Table,
) -> Result<(), sqlx::Error> {
    let script = table.create_script(Database::Postgres);
    let done = sqlx::raw_sql(AssertSqlSafe(script))
        .execute(connection)
        .await;
    done.map(|_| ())
}
