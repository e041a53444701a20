//! The suite over a real MariaDB, and what is InnoDB's own: transactions that overlap, locks, the log.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};

use super::Mysql;
use super::durable::Durability;
use super::layout::Layout;
use super::sweep::Sweep;
use crate::config::{Environment, OutboxTableConfig};
use crate::source::outbox_table::port::{Database, End, Trouble};
use crate::source::outbox_table::rig::source;
use crate::source::outbox_table::suite::{self, Ground, connected, drain, ids, insert, insert_all};

struct Server {
    url: String,
    table: String,
}

impl Server {
    fn config(&self, keys: &str) -> OutboxTableConfig {
        let keys = format!(
            "url = {{ env = \"DB\" }}\ntable = \"{}\"\n{keys}",
            self.table
        );
        source(&keys, &Environment::new([("DB", self.url.as_str())]))
    }

    async fn application(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.unwrap()
    }

    async fn execute(connection: &mut MySqlConnection, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement).execute(connection).await.unwrap();
    }

    /// The reader's first half alone, with the lock taken by nobody.
    async fn sweep(&self, url: &str) -> Sweep {
        let config = self.config("");
        let database = Mysql::new(&config, url);
        let mut connection = database.open().await.unwrap();
        let (layout, _) = Layout::find(&mut connection, &config).await.unwrap();
        let durability = Durability::of(&mut connection).await.unwrap();
        Sweep::new(&config, connection, layout.unwrap(), durability)
    }

    /// A user of this name and password who may do these things with the table, and their URL.
    async fn user(&self, name: &str, privileges: &str) -> String {
        let mut root = self.application().await;
        let table = &self.table;
        for statement in [
            format!("DROP USER IF EXISTS {name}@'127.0.0.1'"),
            format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{name}'"),
            format!("GRANT {privileges} ON wayhold.{table} TO {name}@'127.0.0.1'"),
        ] {
            Self::execute(&mut root, &statement).await;
        }
        self.url
            .replace("wayhold:wayhold@", &format!("{name}:{name}@"))
    }
}

impl Ground for Server {
    fn table(&self) -> &str {
        &self.table
    }

    fn open(&self, keys: &str) -> Arc<dyn Database> {
        Arc::new(Mysql::new(&self.config(keys), &self.url))
    }

    fn run<'a>(&'a self, statements: &'a [&'a str]) -> BoxFuture<'a, ()> {
        async move {
            let mut application = self.application().await;
            for statement in statements {
                Self::execute(&mut application, statement).await;
            }
        }
        .boxed()
    }

    fn ids(&self) -> BoxFuture<'_, Vec<String>> {
        async {
            let select = format!("SELECT id FROM {} ORDER BY id", self.table);
            sqlx::query_scalar(AssertSqlSafe(select))
                .fetch_all(&mut self.application().await)
                .await
                .unwrap()
        }
        .boxed()
    }
}

/// The server of `scripts/services` with a table as we print it, but aggregates may be missing, and with what
/// the suite asks for.
async fn server(test: &str) -> Option<Server> {
    let Ok(url) = std::env::var("WAYHOLD_TEST_MARIADB") else {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "WAYHOLD_TEST_MARIADB is not set, and everything is required"
        );
        println!("skipped: tables in MariaDB: WAYHOLD_TEST_MARIADB is not set");
        return None;
    };
    let server = Server {
        url,
        table: test.to_owned(),
    };
    let table = wayhold_outbox::Table::new(test).unwrap();
    let create = table.create_script(wayhold_outbox::Database::MySql);
    let create = create.replace(
        "`aggregateid` varchar(255) NOT NULL",
        "`aggregateid` varchar(255)",
    );
    let columns = format!(
        "ALTER TABLE {test} ADD COLUMN sent_at datetime(6), ADD COLUMN is_sent bool NOT NULL DEFAULT FALSE, \
         ADD COLUMN happened datetime(6) DEFAULT '2026-01-02 03:04:05.5', ADD COLUMN version int DEFAULT 3, \
         ADD COLUMN trace varchar(99) DEFAULT 't'"
    );
    let drop = format!("DROP TABLE IF EXISTS {test}");
    server.run(&[&drop, &create, &columns]).await;
    Some(server)
}

suite::of_suite!(server:
    every_column_comes_and_rows_are_in_order,
    what_is_settled_is_gone_and_nothing_else,
    rows_of_keys_that_wait_are_left_out,
    batches_are_bounded,
    one_reads_at_a_time,
    rows_can_be_marked("sent_at"),
    other_columns_travel,
    what_is_missing_is_said,
);

