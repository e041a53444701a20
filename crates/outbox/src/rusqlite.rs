//! SQLite by `rusqlite`.

use rusqlite::{Connection, Error, Transaction, params_from_iter};

use crate::error::InsertError;
use crate::event::Event;
use crate::schema::Database;
use crate::table::Table;

/// Inserts an event: it is told when, and only when, the transaction commits.
///
/// # Errors
/// When the event does not fit the table, or the database refuses the row. Roll back then.
pub fn insert(
    transaction: &Transaction<'_>,
    table: &Table,
    event: &Event,
) -> Result<(), InsertError<Error>> {
    let insert = table.insert(event, Database::Sqlite)?;
    let values = insert.values.iter().map(Option::as_deref);
    let done = transaction.execute(&insert.statement, params_from_iter(values));
    done.map(|_| ()).map_err(InsertError::Database)
}

/// Makes the table where there is none ([`Table::create_script`]).
///
/// # Errors
/// When the database refuses it.
pub fn create_table(connection: &Connection, table: &Table) -> Result<(), Error> {
    connection.execute_batch(&table.create_script(Database::Sqlite))
}
