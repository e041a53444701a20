//! What every reader of a table must do, over the real database: PostgreSQL by its table and by its log, MariaDB, SQLite. Each test
//! has a table of its own.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::port::{Batch, Connected, Database, End, Trouble};
use super::row::{Column, Payload, Row};

/// A real database with a table of the test's own.
pub(super) trait Ground {
    /// The table's name.
    fn table(&self) -> &str;
    /// What reads it, with these keys of the configuration besides.
    fn open(&self, keys: &str) -> Arc<dyn Database>;
    /// Runs statements as the application would, each in its own transaction.
    fn run<'a>(&'a self, statements: &'a [&'a str]) -> BoxFuture<'a, ()>;
    /// The ids in the table, in the order of ids.
    fn ids(&self) -> BoxFuture<'_, Vec<String>>;
    /// Takes away what the test leaves, where that is more than its table.
    fn clean(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A statement that inserts an event.
pub(super) fn insert(table: &str, id: &str, aggregate: &str) -> String {
    format!(
        "INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) \
         VALUES ('{id}', 'order', {aggregate}, 'placed', '{{\"n\": 1}}')"
    )
}

pub(super) async fn insert_all(ground: &dyn Ground, rows: &[(&str, &str)]) {
    for (id, aggregate) in rows {
        ground.run(&[&insert(ground.table(), id, aggregate)]).await;
    }
}

/// The ids of rows, in their order.
pub(super) fn ids_of(rows: &[Row]) -> Vec<&str> {
    let ids = rows.iter().map(|row| row.id.as_deref());
    ids.map(|id| id.expect("every row has an id")).collect()
}

/// The ids of a batch, in its order.
pub(super) fn ids(batch: &Batch) -> Vec<&str> {
    ids_of(&batch.rows)
}

/// The rows of one sweep, or of its beginning where the reader begins anew behind what is settled. Nothing is.
pub(super) async fn sweep(open: &mut Connected, without: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    loop {
        let batch = open.reader.next(without).await.unwrap();
        rows.extend(batch.rows);
        if batch.end != End::More {
            return rows;
        }
    }
}

/// Everything that is read and settled until nothing is left, in order.
pub(super) async fn drain(open: &mut Connected) -> Vec<String> {
    let batches = drain_batches(open).await;
    batches.into_iter().flatten().collect()
}

/// The same batch by batch.
async fn drain_batches(open: &mut Connected) -> Vec<Vec<String>> {
    let mut taken = Vec::new();
    loop {
        let batch = open.reader.next(&[]).await.unwrap();
        taken.push(ids(&batch).into_iter().map(str::to_owned).collect());
        let places: Vec<_> = batch.rows.iter().map(|row| row.place.clone()).collect();
        if !places.is_empty() {
            open.settler.settle(&places).await.unwrap();
        }
        if batch.end == End::Empty {
            return taken;
        }
    }
}

pub(super) async fn every_column_comes_and_rows_are_in_order(ground: &dyn Ground) {
    insert_all(ground, &[("c", "'1'"), ("a", "'2'"), ("b", "NULL")]).await;
    let mut open = connected(ground, "").await;
    let rows = sweep(&mut open, &[]).await;
    assert_eq!(ids_of(&rows), ["c", "a", "b"]);
    let row = &rows[0];
    assert_eq!(row.route.as_deref(), Some("order"));
    assert_eq!(row.key.as_deref(), Some("1"));
    assert_eq!(row.kind.as_deref(), Some("placed"));
    let json = Payload::Json("{\"n\": 1}".to_owned());
    let text = Payload::Text("{\"n\": 1}".to_owned());
    assert!(
        row.payload == json || row.payload == text,
        "{:?}",
        row.payload
    );
    assert_eq!(rows[2].key, None);
    assert_eq!(ground.ids().await, ["a", "b", "c"], "nothing is settled");
}

pub(super) async fn what_is_settled_is_gone_and_nothing_else(ground: &dyn Ground) {
    insert_all(ground, &[("a", "'1'"), ("b", "'1'"), ("c", "'1'")]).await;
    let mut open = connected(ground, "").await;
    let rows = sweep(&mut open, &[]).await;
    let middle = rows[1].place.clone();
    for _ in 0..2 {
        // A row that is gone already is no fault.
        open.settler
            .settle(std::slice::from_ref(&middle))
            .await
            .unwrap();
        assert_eq!(ground.ids().await, ["a", "c"]);
    }
    assert_eq!(open.settler.lag().await.unwrap().rows, 2);
    for row in [&rows[0], &rows[2]] {
        open.reader.stays(row);
    }
    insert_all(ground, &[("b", "'1'")]).await;
    assert_eq!(drain(&mut open).await, ["a", "c", "b"]);
    assert!(ground.ids().await.is_empty());
}

pub(super) async fn rows_of_keys_that_wait_are_left_out(ground: &dyn Ground) {
    let rows = [("a", "'x'"), ("b", "'X'"), ("c", "NULL"), ("d", "'x'")];
    insert_all(ground, &rows).await;
    let mut open = connected(ground, "batch_rows = 2").await;
    let rows = sweep(&mut open, &["x".to_owned()]).await;
    assert_eq!(ids_of(&rows), ["b", "c"]);
    let both = ["X".to_owned(), "x".to_owned()];
    let rows = sweep(&mut open, &both).await;
    assert_eq!(ids_of(&rows), ["c"]);
    open.reader.abandon().await.unwrap();
    let mut all = drain(&mut open).await;
    all.sort_unstable();
    assert_eq!(all, ["a", "b", "c", "d"]);
}

pub(super) async fn batches_are_bounded(ground: &dyn Ground) {
    for (bound, most, size) in [
        ("batch_rows = 2", 2, 1),
        ("batch_bytes = \"1KiB\"", 1, 2_000),
    ] {
        for id in ["a", "b", "c", "d", "e"] {
            // A large row goes alone, however large it is.
            let insertion = insert(ground.table(), id, "'1'");
            let large = format!("\"{}\"", "x".repeat(size));
            ground
                .run(&[&insertion.replace("{\"n\": 1}", &large)])
                .await;
        }
        let mut open = connected(ground, bound).await;
        let first = open.reader.next(&[]).await.unwrap();
        assert!(matches!(first.end, End::More | End::Again), "{bound}");
        open.reader.abandon().await.unwrap();
        let batches = drain_batches(&mut open).await;
        let largest = batches.iter().map(Vec::len).max();
        assert!(largest <= Some(most), "{bound}: {batches:?}");
        assert_eq!(batches.concat(), ["a", "b", "c", "d", "e"], "{bound}");
        assert!(ground.ids().await.is_empty());
    }
}

pub(super) async fn one_reads_at_a_time(ground: &dyn Ground) {
    let open = connected(ground, "").await;
    let database = ground.open("");
    let second = database.connect().await.map(|_| ()).unwrap_err();
    assert_eq!(second, Trouble::Elsewhere);
    // A check takes no lock.
    let findings = database.check().await.unwrap();
    assert!(findings.iter().all(|one| one.advice), "{findings:?}");
    drop(open);
    drop(connected(ground, "").await);
}

pub(super) async fn rows_can_be_marked(ground: &dyn Ground, mark: &str) {
    insert_all(ground, &[("a", "'1'"), ("b", "'1'")]).await;
    let keys = format!("after_accept = \"mark\"\nmark_column = \"{mark}\"");
    let mut open = connected(ground, &keys).await;
    assert_eq!(drain(&mut open).await, ["a", "b"]);
    assert_eq!(ground.ids().await, ["a", "b"]);
    assert_eq!(open.settler.lag().await.unwrap().rows, 0);
    insert_all(ground, &[("c", "'1'")]).await;
    assert_eq!(drain(&mut open).await, ["c"]);
}

/// The table has columns `happened` (a time that is 2026-01-02 03:04:05.5), `version` (3), `trace` ('t').
pub(super) async fn other_columns_travel(ground: &dyn Ground) {
    insert_all(ground, &[("a", "'1'")]).await;
    let keys = "\"table.field.event.timestamp\" = \"happened\"\n\
                \"table.field.event.schema.version\" = \"version\"\n\
                \"table.fields.additional.placement\" = \
                \"trace:header:traceparent,version:envelope,version:partition\"";
    let mut open = connected(ground, keys).await;
    let rows = sweep(&mut open, &[]).await;
    let row = &rows[0];
    let time = row.timestamp.as_deref().unwrap_or_default();
    assert!(time.starts_with("2026-01-02T03:04:05.5"), "{time}");
    assert!(time.ends_with('Z'), "{time}");
    assert_eq!(row.schema_version.as_deref(), Some("3"));
    let number = Column::Json("3".to_owned());
    let expected = [Column::Text("t".to_owned()), number.clone(), number];
    assert_eq!(row.additional, expected);
    let oldest = open.settler.lag().await.unwrap().oldest.unwrap();
    assert!(oldest.as_secs() > 86_400, "{oldest:?}");
}

pub(super) async fn what_is_missing_is_said(ground: &dyn Ground) {
    let database = ground.open("\"table.field.event.type\" = \"event_type\"\norder_by = \"born\"");
    let findings = database.check().await.unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    for (finding, column) in findings.iter().zip(["event_type", "born"]) {
        let problem = &finding.problem;
        assert!(problem.contains(ground.table()), "{problem}");
        assert!(
            problem.contains(&format!("has no column {column}")),
            "{problem}"
        );
        assert!(!finding.advice);
    }
    assert!(matches!(database.connect().await, Err(Trouble::Misfit(found)) if found == findings));
    ground
        .run(&[&format!("DROP TABLE {}", ground.table())])
        .await;
    let findings = ground.open("").check().await.unwrap();
    let problem = &findings[0].problem;
    assert!(problem.starts_with("there is no table"), "{problem}");
    let remedy = findings[0].remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains("wayhold outbox-table sql"), "{remedy}");
}

/// A connection, once the one before has let the lock go, which a server notices in its own time.
pub(super) async fn connected(ground: &dyn Ground, keys: &str) -> Connected {
    for _ in 0..1_000 {
        match ground.open(keys).connect().await {
            Ok(open) => return open,
            Err(Trouble::Elsewhere) => {}
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the lock was never free");
}

/// A test for each function of the suite, over the ground that an expression makes.
macro_rules! of_suite {
    ($ground:ident: $($name:ident $(($argument:expr))?),* $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            if let Some(ground) = $ground(stringify!($name)).await {
                crate::source::outbox_table::suite::$name(&ground $(, $argument)?).await;
                crate::source::outbox_table::suite::Ground::clean(&ground).await;
            }
        }
    )*};
}
pub(super) use of_suite;
