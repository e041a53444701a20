//! What every database that is read by sweeps from the front must do, over the real one. Each test has a
//! table of its own.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::port::{Batch, Connected, Database, End, Trouble};
use super::row::{Column, Payload};

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

/// The ids of a batch, in its order.
pub(super) fn ids(batch: &Batch) -> Vec<&str> {
    let ids = batch.rows.iter().map(|row| row.id.as_deref());
    ids.map(|id| id.expect("every row has an id")).collect()
}

/// Everything that is read and settled until nothing is left, in order.
pub(super) async fn drain(open: &mut Connected) -> Vec<String> {
    let mut taken = Vec::new();
    loop {
        let batch = open.reader.next(&[]).await.unwrap();
        taken.extend(ids(&batch).into_iter().map(str::to_owned));
        let places: Vec<_> = batch.rows.iter().map(|row| row.place.clone()).collect();
        open.settler.settle(&places).await.unwrap();
        if batch.end == End::Empty {
            return taken;
        }
    }
}

pub(super) async fn every_column_comes_and_rows_are_in_order(ground: &dyn Ground) {
    insert_all(ground, &[("c", "'1'"), ("a", "'2'"), ("b", "NULL")]).await;
    let mut open = ground.open("").connect().await.unwrap();
    let batch = open.reader.next(&[]).await.unwrap();
    assert_eq!((ids(&batch), batch.end), (vec!["c", "a", "b"], End::Empty));
    let row = &batch.rows[0];
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
    assert_eq!(batch.rows[2].key, None);
}

pub(super) async fn what_is_settled_is_gone_and_nothing_else(ground: &dyn Ground) {
    insert_all(ground, &[("a", "'1'"), ("b", "'1'"), ("c", "'1'")]).await;
    let mut open = ground.open("").connect().await.unwrap();
    let batch = open.reader.next(&[]).await.unwrap();
    let middle = batch.rows[1].place.clone();
    for _ in 0..2 {
        // A row that is gone already is no fault.
        open.settler
            .settle(std::slice::from_ref(&middle))
            .await
            .unwrap();
        assert_eq!(ground.ids().await, ["a", "c"]);
    }
    assert_eq!(open.settler.lag().await.unwrap().rows, 2);
    insert_all(ground, &[("b", "'1'")]).await;
    assert_eq!(drain(&mut open).await, ["a", "c", "b"]);
    assert!(ground.ids().await.is_empty());
}

pub(super) async fn rows_of_keys_that_wait_are_left_out(ground: &dyn Ground) {
    let rows = [("a", "'x'"), ("b", "'X'"), ("c", "NULL"), ("d", "'x'")];
    insert_all(ground, &rows).await;
    let mut open = ground.open("batch_rows = 2").connect().await.unwrap();
    let batch = open.reader.next(&["x".to_owned()]).await.unwrap();
    assert_eq!((ids(&batch), batch.end), (vec!["b", "c"], End::Empty));
    let both = ["X".to_owned(), "x".to_owned()];
    let batch = open.reader.next(&both).await.unwrap();
    assert_eq!((ids(&batch), batch.end), (vec!["c"], End::Empty));
}

pub(super) async fn batches_are_bounded(ground: &dyn Ground) {
    let rows = [
        ("a", "'1'"),
        ("b", "'2'"),
        ("c", "'3'"),
        ("d", "'4'"),
        ("e", "'5'"),
    ];
    insert_all(ground, &rows).await;
    {
        let mut open = ground.open("batch_rows = 2").connect().await.unwrap();
        let batch = open.reader.next(&[]).await.unwrap();
        assert_eq!((ids(&batch), batch.end), (vec!["a", "b"], End::Again));
    }
    // A large row goes alone, however large it is.
    let payload = format!(
        "UPDATE {} SET payload = '\"{}\"'",
        ground.table(),
        "x".repeat(2_000)
    );
    ground.run(&[&payload]).await;
    let mut open = connected(ground, "batch_bytes = \"1KiB\"").await;
    let batch = open.reader.next(&[]).await.unwrap();
    assert_eq!((ids(&batch), batch.end), (vec!["a"], End::Again));
    assert_eq!(drain(&mut open).await, ["a", "b", "c", "d", "e"]);
}

pub(super) async fn one_reads_at_a_time(ground: &dyn Ground) {
    let database = ground.open("");
    let open = database.connect().await.unwrap();
    let second = database.connect().await.map(|_| ()).unwrap_err();
    assert_eq!(second, Trouble::Elsewhere);
    assert_eq!(database.check().await.unwrap(), [], "a check takes no lock");
    drop(open);
    drop(connected(ground, "").await);
}

pub(super) async fn rows_can_be_marked(ground: &dyn Ground, mark: &str) {
    insert_all(ground, &[("a", "'1'"), ("b", "'1'")]).await;
    let keys = format!("after_accept = \"mark\"\nmark_column = \"{mark}\"");
    let mut open = ground.open(&keys).connect().await.unwrap();
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
                \"table.fields.additional.placement\" = \"trace:header:traceparent,version:envelope\"";
    let mut open = ground.open(keys).connect().await.unwrap();
    let batch = open.reader.next(&[]).await.unwrap();
    let row = &batch.rows[0];
    let time = row.timestamp.as_deref().unwrap_or_default();
    assert!(time.starts_with("2026-01-02T03:04:05.5"), "{time}");
    assert!(time.ends_with('Z'), "{time}");
    assert_eq!(row.schema_version.as_deref(), Some("3"));
    let expected = [Column::Text("t".to_owned()), Column::Json("3".to_owned())];
    assert_eq!(row.additional, expected);
    let oldest = open.settler.lag().await.unwrap().oldest.unwrap();
    assert!(oldest.as_secs() > 86_400, "{oldest:?}");
}

pub(super) async fn what_is_missing_is_said(ground: &dyn Ground) {
    let database = ground.open("\"table.field.event.type\" = \"event_type\"\norder_by = \"born\"");
    let findings = database.check().await.unwrap();
    let told: Vec<_> = findings.iter().map(|one| one.problem.as_str()).collect();
    let lacks = |column| format!("the table {} has no column {column}", ground.table());
    assert_eq!(told, [lacks("event_type"), lacks("born")]);
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
            }
        }
    )*};
}
pub(super) use of_suite;
