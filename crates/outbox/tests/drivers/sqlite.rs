//! SQLite by `rusqlite` and by `sqlx`.

use sqlx::{Connection as _, SqliteConnection};
use wayhold_outbox::{InsertError, Table};

use crate::contract::of_sqlx;
use crate::{Row, bare, event, rows, table, without_blanks};

const ROWS: &str = "SELECT id, aggregatetype, aggregateid, type, payload, traceparent \
                    FROM outboxevent ORDER BY position";

#[test]
fn rusqlite_tells_what_commits_and_nothing_else() {
    let mut connection = rusqlite::Connection::open_in_memory().unwrap();
    let table = table("outboxevent");
    for _ in 0..2 {
        wayhold_outbox::rusqlite::create_table(&connection, &table).unwrap();
    }
    let (one, two) = (event("1"), bare("2"));

    let transaction = connection.transaction().unwrap();
    wayhold_outbox::rusqlite::insert(&transaction, &table, &one).unwrap();
    wayhold_outbox::rusqlite::insert(&transaction, &table, &two).unwrap();
    transaction.commit().unwrap();

    let transaction = connection.transaction().unwrap();
    wayhold_outbox::rusqlite::insert(&transaction, &table, &event("3")).unwrap();
    transaction.rollback().unwrap();

    let transaction = connection.transaction().unwrap();
    let again = wayhold_outbox::rusqlite::insert(&transaction, &table, &one).unwrap_err();
    assert!(matches!(again, InsertError::Database(_)), "{again}");
    drop(transaction);

    let mut statement = connection.prepare(ROWS).unwrap();
    let found = statement.query_map([], |row| {
        let payload: Option<String> = row.get(4)?;
        let payload = payload.as_deref().map(without_blanks);
        Ok((
            row.get(0)?,
            row.get(1)?,
            row.get(2)?,
            row.get(3)?,
            payload,
            row.get(5)?,
        ))
    });
    let found: Vec<Row> = found.unwrap().map(Result::unwrap).collect();
    assert_eq!(found, rows(&[&one, &two]));
}

#[test]
fn an_event_that_does_not_fit_reaches_no_database() {
    let mut connection = rusqlite::Connection::open_in_memory().unwrap();
    let transaction = connection.transaction().unwrap();
    let refused = wayhold_outbox::rusqlite::insert(&transaction, &Table::default(), &event("1"));
    let said = refused.unwrap_err();
    assert!(matches!(said, InsertError::Event(_)));
    assert_eq!(
        said.to_string(),
        "the event does not fit the outbox table: attribute \"traceparent\": expected a column of \
         that name in the outbox table (Table::with_attribute)"
    );
}

async fn connect() -> Option<SqliteConnection> {
    Some(SqliteConnection::connect("sqlite::memory:").await.unwrap())
}

of_sqlx!(connect(), sqlx_sqlite, "outboxevent", ROWS);
