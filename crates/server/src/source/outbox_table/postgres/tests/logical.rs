//! The log: order of commits, what was there before, and slots that are lost.

use super::super::super::port::{Connected, Database as _, End, Trouble};
use super::super::super::row::{Place, Row};
use super::{OWN, Real, numbers, run_on};

pub(super) fn keys(real: &Real) -> String {
    format!("{}\nbatch_rows = 100", slot_keys(real))
}

/// Keys that have a slot of the test's own read.
pub(super) fn slot_keys(real: &Real) -> String {
    let name = &real.table;
    format!("mode = \"logical\"\nslot = \"{name}\"\npublication = \"{name}\"")
}

/// Reads until nothing is left, and settles it.
pub(super) async fn drain(connected: &mut Connected) -> Vec<Row> {
    let (mut all, mut empty) = (Vec::new(), 0);
    // The first sweep that finds nothing ends reading the table, the next one reads the log.
    while empty < 3 {
        let batch = connected.reader.next(&[]).await.unwrap();
        let places: Vec<Place> = batch.rows.iter().map(|row| row.place.clone()).collect();
        if !places.is_empty() {
            connected.settler.settle(&places).await.unwrap();
        }
        empty = match batch.rows.is_empty() && batch.end != End::More {
            true => empty + 1,
            false => 0,
        };
        all.extend(batch.rows);
    }
    all
}

/// Takes away slot and publication, as soon as nobody uses them any more.
pub(super) async fn drop_slot(real: &Real) {
    let mut application = real.another().await;
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let sql = "SELECT count(*) FILTER (WHERE active) FROM pg_replication_slots \
                   WHERE slot_name = $1";
        let active: i64 = sqlx::query_scalar(sql)
            .bind(&real.table)
            .fetch_one(&mut application)
            .await
            .unwrap();
        if active == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "the slot stays in use");
    }
    let name = &real.table;
    let slot = format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
    );
    run_on(&mut application, &slot).await;
    run_on(
        &mut application,
        &format!("DROP PUBLICATION IF EXISTS {name}"),
    )
    .await;
}

pub(super) async fn clean(real: Real) {
    drop_slot(&real).await;
    real.drop().await;
}

#[tokio::test]
async fn rows_come_in_the_order_of_their_commits() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    real.insert(0, "a").await;
    let keys = keys(&real);
    let mut connected = real.connect(&keys).await;
    assert_eq!(
        numbers(&drain(&mut connected).await),
        [0],
        "what was there before"
    );
    let mut slow = real.another().await;
    run_on(&mut slow, "BEGIN").await;
    run_on(&mut slow, &real.insertion(1, "a")).await;
    real.insert(2, "a").await;
    assert_eq!(numbers(&drain(&mut connected).await), [2]);
    run_on(&mut slow, &real.insertion(3, "a")).await;
    run_on(&mut slow, "COMMIT").await;
    real.run("BEGIN").await;
    real.insert(4, "a").await;
    real.run("ROLLBACK").await;
    assert_eq!(numbers(&drain(&mut connected).await), [1, 3]);
    assert_eq!(real.count().await, 0);
    let lag = connected.settler.lag().await.unwrap();
    assert!(lag.rows == 0 && lag.log_bytes.is_some(), "{lag:?}");
    drop(connected);
    clean(real).await;
}

#[tokio::test]
async fn what_is_not_settled_comes_again_and_what_is_does_not() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let keys = keys(&real);
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    for number in 0..250 {
        real.insert(number, "a").await;
    }
    let first = connected.reader.next(&[]).await.unwrap();
    assert!(!first.rows.is_empty() && first.end == End::More);
    drop(connected);
    let mut connected = real.connect(&keys).await;
    let all = drain(&mut connected).await;
    assert_eq!(numbers(&all), (0..250).collect::<Vec<_>>());
    drop(connected);
    let mut connected = real.connect(&keys).await;
    assert!(drain(&mut connected).await.is_empty());
    drop(connected);
    clean(real).await;
}

#[tokio::test]
async fn a_row_that_its_transaction_deletes_again_is_read_where_rows_are_kept() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let keys = format!("{}\nafter_accept = \"keep\"", keys(&real));
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    let insertion = real.insertion(1, "a");
    real.run(&format!("BEGIN; {insertion} DELETE FROM {{t}}; COMMIT"))
        .await;
    real.insert(2, "a").await;
    assert_eq!(numbers(&drain(&mut connected).await), [1, 2]);
    assert_eq!(real.count().await, 1);
    drop(connected);
    clean(real).await;
}

#[tokio::test]
async fn a_slot_that_is_lost_stops_reading_and_says_what_to_do() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let keys = keys(&real);
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    drop(connected);
    real.run("SELECT pg_drop_replication_slot('{t}')").await;
    real.insert(1, "a").await;
    let told = loop {
        match real.database(&keys).connect().await {
            Err(Trouble::Elsewhere) => {}
            Err(trouble) => break trouble,
            Ok(_) => panic!("it goes on by another slot"),
        }
    };
    let Trouble::Lost { problem, remedy } = &told else {
        panic!("{told}");
    };
    assert!(problem.contains("is gone"), "{problem}");
    assert!(remedy.contains("COMMENT ON PUBLICATION"), "{remedy}");
    real.run("COMMENT ON PUBLICATION {t} IS NULL").await;
    let mut connected = real.connect(&keys).await;
    assert_eq!(numbers(&drain(&mut connected).await)[..1], [1]);
    drop(connected);
    clean(real).await;
}

#[tokio::test]
async fn a_row_is_the_same_however_it_is_read() {
    let columns = "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid bigint, \
                   type boolean, payload jsonb, at timestamptz, day date, amount numeric, share float8, \
                   bytes bytea, urgent boolean, nothing text, padded char(9) DEFAULT 'p', \
                   position bigint GENERATED ALWAYS AS IDENTITY";
    let Some(mut real) = Real::table(columns).await else {
        return;
    };
    let placed = "\"table.fields.additional.placement\" = \"at:envelope,day:envelope,amount:envelope,\
                  share:envelope,bytes:envelope,urgent:envelope,nothing:envelope,padded:header\"\n\
                  \"table.field.event.timestamp\" = \"at\"";
    let keys = format!("{}\n{placed}", keys(&real));
    let mut connected = real.connect(&keys).await;
    drain(&mut connected).await;
    real.run(
        "INSERT INTO {t} (aggregatetype, aggregateid, type, payload, at, day, amount, share, bytes, urgent) \
         SELECT 'it''s', 7, true, '{\"b\": [1, 2.50]}', '2026-01-31 13:00:00.25+01', '2026-01-31', 12.50, \
                share, decode(repeat('00ff', 60), 'hex'), false \
         FROM unnest(ARRAY[0.1, 'NaN', '-Infinity', 1e300]::float8[]) share",
    )
    .await;
    let mut from_log = Vec::new();
    while from_log.len() < 4 {
        from_log.extend(connected.reader.next(&[]).await.unwrap().rows);
    }
    drop(connected);
    let poll = format!("batch_rows = 100\n{placed}");
    let mut from_table = real.drain(&poll).await;
    assert_eq!(from_table.len(), 4);
    for (one, other) in from_table.iter_mut().zip(&from_log) {
        one.place = other.place.clone();
        assert_eq!(one, other);
    }
    clean(real).await;
}
