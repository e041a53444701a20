//! The reader against a real PostgreSQL at `WAYHOLD_TEST_POSTGRES` (see `scripts/services`).

mod bad_days;
mod left;
mod logical;
mod missing;
mod order;
mod rows;
mod suite;

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::super::port::{Batch, Connected, Database as _, End, Trouble};
use super::super::rig::source;
use super::super::row::Place;
use super::Postgres;
use crate::config::{Database, Environment, OutboxTableConfig};

/// Names the address of a real PostgreSQL.
const REAL_POSTGRES: &str = "WAYHOLD_TEST_POSTGRES";

/// Our own layout.
const OWN: &str = "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL, \
                   aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb, \
                   position bigint GENERATED ALWAYS AS IDENTITY UNIQUE";

/// Transactions that one test leaves open hold up the rows of every other: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A table of its own in a real database, which is dropped at the end.
struct Real {
    _turn: MutexGuard<'static, ()>,
    url: String,
    table: String,
    application: PgConnection,
}

impl Real {
    /// A table with these columns, or `None` where there is no real PostgreSQL.
    async fn table(columns: &str) -> Option<Self> {
        let Ok(url) = std::env::var(REAL_POSTGRES) else {
            let required =
                std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "{REAL_POSTGRES} is not set: scripts/services up postgres"
            );
            println!("skipped: real PostgreSQL because {REAL_POSTGRES} is not set");
            return None;
        };
        let table = format!("outbox_{}", uuid::Uuid::now_v7().simple());
        let mut real = Self {
            _turn: ONE_AT_A_TIME.lock().await,
            application: PgConnection::connect(&url).await.unwrap(),
            url,
            table,
        };
        real.run(&format!("CREATE TABLE {{t}} ({columns})")).await;
        Some(real)
    }

    /// Runs statements, in which `{t}` is the table.
    async fn run(&mut self, sql: &str) {
        let sql = sql.replace("{t}", &self.table);
        run_on(&mut self.application, &sql).await;
    }

    /// Another connection of the application.
    async fn another(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Inserts an event with this number, in a transaction of its own.
    async fn insert(&mut self, number: u32, key: &str) {
        let sql = self.insertion(number, key);
        self.run(&sql).await;
    }

    fn insertion(&self, number: u32, key: &str) -> String {
        format!(
            "INSERT INTO {} (aggregatetype, aggregateid, type, payload) \
             VALUES ('order', '{key}', 'created', '{{\"n\": {number}}}');",
            self.table
        )
    }

    async fn count(&mut self) -> i64 {
        let sql = format!("SELECT count(*) FROM {}", self.table);
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&mut self.application)
            .await
            .unwrap()
    }

    fn config(&self, keys: &str) -> OutboxTableConfig {
        let environment = Environment::new([("DATABASE", self.url.as_str())]);
        let keys = format!(
            "url = {{ env = \"DATABASE\" }}\ntable = \"{}\"\npoll_interval = \"20ms\"\n{keys}",
            self.table
        );
        source(&keys, &environment)
    }

    fn database(&self, keys: &str) -> Arc<Postgres> {
        let config = self.config(keys);
        let Database::Postgres(url) = &config.database else {
            unreachable!("the URL names PostgreSQL");
        };
        Arc::new(Postgres::new(&config, url))
    }

    /// Opens it as soon as the lock is free: it is not at once, when whoever had it is gone.
    async fn connect(&self, keys: &str) -> Connected {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match self.database(keys).connect().await {
                Ok(connected) => return connected,
                Err(Trouble::Elsewhere) if Instant::now() < end => {
                    sleep(Duration::from_millis(5)).await;
                }
                Err(trouble) => panic!("{trouble}"),
            }
        }
    }

    /// Reads everything there is to read, and settles it.
    async fn drain(&self, keys: &str) -> Vec<super::super::Row> {
        let mut connected = self.connect(keys).await;
        let mut all = Vec::new();
        loop {
            let Batch { rows, end } = connected.reader.next(&[]).await.unwrap();
            let places: Vec<Place> = rows.iter().map(|row| row.place.clone()).collect();
            if !places.is_empty() {
                connected.settler.settle(&places).await.unwrap();
            }
            all.extend(rows);
            if matches!(end, End::Empty | End::Open) {
                return all;
            }
        }
    }

    async fn drop(mut self) {
        self.run("DROP TABLE {t}").await;
    }
}

async fn run_on(connection: &mut PgConnection, sql: &str) {
    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    if let Err(error) = sqlx::raw_sql(sql).execute(connection).await {
        panic!("{error}");
    }
}

/// The numbers that were put into payloads.
fn numbers(rows: &[super::super::Row]) -> Vec<u32> {
    let number = |row: &super::super::Row| match &row.payload {
        super::super::Payload::Json(text) => {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            u32::try_from(value["n"].as_u64().unwrap()).unwrap()
        }
        other => panic!("no JSON: {other:?}"),
    };
    rows.iter().map(number).collect()
}
