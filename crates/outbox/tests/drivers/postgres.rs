//! PostgreSQL by `sqlx` and by `tokio-postgres`, and the trigger that wakes the reader.

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio_postgres::NoTls;
use wayhold_outbox::{CHANNEL, Database, Table};

use crate::contract::of_sqlx;
use crate::{Row, bare, event, rows, service, table, without_blanks};

async fn connect() -> Option<PgConnection> {
    let url = service("WAYHOLD_TEST_POSTGRES")?;
    Some(PgConnection::connect(&url).await.unwrap())
}

async fn run(connection: &mut PgConnection, script: String) {
    sqlx::raw_sql(AssertSqlSafe(script))
        .execute(connection)
        .await
        .unwrap();
}

async fn found(connection: &mut PgConnection, table: &str) -> Vec<Row> {
    let select = format!(
        "SELECT id::text, aggregatetype, aggregateid, type, payload::text, traceparent \
         FROM {table} ORDER BY position"
    );
    let found = sqlx::query_as(AssertSqlSafe(select))
        .fetch_all(connection)
        .await;
    let mut found: Vec<Row> = found.unwrap();
    found
        .iter_mut()
        .for_each(|row| row.4 = row.4.as_deref().map(without_blanks));
    found
}

of_sqlx!(
    connect(),
    sqlx_postgres,
    "crate_sqlx",
    "SELECT id::text, aggregatetype, aggregateid, type, payload::text, traceparent \
     FROM crate_sqlx ORDER BY position"
);

#[tokio::test]
async fn tokio_postgres_tells_what_commits_and_nothing_else() {
    let Some(mut looker) = connect().await else {
        return;
    };
    let url = service("WAYHOLD_TEST_POSTGRES").unwrap();
    let (mut client, driving) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(driving);
    client
        .batch_execute("DROP TABLE IF EXISTS crate_tokio")
        .await
        .unwrap();
    let table = table("crate_tokio");
    for _ in 0..2 {
        wayhold_outbox::tokio_postgres::create_table(&client, &table)
            .await
            .unwrap();
    }
    let (one, two) = (event("1"), bare("2"));

    let transaction = client.transaction().await.unwrap();
    wayhold_outbox::tokio_postgres::insert(&transaction, &table, &one)
        .await
        .unwrap();
    wayhold_outbox::tokio_postgres::insert(&transaction, &table, &two)
        .await
        .unwrap();
    transaction.commit().await.unwrap();

    let transaction = client.transaction().await.unwrap();
    wayhold_outbox::tokio_postgres::insert(&transaction, &table, &event("3"))
        .await
        .unwrap();
    transaction.rollback().await.unwrap();

    assert_eq!(found(&mut looker, "crate_tokio").await, rows(&[&one, &two]));
    run(&mut looker, "DROP TABLE crate_tokio".into()).await;
}

#[tokio::test]
async fn a_table_made_for_debezium_gets_a_position_and_wakes_the_reader() {
    let Some(mut connection) = connect().await else {
        return;
    };
    let made = "DROP SCHEMA IF EXISTS crate_shop CASCADE; CREATE SCHEMA crate_shop;
                CREATE TABLE crate_shop.outboxevent (id uuid PRIMARY KEY, \
                aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
                type varchar(255) NOT NULL, payload jsonb)";
    run(&mut connection, made.into()).await;
    let table = Table::new("crate_shop.outboxevent").unwrap();
    for _ in 0..2 {
        run(&mut connection, table.upgrade_script(Database::Postgres)).await;
    }
    let url = service("WAYHOLD_TEST_POSTGRES").unwrap();
    let mut listener = PgListener::connect(&url).await.unwrap();
    listener.listen(CHANNEL).await.unwrap();

    let mut transaction = connection.begin().await.unwrap();
    for order in ["1", "2"] {
        wayhold_outbox::sqlx_postgres::insert(&mut transaction, &table, &bare(order))
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
    // Other tests have tables of their own, which wake on the same channel.
    while listener.recv().await.unwrap().payload() != "crate_shop.outboxevent" {}

    let found = "SELECT aggregateid, position FROM crate_shop.outboxevent ORDER BY position";
    let found: Vec<(String, i64)> = sqlx::query_as(found)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(found, [("1".into(), 1), ("2".into(), 2)]);
    run(&mut connection, "DROP SCHEMA crate_shop CASCADE".into()).await;
}
