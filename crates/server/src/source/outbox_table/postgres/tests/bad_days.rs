//! The whole source through bad days: connections that are ended, a database that is killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use super::super::super::reader::Reading;
use super::super::super::rig::{Memory, until, way_in};
use super::super::super::standing::State;
use super::{OWN, Real, run_on};

const GRACE: Duration = Duration::from_secs(10);

fn start(real: &Real, memory: &Arc<Memory>) -> Reading {
    let keys = "batch_rows = 50";
    Reading::start(&real.config(keys), real.database(keys), way_in(memory))
}

/// Ids that the database's own client counted as committed.
async fn committed(real: &mut Real) -> BTreeSet<String> {
    let sql = format!("SELECT id FROM {}_committed", real.table);
    let ids: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .fetch_all(&mut real.application)
        .await
        .unwrap();
    ids.into_iter().collect()
}

/// Inserts an event and a note of it in one transaction; every third is rolled back.
fn transaction(real: &Real, number: u32) -> String {
    let end = if number.is_multiple_of(3) {
        "ROLLBACK"
    } else {
        "COMMIT"
    };
    format!(
        "BEGIN; WITH one AS (INSERT INTO {table} (aggregatetype, aggregateid, type, payload) \
         VALUES ('order', '{key}', 'created', '{{\"n\": {number}}}') RETURNING id) \
         INSERT INTO {table}_committed SELECT id::text FROM one; {end}",
        table = real.table,
        key = number % 5,
    )
}

#[tokio::test]
async fn connections_that_are_ended_cost_no_row_and_bring_no_ghost() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    real.run("CREATE TABLE {t}_committed (id text)").await;
    let memory = Arc::new(Memory::default());
    let reading = start(&real, &memory);
    let reads = || reading.standing().snapshot().state == State::Reading;
    until("it reads", reads).await;
    for number in 0..600 {
        let sql = transaction(&real, number);
        real.run(&sql).await;
        if number % 60 == 59 {
            real.run(
                // The one that reads, and the one that settles; others have connections of that name, too.
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE application_name = 'wayhold erp' AND (query LIKE '%{t}%' OR pid IN (\
                     SELECT pid FROM pg_locks \
                     WHERE locktype = 'advisory' AND objid = '{t}'::regclass::oid))",
            )
            .await;
        }
    }
    let committed = committed(&mut real).await;
    assert_eq!(committed.len(), 400);
    until("all are here", || memory.ids().len() >= committed.len()).await;
    assert_eq!(memory.ids().into_iter().collect::<BTreeSet<_>>(), committed);
    let count = || reading.standing().snapshot();
    until("it reads again", || count().state == State::Reading).await;
    reading.stop(GRACE).await;
    real.drain("").await;
    assert_eq!(real.count().await, 0);
    real.run("DROP TABLE {t}_committed").await;
    real.drop().await;
}

#[tokio::test]
async fn a_notification_wakes_a_reader_that_would_sleep_for_an_hour() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let memory = Arc::new(Memory::default());
    let mut config = real.config("");
    config.poll_interval = Duration::from_secs(3600);
    let reading = Reading::start(&config, real.database(""), way_in(&memory));
    let reads = || reading.standing().snapshot().lag.is_some();
    until("it has looked once", reads).await;
    real.insert(1, "a").await;
    // As the trigger does; other transactions of the server may hold this one back for a moment.
    let mut again = PgConnection::connect(&real.url).await.unwrap();
    let end = tokio::time::Instant::now() + GRACE;
    while memory.ids().is_empty() {
        assert!(tokio::time::Instant::now() < end, "nothing woke it");
        run_on(&mut again, "SELECT pg_notify('wayhold_outbox', '')").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(memory.events()[0].data().as_ref(), b"{\"n\": 1}");
    reading.stop(GRACE).await;
    real.drop().await;
}
