//! What the runner makes of whatever a database does, over a table in memory; and what rows become.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fake::{Fake, FakeDatabase, row};
use super::mapping::Mapping;
use super::reader::{Reading, Surroundings};
use super::rig::{Memory, rules, source, until, way_in};
use super::row::{Column, Payload};
use super::standing::State;
use crate::config::Environment;
use crate::ingest::Admission;

const KEYS: &str = "url = \"postgres://localhost/app\"\npoll_interval = \"10ms\"";

fn start(fake: &Arc<Fake>, around: &Surroundings) -> Reading {
    let config = source(KEYS, &Environment::default());
    let database = Arc::new(FakeDatabase(Arc::clone(fake)));
    Reading::start(&config, database, around.clone())
}

fn ids(numbers: impl IntoIterator<Item = i64>) -> Vec<String> {
    numbers.into_iter().map(|n| format!("e{n}")).collect()
}

const GRACE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn rows_become_events_in_order_and_leave_the_table() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    fake.insert((0..10).map(|n| row(n, "k", "created")));
    let reading = start(&fake, &way_in(&memory));
    until("the table is empty", || fake.left().is_empty()).await;
    fake.insert((10..20).map(|n| row(n, "k", "created")));
    until("the table is empty again", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids(0..20));
    let snapshot = reading.standing().snapshot();
    assert_eq!((snapshot.state, snapshot.accepted), (State::Reading, 20));
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn a_refused_row_stays_is_named_and_holds_up_only_its_key() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    let around = way_in(&memory);
    fake.insert([
        row(1, "a", "unwanted"),
        row(2, "b", "created"),
        row(3, "a", "created"),
        row(4, "b", "created"),
        row(5, "a", "created"),
    ]);
    let reading = start(&fake, &around);
    until("the others are taken", || fake.left() == ids([1, 3, 5])).await;
    until("it is named", || reading.standing().snapshot().refused == 1).await;
    let snapshot = reading.standing().snapshot();
    assert_eq!(snapshot.refused_rows[0].id, "e1");
    assert_eq!(snapshot.refused_rows[0].key.as_deref(), Some("a"));
    assert!(snapshot.refused_rows[0].reason.contains("routes"));
    // A rule that wants it takes it, and then those that waited, in order.
    let all = "[[routes]]\nto = [\"a\"]\n";
    around.accept.follow(rules(all), Admission::unlimited());
    reading.nudge();
    until("all are taken", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids([2, 4, 1, 3, 5]));
    until("nothing is refused", || {
        reading.standing().snapshot().refused == 0
    })
    .await;
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn a_row_that_is_mended_in_its_table_is_taken() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    fake.insert([row(1, "a", ""), row(2, "a", "created")]);
    let reading = start(&fake, &way_in(&memory));
    until("it is refused", || {
        reading.standing().snapshot().refused == 1
    })
    .await;
    fake.mend(1, "created");
    reading.nudge();
    until("both are taken", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids([1, 2]));
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn an_id_that_comes_again_with_other_content_is_refused_alone() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    let mut again = row(2, "b", "created");
    again.id = Some("e1".to_owned());
    fake.insert([row(1, "a", "created")]);
    let reading = start(&fake, &way_in(&memory));
    until("the first is taken", || fake.left().is_empty()).await;
    fake.insert([row(0, "c", "created"), again, row(3, "c", "created")]);
    until("the others are taken", || fake.left() == ids([1])).await;
    until("it is named", || reading.standing().snapshot().refused == 1).await;
    assert_eq!(memory.ids(), ids([1, 0, 3]));
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn a_store_without_room_stops_reading_and_nothing_else() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    memory.full.store(true, Ordering::Relaxed);
    fake.insert((0..7).map(|n| row(n, "k", "created")));
    let reading = start(&fake, &way_in(&memory));
    let waits = || reading.standing().snapshot().state == State::Waiting;
    until("it waits", waits).await;
    assert_eq!((fake.left().len(), memory.ids().len()), (7, 0));
    memory.full.store(false, Ordering::Relaxed);
    until("the table is empty", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids(0..7));
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn a_lost_connection_costs_nothing_wherever_it_is_lost() {
    // As many batches as the rows have.
    for breaks_after in 1..5 {
        for loses_settling in [false, true] {
            let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
            fake.breaks_after.store(breaks_after, Ordering::Relaxed);
            fake.loses_settling.store(loses_settling, Ordering::Relaxed);
            fake.insert((0..11).map(|n| row(n, "k", "created")));
            let reading = start(&fake, &way_in(&memory));
            until("the table is empty", || fake.left().is_empty()).await;
            assert_eq!(memory.ids(), ids(0..11));
            assert!(fake.connected.load(Ordering::Relaxed) > 1);
            reading.stop(GRACE).await;
        }
    }
}

