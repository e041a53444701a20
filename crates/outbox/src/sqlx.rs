//! What the modules for `sqlx` share: they differ in the database's type, and by that alone.

/// The functions of one driver of `sqlx`, for a module of its own: an application that has one feature knows nothing
/// of the others' types.
macro_rules! driver {
    ($driver:ident, $database:expr) => {
        use sqlx::{AssertSqlSafe, Transaction, $driver};

        use crate::error::InsertError;
        use crate::event::Event;
        use crate::table::Table;

        /// Inserts an event: it is told when, and only when, the transaction commits.
        ///
        /// # Errors
        /// When the event does not fit the table, or the database refuses the row. Roll back then.
        pub async fn insert(
            transaction: &mut Transaction<'_, $driver>,
            table: &Table,
            event: &Event,
        ) -> Result<(), InsertError<sqlx::Error>> {
            let insert = table.insert(event, $database)?;
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
            connection: &mut <$driver as sqlx::Database>::Connection,
            table: &Table,
        ) -> Result<(), sqlx::Error> {
            let script = AssertSqlSafe(table.create_script($database));
            let done = sqlx::raw_sql(script).execute(connection).await;
            done.map(|_| ())
        }
    };
}

pub(crate) use driver;
