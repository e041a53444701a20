//! The suite over a real PostgreSQL, once by its table and once by its log.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::AssertSqlSafe;

use super::super::super::port::Database;
use super::super::super::suite::{Ground, drain, of_suite};
use super::{Real, logical, run_on};

/// What the suite asks for: ids are any text, and aggregates may be missing.
const COLUMNS: &str = "id text PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text NOT NULL, \
                       payload jsonb, position bigint GENERATED ALWAYS AS IDENTITY UNIQUE, sent_at timestamptz, \
                       is_sent boolean NOT NULL DEFAULT false, \
                       happened timestamp DEFAULT '2026-01-02 03:04:05.5', version int DEFAULT 3, \
                       trace text DEFAULT 't'";

struct Server {
    real: Real,
    reads_log: bool,
}

impl Ground for Server {
    fn table(&self) -> &str {
        &self.real.table
    }

    fn open(&self, keys: &str) -> Arc<dyn Database> {
        // Batches are as they come, but where a test says otherwise.
        self.real.database(&match self.reads_log {
            true => format!("{}\n{keys}", logical::slot_keys(&self.real)),
            false => keys.to_owned(),
        })
    }

    fn run<'a>(&'a self, statements: &'a [&'a str]) -> BoxFuture<'a, ()> {
        async move {
            let mut application = self.real.another().await;
            for statement in statements {
                run_on(&mut application, statement).await;
            }
        }
        .boxed()
    }

    fn ids(&self) -> BoxFuture<'_, Vec<String>> {
        async {
            let select = format!("SELECT id FROM {} ORDER BY id", self.real.table);
            sqlx::query_scalar(AssertSqlSafe(select))
                .fetch_all(&mut self.real.another().await)
                .await
                .unwrap()
        }
        .boxed()
    }

    fn clean(&self) -> BoxFuture<'_, ()> {
        async {
            logical::drop_slot(&self.real).await;
            let drop = format!("DROP TABLE IF EXISTS {}", self.real.table);
            self.run(&[&drop]).await;
        }
        .boxed()
    }
}

mod by_the_table {
    use super::*;

    async fn server(_test: &str) -> Option<Server> {
        let real = Real::table(COLUMNS).await?;
        let reads_log = false;
        Some(Server { real, reads_log })
    }

    of_suite!(server:
        every_column_comes_and_rows_are_in_order,
        what_is_settled_is_gone_and_nothing_else,
        rows_of_keys_that_wait_are_left_out,
        batches_are_bounded,
        one_reads_at_a_time,
        rows_can_be_marked("sent_at"),
        other_columns_travel,
        what_is_missing_is_said,
    );
}

mod by_the_log {
    use super::*;

    /// A table that has been read to its end, so that what is put in from now on comes by the log.
    async fn server(_test: &str) -> Option<Server> {
        let real = Real::table(COLUMNS).await?;
        let reads_log = true;
        let server = Server { real, reads_log };
        let mut open = server.open("").connect().await.unwrap();
        for _ in 0..2 {
            assert!(drain(&mut open).await.is_empty());
        }
        Some(server)
    }

    of_suite!(server:
        every_column_comes_and_rows_are_in_order,
        what_is_settled_is_gone_and_nothing_else,
        rows_of_keys_that_wait_are_left_out,
        batches_are_bounded,
        one_reads_at_a_time,
        rows_can_be_marked("is_sent"),
        other_columns_travel,
        what_is_missing_is_said,
    );
}