#[tokio::test]
async fn rows_of_open_transactions_wait_and_those_before_do_not() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    fake.open_from.store(4, Ordering::Relaxed);
    fake.insert((0..8).map(|n| row(n, "k", "created")));
    let reading = start(&fake, &way_in(&memory));
    until("those before are taken", || fake.left() == ids(4..8)).await;
    fake.open_from.store(usize::MAX, Ordering::Relaxed);
    until("the others are, too", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids(0..8));
    reading.stop(GRACE).await;
}

#[tokio::test]
async fn a_second_reader_stands_by_and_goes_on_where_the_first_ended() {
    let (fake, memory) = (Fake::new(), Arc::new(Memory::default()));
    let first = start(&fake, &way_in(&memory));
    let reads = || first.standing().snapshot().state == State::Reading;
    until("the first reads", reads).await;
    let second = start(&fake, &way_in(&memory));
    let stands_by = || second.standing().snapshot().state == State::Standby;
    until("the second stands by", stands_by).await;
    fake.insert([row(1, "k", "created")]);
    until("the first takes it", || fake.left().is_empty()).await;
    first.stop(GRACE).await;
    fake.insert([row(2, "k", "created")]);
    second.nudge();
    until("the second takes it", || fake.left().is_empty()).await;
    assert_eq!(memory.ids(), ids([1, 2]));
    second.stop(GRACE).await;
}

fn mapping(keys: &str) -> Mapping {
    let keys = format!("url = \"postgres://localhost/app\"\n{keys}");
    Mapping::new(&source(&keys, &Environment::default()))
}

/// The event of a row as text: attributes by name, then the data.
fn told(mapping: &Mapping, row: &super::Row) -> String {
    let mut draft = match mapping.draft(row) {
        Ok(draft) => draft,
        Err(refusal) => return refusal.to_string(),
    };
    let parts = draft.parts();
    format!(
        "{} {} {} {:?} {:?} {:?} {:?} {} {}",
        parts.id,
        parts.source,
        parts.kind,
        parts.subject,
        parts.key,
        parts.time,
        parts.content_type,
        parts.extensions,
        String::from_utf8_lossy(&parts.data)
    )
}

#[test]
fn a_row_becomes_an_event_by_the_layout() {
    let plain = row(1, "7", "OrderCreated");
    assert_eq!(
        told(&mapping(""), &plain),
        "e1 //erp/outbox/outboxevent/order OrderCreated \"7\" \"7\" \"\" \"application/json\" \
         {\"partitionkey\":\"7\",\"aggregatetype\":\"order\"} {\"n\":1}"
    );
    let mut timed = plain.clone();
    timed.timestamp = Some("2026-01-31T12:00:00.000000Z".to_owned());
    timed.schema_version = Some("3".to_owned());
    timed.route = Some("a b/c".to_owned());
    timed.payload = Payload::Text("hello".to_owned());
    assert_eq!(
        told(
            &mapping("server = \"shop\"\ntable = \"app.events\""),
            &timed
        ),
        "e1 //shop/outbox/events/a%20b%2Fc OrderCreated \"7\" \"7\" \"2026-01-31T12:00:00.000000Z\" \
         \"text/plain; charset=utf-8\" {\"partitionkey\":\"7\",\"aggregatetype\":\"a b/c\",\
         \"schemaversion\":\"3\"} hello"
    );
}

