//! The suite over files, and what is SQLite's own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rusqlite::Connection;

use super::Sqlite;
use crate::config::Environment;
use crate::source::outbox_table::port::Database;
use crate::source::outbox_table::rig::source;
use crate::source::outbox_table::suite::{self, Ground, connected, drain, insert, insert_all};

const TABLE: &str = "outboxevent";

struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn with(create: &str) -> Self {
        let file = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let application = file.application();
        application
            .pragma_update(None, "journal_mode", "WAL")
            .unwrap();
        application.execute_batch(create).unwrap();
        file
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.db")
    }

    fn application(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

impl Ground for File {
    fn table(&self) -> &str {
        TABLE
    }

    fn open(&self, keys: &str) -> Arc<dyn Database> {
        let keys = format!("url = \"sqlite:{}\"\n{keys}", self.path().display());
        let config = source(&keys, &Environment::default());
        Arc::new(Sqlite::new(&config, self.path()))
    }

    fn run<'a>(&'a self, statements: &'a [&'a str]) -> BoxFuture<'a, ()> {
        async move {
            for statement in statements {
                self.application().execute_batch(statement).unwrap();
            }
        }
        .boxed()
    }

    fn ids(&self) -> BoxFuture<'_, Vec<String>> {
        async {
            let application = self.application();
            let mut ids = application
                .prepare("SELECT id FROM outboxevent ORDER BY id")
                .unwrap();
            let ids = ids.query_map([], |row| row.get(0)).unwrap();
            ids.map(Result::unwrap).collect()
        }
        .boxed()
    }
}

/// The table as we print it, but aggregates may be missing, and with what the suite asks for.
fn create() -> String {
    let table = wayhold_outbox::Table::new(TABLE).unwrap();
    let script = table.create_script(wayhold_outbox::Database::Sqlite);
    let script = script.replace("\"aggregateid\" TEXT NOT NULL", "\"aggregateid\" TEXT");
    script
        + "ALTER TABLE outboxevent ADD COLUMN sent_at TEXT;
           ALTER TABLE outboxevent ADD COLUMN is_sent BOOLEAN NOT NULL DEFAULT 0;
           ALTER TABLE outboxevent ADD COLUMN happened TEXT DEFAULT '2026-01-02 03:04:05.5';
           ALTER TABLE outboxevent ADD COLUMN version INTEGER DEFAULT 3;
           ALTER TABLE outboxevent ADD COLUMN trace TEXT DEFAULT 't';"
}

#[expect(
    clippy::unused_async,
    reason = "the suite waits for servers, and a file is there at once"
)]
async fn file(_test: &str) -> Option<File> {
    Some(File::with(&create()))
}

suite::of_suite!(file:
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
    suite::rows_can_be_marked(&File::with(&create()), "is_sent").await;
}

#[tokio::test]
async fn a_commit_of_the_application_wakes_the_reader_and_its_own_does_not() {
    let file = File::with(&create());
    insert_all(&file, &[("a", "'1'")]).await;
    let mut open = connected(&file, "").await;
    assert_eq!(drain(&mut open).await, ["a"]);
    let asleep = tokio::time::timeout(Duration::from_millis(300), open.waker.woken()).await;
    assert!(asleep.is_err(), "woken by what it did itself");
    // Before it is asked, so that no moment is lost between a sweep and the wait.
    insert_all(&file, &[("b", "'1'")]).await;
    open.waker.woken().await.unwrap();
    assert_eq!(drain(&mut open).await, ["b"]);
}

#[tokio::test]
async fn a_transaction_that_is_open_is_waited_for_and_not_the_other_way_round() {
    let file = File::with(&create());
    insert_all(&file, &[("a", "'1'"), ("b", "'1'")]).await;
    let mut open = connected(&file, "").await;
    let mut application = file.application();
    application.busy_timeout(Duration::ZERO).unwrap();

    // A writer does not keep the reader from reading, and what it has written is not seen.
    let writing = application.transaction().unwrap();
    writing.execute(&insert(TABLE, "ghost", "'1'"), []).unwrap();
    let batch = open.reader.next(&[]).await.unwrap();
    assert_eq!(suite::ids(&batch), ["a", "b"]);
    // Settling waits for its end.
    let place = batch.rows[0].place.clone();
    let settling = tokio::spawn(async move {
        open.settler.settle(&[place]).await.unwrap();
        open
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!settling.is_finished());
    writing.rollback().unwrap();
    let mut open = settling.await.unwrap();
    assert_eq!(file.ids().await, ["b"]);

    // With a batch in hand the reader is in nobody's way, not even without patience.
    let _batch = open.reader.next(&[]).await.unwrap();
    application.execute(&insert(TABLE, "c", "'1'"), []).unwrap();
    assert_eq!(drain(&mut open).await, ["b", "c"]);
}

#[tokio::test]
async fn a_number_that_is_given_again_settles_no_other_row() {
    // Debezium's columns alone: rows have numbers, and the last one's is given again.
    let file = File::with(
        "CREATE TABLE outboxevent (id TEXT PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, \
         type TEXT, payload JSON)",
    );
    insert_all(&file, &[("z", "'1'"), ("a", "'1'")]).await;
    let mut open = connected(&file, "").await;
    let batch = open.reader.next(&[]).await.unwrap();
    assert_eq!(suite::ids(&batch), ["z", "a"], "in the order of inserts");
    let last = batch.rows[1].place.clone();
    file.run(&["DELETE FROM outboxevent WHERE id = 'a'"]).await;
    insert_all(&file, &[("b", "'1'")]).await;
    open.settler.settle(&[last]).await.unwrap();
    assert_eq!(drain(&mut open).await, ["z", "b"]);
}

#[tokio::test]
async fn ids_of_bytes_are_told_as_uuids_and_settled() {
    let file = File::with(
        "CREATE TABLE outboxevent (id BLOB PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, \
         type TEXT, payload TEXT) WITHOUT ROWID",
    );
    let id = "x'01990000000070008000000000000001'";
    let inserted = insert(TABLE, "ID", "'1'").replace("'ID'", id);
    file.run(&[&inserted]).await;
    let mut open = connected(&file, "").await;
    let taken = drain(&mut open).await;
    assert_eq!(taken, ["01990000-0000-7000-8000-000000000001"]);
    assert_eq!(open.settler.lag().await.unwrap().rows, 0);
    let findings = file.open("").check().await.unwrap();
    assert!(findings[0].advice && findings[0].problem.contains("WITHOUT ROWID"));
}

#[tokio::test]
async fn a_table_whose_rows_cannot_be_told_apart_is_not_read() {
    let file = File::with(
        "PRAGMA journal_mode = DELETE;
         CREATE TABLE outboxevent (id TEXT, aggregatetype TEXT, aggregateid TEXT, type TEXT, payload TEXT)",
    );
    let findings = file.open("").check().await.unwrap();
    assert!(findings[0].problem.contains("unique id"), "{findings:?}");
    let remedy = findings[0].remedy.clone().unwrap();
    file.run(&[&remedy]).await;
    let findings = file.open("").check().await.unwrap();
    let [journal] = findings.as_slice() else {
        panic!("{findings:?}");
    };
    assert!(journal.advice && journal.problem.contains("journal is delete"));
    drop(connected(&file, "").await);
}
