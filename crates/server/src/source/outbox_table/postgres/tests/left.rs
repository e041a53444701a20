//! Rows of the log that are refused: what stays in the table, what does not wait for it, and in which order it comes.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::port::{Connected, End};
use super::super::super::reader::Reading;
use super::super::super::rig::{Memory, until, way_in};
use super::super::super::row::Row;
use super::super::left::LEFT_MAX;
use super::logical::{clean, drain, keys};
use super::{OWN, Real, numbers, run_on};

const GRACE: Duration = Duration::from_secs(10);

/// A type that the rig's routes do not want.
const REFUSED: &str = "unwanted";

fn start(real: &Real, memory: &Arc<Memory>) -> Reading {
    let keys = keys(real);
    Reading::start(&real.config(&keys), real.database(&keys), way_in(memory))
}

/// Numbers of the events of one aggregate, in the order in which they came.
fn of_key(memory: &Memory, key: &str) -> Vec<u64> {
    let events = memory.events();
    let own = events.iter().filter(|event| event.key() == Some(key));
    own.map(|event| {
        let data: serde_json::Value = serde_json::from_slice(event.data()).unwrap();
        data["n"].as_u64().unwrap()
    })
    .collect()
}

/// A row that is refused until it is mended.
async fn insert_refused(real: &mut Real, number: u32, key: &str) {
    let sql = real.insertion(number, key).replace("created", REFUSED);
    real.run(&sql).await;
}

/// Two transactions that overlap: what was put in later is committed earlier.
async fn insert_crossed(real: &mut Real, first: (u32, &str), second: (u32, &str)) {
    let mut slow = real.another().await;
    run_on(&mut slow, "BEGIN").await;
    run_on(&mut slow, &real.insertion(first.0, first.1)).await;
    real.insert(second.0, second.1).await;
    run_on(&mut slow, "COMMIT").await;
}

#[tokio::test]
async fn a_refused_row_holds_up_its_aggregate_alone_and_commits_keep_their_order() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let memory = Arc::new(Memory::default());
    let mut reading = start(&real, &memory);
    real.insert(0, "b").await;
    until("it reads", || !memory.ids().is_empty()).await;
    insert_refused(&mut real, 1, "a").await;
    until("one is refused", || {
        reading.standing().snapshot().refused == 1
    })
    .await;
    // Each pair is committed the other way round than its places in the table say.
    insert_crossed(&mut real, (3, "a"), (2, "a")).await;
    insert_crossed(&mut real, (2, "b"), (1, "b")).await;
    until("b goes on", || of_key(&memory, "b").len() == 3).await;
    assert_eq!(of_key(&memory, "b"), [0, 1, 2]);
    // Also when the reader begins anew meanwhile.
    for round in 0..2 {
        if round == 1 {
            reading.stop(GRACE).await;
            reading = start(&real, &memory);
            until("it is refused again", || {
                reading.standing().snapshot().refused == 1
            })
            .await;
        }
        let (one, two) = (3 + 2 * round, 4 + 2 * round);
        insert_crossed(&mut real, (two, "b"), (one, "b")).await;
        insert_crossed(&mut real, (two + 1, "a"), (one + 1, "a")).await;
        until("b goes on", || {
            of_key(&memory, "b").len() == 5 + 2 * usize::try_from(round).unwrap()
        })
        .await;
    }
    assert_eq!(of_key(&memory, "b"), (0..7).collect::<Vec<_>>());
    assert!(of_key(&memory, "a").is_empty());
    real.run(&format!(
        "UPDATE {{t}} SET type = 'created' WHERE type = '{REFUSED}'"
    ))
    .await;
    reading.nudge();
    until("a goes on", || of_key(&memory, "a").len() == 7).await;
    assert_eq!(of_key(&memory, "a"), (1..8).collect::<Vec<_>>());
    // And from then on it comes by the log again.
    insert_crossed(&mut real, (9, "a"), (8, "a")).await;
    until("a comes by the log", || of_key(&memory, "a").len() == 9).await;
    assert_eq!(of_key(&memory, "a"), (1..10).collect::<Vec<_>>());
    let end = tokio::time::Instant::now() + GRACE;
    while real.count().await > 0 {
        assert!(tokio::time::Instant::now() < end, "rows stay in the table");
    }
    reading.stop(GRACE).await;
    clean(real).await;
}