#[test]
fn the_routers_options_say_what_they_say_there() {
    let mut row = row(1, "7", "OrderCreated");
    row.additional = vec![
        Column::Text("OrderCreated".to_owned()),
        Column::Json("12".to_owned()),
        Column::Text("text/x".to_owned()),
    ];
    let placed = "\"table.fields.additional.placement\" = \
                  \"type:header:eventType,n:envelope:theN,ct:header:datacontenttype\"";
    assert!(
        told(&mapping(placed), &row).ends_with(
            "\"text/x\" {\"partitionkey\":\"7\",\"eventtype\":\"OrderCreated\",\
             \"aggregatetype\":\"order\"} {\"payload\":\"{\\\"n\\\":1}\",\"theN\":12}"
        ),
        "{}",
        told(&mapping(placed), &row)
    );
    let expanded = format!("{placed}\n\"table.expand.json.payload\" = true");
    assert!(told(&mapping(&expanded), &row).ends_with("{\"payload\":{\"n\":1},\"theN\":12}"));
    let partition = "\"table.fields.additional.placement\" = \"shard:partition\"";
    for (column, expected) in [
        (Column::Json("3".to_owned()), ",\"partition\":3"),
        (Column::Text("0".to_owned()), ",\"partition\":0"),
        (Column::Null, "\"aggregatetype\":\"order\"}"),
        (Column::Json("-1".to_owned()), "shard: expected the number"),
        (Column::Text("x".to_owned()), "shard: expected the number"),
    ] {
        row.additional = vec![column];
        let told = told(&mapping(partition), &row);
        assert!(told.contains(expected), "{told}");
    }
    // A column that is placed as an attribute is that attribute.
    let own_type = "\"table.fields.additional.placement\" = \"kind:header:type\"";
    row.additional = vec![Column::Text("Placed".to_owned())];
    assert!(told(&mapping(own_type), &row).contains("/order Placed "));
    row.additional.clear();
    let renamed = "route.topic.regex = \"ord(.*)\"\nroute.topic.replacement = \"to.$1\"";
    assert!(told(&mapping(renamed), &row).contains("\"topic\":\"to.er\""));
    let own = "\"route.topic.replacement\" = \"x.${routedByValue}\"";
    assert!(told(&mapping(own), &row).contains("\"topic\":\"x.order\""));
    let unmatched = "\"route.topic.regex\" = \"customer\"";
    assert!(told(&mapping(unmatched), &row).contains("route.topic.regex matches"));
    row.payload = Payload::Text("\"{\\\"a\\\":1}\"".to_owned());
    let expand = "\"table.expand.json.payload\" = true";
    assert!(told(&mapping(expand), &row).ends_with("{\"a\":1}"));
    row.payload = Payload::Null;
    let tombstones = "\"route.tombstone.on.empty.payload\" = true";
    assert!(told(&mapping(tombstones), &row).contains("\"tombstone\":true"));
    assert!(!told(&mapping(""), &row).contains("tombstone"));
    let quoted = mapping("content_type = \"application/avro\"");
    row.payload = Payload::Binary(vec![b'x']);
    assert!(told(&quoted, &row).contains("\"application/avro\""));
}

#[test]
fn a_column_without_a_value_is_named() {
    let whole = row(1, "7", "OrderCreated");
    let mapping = mapping("\"table.field.event.id\" = \"event_id\"");
    for (row, told_column) in [
        (
            super::Row {
                id: None,
                ..whole.clone()
            },
            "event_id",
        ),
        (
            super::Row {
                kind: Some(String::new()),
                ..whole.clone()
            },
            "type",
        ),
        (
            super::Row {
                route: None,
                ..whole.clone()
            },
            "aggregatetype",
        ),
    ] {
        let told = told(&mapping, &row);
        assert!(told.starts_with(told_column), "{told}");
    }
    let unordered = super::Row { key: None, ..whole };
    assert!(
        told(&mapping, &unordered).contains("\"\" \"\" \"\""),
        "no subject and no key"
    );
}
