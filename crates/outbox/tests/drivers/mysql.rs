//! MariaDB by `sqlx`.

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use wayhold_outbox::{Database, Table};

use crate::contract::of_sqlx;
use crate::{bare, service};

async fn connect() -> Option<MySqlConnection> {
    let url = service("WAYHOLD_TEST_MARIADB")?;
    Some(MySqlConnection::connect(&url).await.unwrap())
}

async fn run(connection: &mut MySqlConnection, script: String) {
    sqlx::raw_sql(AssertSqlSafe(script))
        .execute(connection)
        .await
        .unwrap();
}

of_sqlx!(
    connect(),
    sqlx_mysql,
    "crate_sqlx",
    "SELECT id, aggregatetype, aggregateid, type, CAST(payload AS char), traceparent \
     FROM crate_sqlx ORDER BY position"
);

#[tokio::test]
async fn a_table_made_for_debezium_gets_a_position() {
    let Some(mut connection) = connect().await else {
        return;
    };
    run(
        &mut connection,
        "DROP TABLE IF EXISTS crate_debezium".into(),
    )
    .await;
    let made = "CREATE TABLE crate_debezium (id char(36) PRIMARY KEY, aggregatetype varchar(255) NOT NULL, \
                aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload json)";
    run(&mut connection, made.into()).await;
    let table = Table::new("crate_debezium").unwrap();
    run(&mut connection, table.upgrade_script(Database::MySql)).await;

    let mut transaction = connection.begin().await.unwrap();
    for order in ["1", "2"] {
        wayhold_outbox::sqlx_mysql::insert(&mut transaction, &table, &bare(order))
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
    let found = "SELECT aggregateid, position FROM crate_debezium ORDER BY position";
    let found: Vec<(String, i64)> = sqlx::query_as(found)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(found, [("1".into(), 1), ("2".into(), 2)]);
    run(&mut connection, "DROP TABLE crate_debezium".into()).await;
}