#[tokio::test]
async fn rows_can_be_marked_by_a_flag() {
    if let Some(server) = server("marked_by_a_flag").await {
        suite::rows_can_be_marked(&server, "is_sent").await;
    }
}

#[tokio::test]
async fn a_number_drawn_before_a_long_wait_is_found_whenever_it_commits() {
    let Some(server) = server("drawn_before").await else {
        return;
    };
    let mut open = connected(&server, "").await;
    let (mut slow, mut quick) = (server.application().await, server.application().await);
    let mut ghost = server.application().await;
    let table = &server.table;
    for (application, id) in [(&mut slow, "early"), (&mut ghost, "ghost")] {
        Server::execute(application, "START TRANSACTION").await;
        Server::execute(application, &insert(table, id, "'1'")).await;
    }
    for id in ["late", "later"] {
        Server::execute(&mut quick, &insert(table, id, "'2'")).await;
        assert_eq!(drain(&mut open).await, [id]);
    }
    Server::execute(&mut ghost, "ROLLBACK").await;
    assert!(drain(&mut open).await.is_empty());
    Server::execute(&mut slow, "COMMIT").await;
    assert_eq!(drain(&mut open).await, ["early"]);
    assert!(server.ids().await.is_empty());
}

#[tokio::test]
async fn nobody_who_writes_waits_for_the_reader_nor_it_for_them() {
    let Some(server) = server("nobody_waits").await else {
        return;
    };
    insert_all(&server, &[("a", "'1'"), ("b", "'1'")]).await;
    let mut open = connected(&server, "").await;
    let mut application = server.application().await;
    Server::execute(&mut application, "SET innodb_lock_wait_timeout = 1").await;
    Server::execute(&mut application, "START TRANSACTION").await;
    let lock = format!("SELECT * FROM {} FOR UPDATE", server.table);
    Server::execute(&mut application, &lock).await;
    // All rows are locked, and are read in their order all the same.
    let batch = open.reader.next(&[]).await.unwrap();
    assert_eq!(ids(&batch), ["a", "b"]);
    Server::execute(&mut application, "COMMIT").await;
    // A batch is in hand, and all that was read can be changed.
    let update = format!("UPDATE {} SET type = 'x'", server.table);
    Server::execute(&mut application, &update).await;
    assert_eq!(drain(&mut open).await, ["a", "b"]);
}

#[tokio::test]
async fn a_second_look_finds_what_the_first_did_not_see() {
    let Some(server) = server("second_look").await else {
        return;
    };
    // Of aggregate 1 the earlier row commits between the looks, as it would during one in MariaDB.
    let mut slow = server.application().await;
    Server::execute(&mut slow, "START TRANSACTION").await;
    Server::execute(&mut slow, &insert(&server.table, "first", "'1'")).await;
    insert_all(&server, &[("second", "'1'"), ("other", "'2'")]).await;
    let mut sweep = server.sweep(&server.url).await;
    let (rows, end) = sweep.first_look(&[]).await.unwrap();
    assert_eq!((rows.len(), end), (2, End::Empty));
    assert!(sweep.second_look(&rows).await.unwrap().is_empty());
    Server::execute(&mut slow, "COMMIT").await;
    let unseen = sweep.second_look(&rows).await.unwrap();
    assert_eq!(
        unseen.into_iter().collect::<Vec<_>>(),
        [("1".to_owned(), 1)]
    );
    // Also where a single row was seen.
    let unseen = sweep.second_look(&rows[..1]).await.unwrap();
    assert_eq!(unseen.len(), 1);
}

#[tokio::test]
async fn what_is_read_is_in_the_synced_log_whoever_reads_it() {
    let Some(server) = server("synced_log").await else {
        return;
    };
    let lsn = "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM information_schema.global_status \
               WHERE VARIABLE_NAME = 'Innodb_lsn_flushed'";
    let written = lsn.replace("lsn_flushed", "lsn_current");
    let plain = server.user("no_reload", "SELECT, DELETE").await;
    for url in [&server.url, &plain] {
        let mut sweep = server.sweep(url).await;
        let mut application = server.application().await;
        // What an open transaction writes is in the log and not synced.
        Server::execute(&mut application, "START TRANSACTION").await;
        Server::execute(&mut application, &insert(&server.table, "open", "'1'")).await;
        let mut looking = server.application().await;
        let written: u64 = sqlx::query_scalar(AssertSqlSafe(written.clone()))
            .fetch_one(&mut looking)
            .await
            .unwrap();
        sweep.durable().await.unwrap();
        let synced: u64 = sqlx::query_scalar(lsn)
            .fetch_one(&mut looking)
            .await
            .unwrap();
        assert!(synced >= written, "{synced} {written}");
        Server::execute(&mut application, "ROLLBACK").await;
    }
    let findings = Mysql::new(&server.config(""), &plain)
        .check()
        .await
        .unwrap();
    let [advice] = findings.as_slice() else {
        panic!("{findings:?}");
    };
    assert!(advice.advice);
    let grant = advice.remedy.as_deref();
    assert_eq!(
        grant,
        Some("GRANT RELOAD ON *.* TO 'no_reload'@'127.0.0.1'")
    );
}