#[tokio::test]
async fn a_refused_row_that_is_deleted_or_has_no_key_holds_nobody_up() {
    let columns = OWN.replace(
        "aggregateid varchar(255) NOT NULL",
        "aggregateid varchar(255)",
    );
    let Some(mut real) = Real::table(&columns).await else {
        return;
    };
    let memory = Arc::new(Memory::default());
    let reading = start(&real, &memory);
    real.insert(0, "b").await;
    until("it reads", || !memory.ids().is_empty()).await;
    let keyless = real.insertion(1, "").replace("created", REFUSED);
    real.run(&keyless.replace("''", "NULL")).await;
    insert_refused(&mut real, 1, "a").await;
    real.insert(2, "a").await;
    until("both are refused", || {
        reading.standing().snapshot().refused == 2
    })
    .await;
    real.run("DELETE FROM {t} WHERE aggregateid = 'a' AND payload = '{\"n\": 1}'")
        .await;
    reading.nudge();
    until("a goes on", || of_key(&memory, "a") == [2]).await;
    real.run(&format!(
        "UPDATE {{t}} SET type = 'created' WHERE type = '{REFUSED}'"
    ))
    .await;
    // Nobody waits for it, so it is looked at now and then only.
    until("the one without a key is taken", || memory.ids().len() == 3).await;
    reading.stop(GRACE).await;
    assert_eq!(real.count().await, 0);
    clean(real).await;
}

/// Reads a batch and accepts what is not of these keys, as the runner does.
async fn read_but(connected: &mut Connected, held: &[String]) -> (Vec<Row>, End) {
    let batch = connected.reader.next(held).await.unwrap();
    let is_held = |row: &Row| row.key.as_ref().is_some_and(|key| held.contains(key));
    let (stay, taken): (Vec<_>, Vec<_>) = batch.rows.into_iter().partition(is_held);
    let places: Vec<_> = taken.iter().map(|row| row.place.clone()).collect();
    if !places.is_empty() {
        connected.settler.settle(&places).await.unwrap();
    }
    for row in &stay {
        connected.reader.stays(row);
    }
    (taken, batch.end)
}

#[tokio::test]
async fn where_more_is_left_than_can_be_kept_the_table_is_read_and_nothing_is_lost() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let keys = keys(&real);
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    let held = ["a".to_owned()];
    let many = u32::try_from(LEFT_MAX).unwrap() + 1;
    real.run(&format!(
        "INSERT INTO {{t}} (aggregatetype, aggregateid, type, payload) \
         SELECT 'order', 'a', 'created', jsonb_build_object('n', n) FROM generate_series(1, {many}) n"
    ))
    .await;
    let mut others = Vec::new();
    for number in 0..3 {
        real.insert(number, "b").await;
        while others.len() <= usize::try_from(number).unwrap() {
            others.extend(read_but(&mut connected, &held).await.0);
        }
    }
    assert_eq!(numbers(&others), [0, 1, 2]);
    assert_eq!(real.count().await, i64::from(many));
    // Another reader goes on where this one is.
    drop(connected);
    let mut connected = real.connect(&keys).await;
    let all = drain(&mut connected).await;
    let first: Vec<_> = (1..=many).collect();
    assert_eq!(
        numbers(&all)[..first.len()],
        first,
        "and the log repeats some"
    );
    assert_eq!(real.count().await, 0);
    real.insert(7, "a").await;
    assert_eq!(numbers(&drain(&mut connected).await), [7]);
    drop(connected);
    clean(real).await;
}

#[tokio::test]
async fn rows_whose_ids_are_filled_up_with_blanks_are_settled_and_left_like_others() {
    let columns = OWN.replace(
        "id uuid PRIMARY KEY DEFAULT gen_random_uuid()",
        "id char(40) PRIMARY KEY DEFAULT gen_random_uuid()::text",
    );
    let Some(mut real) = Real::table(&columns).await else {
        return;
    };
    let keys = keys(&real);
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    let held = ["a".to_owned()];
    for (number, key) in [(1, "a"), (2, "b"), (3, "a")] {
        real.insert(number, key).await;
    }
    let mut others = Vec::new();
    while others.is_empty() {
        others.extend(read_but(&mut connected, &held).await.0);
    }
    assert_eq!((numbers(&others), real.count().await), (vec![2], 2));
    assert_eq!(numbers(&drain(&mut connected).await), [1, 3]);
    assert_eq!(real.count().await, 0);
    drop(connected);
    clean(real).await;
}
