//! No row is passed over, and the order is what the documentation says, whatever order places were drawn and
//! transactions ended in.

use super::super::super::port::{Database as _, End, Trouble};
use super::super::super::row::Place;
use super::{OWN, Real, numbers, run_on};

/// Columns of Debezium's example, without an order of their own.
const DEBEZIUM: &str = "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL, \
                        aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb";

#[tokio::test]
async fn rows_come_in_order_in_batches_and_leave_the_table() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    for begin in [0, 1000, 2000] {
        real.run(&format!(
            "INSERT INTO {{t}} (aggregatetype, aggregateid, type, payload) \
             SELECT 'order', n % 7, 'created', jsonb_build_object('n', n) \
             FROM generate_series({begin}, {begin} + 999) n"
        ))
        .await;
    }
    real.run("BEGIN; DELETE FROM {t}; ROLLBACK").await;
    let rows = real.drain("batch_rows = 100").await;
    assert_eq!(numbers(&rows), (0..3000).collect::<Vec<_>>());
    assert_eq!(real.count().await, 0);
    real.drop().await;
}

#[tokio::test]
async fn a_place_that_was_drawn_before_a_long_wait_delays_what_comes_after_and_is_not_lost() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let mut slow = real.another().await;
    run_on(&mut slow, "BEGIN").await;
    run_on(&mut slow, &real.insertion(1, "a")).await;
    real.insert(2, "a").await;
    assert!(real.drain("").await.is_empty(), "the second waits");
    run_on(&mut slow, "COMMIT").await;
    assert_eq!(numbers(&real.drain("").await), [1, 2]);
    // One that is rolled back delays as long, and leaves nothing behind.
    run_on(&mut slow, "BEGIN").await;
    run_on(&mut slow, &real.insertion(3, "a")).await;
    real.insert(4, "a").await;
    assert!(real.drain("").await.is_empty());
    run_on(&mut slow, "ROLLBACK").await;
    assert_eq!(numbers(&real.drain("").await), [4]);
    real.drop().await;
}

#[tokio::test]
async fn rows_before_the_first_that_must_wait_do_not_wait() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    real.insert(1, "a").await;
    let mut slow = real.another().await;
    run_on(&mut slow, "BEGIN; SELECT pg_current_xact_id()").await;
    real.insert(2, "b").await;
    let mut connected = real.connect("").await;
    let batch = connected.reader.next(&[]).await.unwrap();
    assert_eq!((numbers(&batch.rows), batch.end), (vec![1], End::Open));
    run_on(&mut slow, "COMMIT").await;
    real.drop().await;
}

/// A transaction may have its number long before it locks an aggregate, so a number alone tells nothing of
/// which of two came first: none may be read before a row that stands before it and must wait.
#[tokio::test]
async fn writers_that_lock_their_aggregate_are_read_in_the_order_of_their_commits() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    let mut early = real.another().await;
    run_on(&mut early, "BEGIN; SELECT pg_current_xact_id()").await;
    let mut open = real.another().await;
    run_on(&mut open, "BEGIN; SELECT pg_current_xact_id()").await;
    // The first to lock, insert and commit has the highest number.
    real.insert(1, "a").await;
    run_on(&mut early, &real.insertion(2, "a")).await;
    run_on(&mut early, "COMMIT").await;
    assert_eq!(numbers(&real.drain("").await), [] as [u32; 0]);
    run_on(&mut open, "COMMIT").await;
    assert_eq!(numbers(&real.drain("").await), [1, 2]);
    real.drop().await;
}

#[tokio::test]
async fn without_a_column_to_order_by_transactions_come_as_they_began_to_write() {
    let Some(mut real) = Real::table(DEBEZIUM).await else {
        return;
    };
    for number in 0..20 {
        real.insert(number, "a").await;
    }
    assert_eq!(numbers(&real.drain("").await), (0..20).collect::<Vec<_>>());
    let mut slow = real.another().await;
    run_on(&mut slow, "BEGIN").await;
    run_on(&mut slow, &real.insertion(21, "a")).await;
    real.insert(22, "a").await;
    assert!(real.drain("").await.is_empty());
    run_on(&mut slow, "COMMIT").await;
    assert_eq!(numbers(&real.drain("").await), [21, 22]);
    real.drop().await;
}

#[tokio::test]
async fn exactly_the_row_that_was_read_is_settled() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    for number in 0..3 {
        real.insert(number, "a").await;
    }
    let mut connected = real.connect("").await;
    let batch = connected.reader.next(&[]).await.unwrap();
    let places: Vec<Place> = batch.rows.iter().map(|row| row.place.clone()).collect();
    // One is changed, one is deleted and its place given to another row.
    real.run("UPDATE {t} SET type = 'other' WHERE payload = '{\"n\": 0}'")
        .await;
    real.run("DELETE FROM {t} WHERE payload = '{\"n\": 1}'")
        .await;
    real.run("VACUUM {t}").await;
    real.insert(7, "a").await;
    connected.settler.settle(&places).await.unwrap();
    let mut left = numbers(&connected.reader.next(&[]).await.unwrap().rows);
    left.sort_unstable();
    assert_eq!(left, [0, 7]);
    real.drop().await;
}

#[tokio::test]
async fn aggregates_that_wait_are_left_out() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    for (number, key) in [(0, "a"), (1, "b"), (2, "a"), (3, "it's \\ \"c\"")] {
        real.insert(number, &key.replace('\'', "''")).await;
    }
    let mut connected = real.connect("").await;
    let without = ["a".to_owned(), "it's \\ \"c\"".to_owned()];
    let batch = connected.reader.next(&without).await.unwrap();
    assert_eq!((numbers(&batch.rows), batch.end), (vec![1], End::Empty));
    real.drop().await;
}

#[tokio::test]
async fn one_reads_at_a_time_and_whoever_lost_the_lock_reads_nothing_more() {
    let Some(mut real) = Real::table(OWN).await else {
        return;
    };
    real.insert(1, "a").await;
    let database = real.database("");
    let mut first = database.connect().await.unwrap();
    assert_eq!(database.connect().await.err(), Some(Trouble::Elsewhere));
    real.run(
        "SELECT pg_terminate_backend(pid) FROM pg_locks \
         WHERE locktype = 'advisory' AND objid = '{t}'::regclass::oid",
    )
    .await;
    assert!(matches!(
        first.reader.next(&[]).await,
        Err(Trouble::Unreachable(_))
    ));
    let mut second = real.connect("").await;
    assert_eq!(numbers(&second.reader.next(&[]).await.unwrap().rows), [1]);
    real.drop().await;
}