#[tokio::test]
async fn a_lost_lock_ends_the_reading() {
    let Some(server) = server("lost_lock").await else {
        return;
    };
    let mut open = connected(&server, "").await;
    let mut application = server.application().await;
    let holder = "SELECT CAST(IS_USED_LOCK('wayhold.wayhold.lost_lock') AS SIGNED)";
    let holder: i64 = sqlx::query_scalar(holder)
        .fetch_one(&mut application)
        .await
        .unwrap();
    Server::execute(&mut application, &format!("KILL {holder}")).await;
    let lost = open.reader.next(&[]).await.unwrap_err();
    assert!(matches!(lost, Trouble::Unreachable(_)), "{lost}");
    // Another may go on.
    drop(connected(&server, "").await);
}

#[tokio::test]
async fn a_table_in_debeziums_layout_is_read_by_its_ids() {
    let Some(server) = server("debezium").await else {
        return;
    };
    let create = "CREATE TABLE debezium (id binary(16) PRIMARY KEY, aggregatetype varchar(255), \
                  aggregateid varchar(255), type varchar(255), payload json)";
    server.run(&["DROP TABLE debezium", create]).await;
    for last in ["2", "1"] {
        let id = format!("UNHEX('0199000000007000800000000000000{last}')");
        let inserted = insert("debezium", "ID", "'1'").replace("'ID'", &id);
        server.run(&[&inserted]).await;
    }
    let mut open = connected(&server, "").await;
    let taken = drain(&mut open).await;
    let expected = ["1", "2"].map(|last| format!("01990000-0000-7000-8000-00000000000{last}"));
    assert_eq!(taken, expected);
    assert_eq!(open.settler.lag().await.unwrap().rows, 0);
    let findings = server.open("").check().await.unwrap();
    let [advice] = findings.as_slice() else {
        panic!("{findings:?}");
    };
    assert!(advice.advice && advice.problem.contains("does not number its rows"));
    // The remedy is one.
    server.run(&[advice.remedy.as_deref().unwrap()]).await;
    assert_eq!(server.open("").check().await.unwrap(), []);
}

#[tokio::test]
async fn what_this_user_or_this_table_cannot_do_is_said_with_what_mends_it() {
    let Some(server) = server("cannot").await else {
        return;
    };
    let url = server.user("only_reads", "SELECT").await;
    let findings = Mysql::new(&server.config(""), &url).check().await.unwrap();
    assert!(
        findings[0].problem.contains("cannot be settled"),
        "{findings:?}"
    );
    let grant = "GRANT SELECT, DELETE ON `wayhold`.`cannot` TO 'only_reads'@'127.0.0.1'";
    assert_eq!(findings[0].remedy.as_deref(), Some(grant));
    server.run(&[grant]).await;
    let findings = Mysql::new(&server.config(""), &url).check().await.unwrap();
    assert!(
        findings.iter().all(|finding| finding.advice),
        "{findings:?}"
    );

    server.run(&["ALTER TABLE cannot ENGINE = Aria"]).await;
    let findings = server.open("").check().await.unwrap();
    assert!(
        findings[0].problem.contains("engine is Aria"),
        "{findings:?}"
    );
    server.run(&[findings[0].remedy.as_deref().unwrap()]).await;
    assert_eq!(server.open("").check().await.unwrap(), []);

    // What is wrong with an address is told without the password in it.
    let wrong = server.url.replace("wayhold:wayhold@", "wayhold:hunter2@");
    let told = Mysql::new(&server.config(""), &wrong)
        .check()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        told.contains("Access denied") && !told.contains("hunter2"),
        "{told}"
    );
}

#[tokio::test]
async fn two_tables_with_long_names_have_two_locks() {
    let long = "x".repeat(60);
    for (letter, other) in [("a", "b"), ("b", "a")] {
        let Some(one) = server(&format!("{long}{letter}")).await else {
            return;
        };
        let open = connected(&one, "").await;
        let other = server(&format!("{long}{other}")).await.unwrap();
        let timely = tokio::time::timeout(Duration::from_secs(20), connected(&other, ""));
        drop(timely.await.unwrap());
        drop(open);
    }
}
