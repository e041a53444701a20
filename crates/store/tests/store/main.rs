//! The store's promises, through its face, at tiny limits and at production's.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod known_ids;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{
    HandClock, copy_of, destinations, drain, event, eventually, files, files_of_shards, fill, ids,
    names, open, tiny,
};
use wayhold_model::{OutcomeKind, Timestamp};
use wayhold_store::{
    AppendError, AttemptRecord, Delivery, DeliveryState, OpenError, Options, Receipt, Resolution,
    Store,
};

/// Runs a case with one shard and with three, at tiny limits.
async fn with_any_shards<F: Future<Output = ()>>(case: impl Fn(Options) -> F) {
    for shards in [1, 3] {
        case(Options { shards, ..tiny() }).await;
    }
}

/// Ids as a lane gives them. Between shards there is no order: those of several are sorted, once it is
/// sure that each shard's come in order.
fn in_order(store: &Store, deliveries: &[Delivery]) -> Vec<String> {
    let mut ids = ids(deliveries);
    if store.shards() > 1 {
        let mut last = std::collections::BTreeMap::new();
        for delivery in deliveries {
            let position = delivery.event.position;
            let before = last.insert(position.shard, position);
            assert!(before.is_none_or(|before| before < position));
        }
        ids.sort_unstable_by_key(|id| id.parse::<u64>().unwrap());
    }
    ids
}

/// Runs a case at tiny limits, with one shard and with three, and at production's.
async fn at_both_limits<F: Future<Output = ()>>(case: impl Fn(Options) -> F) {
    with_any_shards(&case).await;
    case(Options {
        window_ids: 100_000,
        min_free: Some(0),
        ..Options::default()
    })
    .await;
}

#[tokio::test]
async fn events_are_read_back_in_order_by_the_lanes_they_are_owed_to() {
    at_both_limits(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 3);
        fill(&store, 0, 40, 5, &to[..1]).await;
        fill(&store, 40, 40, 5, &to[..2]).await;
        let [mut first, mut second, mut third] = [0, 1, 2].map(|n| store.lane(to[n]).unwrap());
        for max in [1, 7, 1000] {
            let mut again = store.lane(to[0]).unwrap();
            assert_eq!(in_order(&store, &drain(&mut again, max)), names(0..80));
        }
        assert_eq!(in_order(&store, &drain(&mut first, 16)), names(0..80));
        assert_eq!(in_order(&store, &drain(&mut second, 16)), names(40..80));
        assert!(drain(&mut third, 16).is_empty());
        fill(&store, 80, 3, 5, &to[2..]).await;
        assert_eq!(in_order(&store, &drain(&mut third, 10)), names(80..83));
        store.stop();
    })
    .await;
}

#[tokio::test]
async fn what_was_accepted_is_there_after_a_clean_stop_and_after_a_kill() {
    at_both_limits(|options| async move {
        let clock = HandClock::new();
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &clock);
        let to = destinations(&store, 1);
        let receipts = fill(&store, 0, 50, 5, &to).await;
        let killed = copy_of(dir.path());
        store.stop();
        for (dir, unclean) in [(dir.path(), false), (killed.path(), true)] {
            let (store, recovery) = open(dir, &options, &clock);
            assert_eq!(recovery.unclean, unclean);
            assert_eq!(recovery.findings, Vec::<String>::new());
            let lane = drain(&mut store.lane(to[0]).unwrap(), 16);
            assert_eq!(in_order(&store, &lane), names(0..50));
            let mut positions: Vec<_> = lane
                .iter()
                .map(|delivery| delivery.event.position)
                .collect();
            let mut promised: Vec<_> = receipts.iter().map(|receipt| receipt.position).collect();
            if store.shards() > 1 {
                positions.sort_unstable();
                promised.sort_unstable();
            }
            assert_eq!(positions, promised);
            let again = fill(&store, 0, 50, 5, &to).await;
            for (again, first) in again.iter().zip(&receipts) {
                assert!(again.duplicate && again.position == first.position);
            }
            let next = fill(&store, 50, 1, 5, &to).await;
            let next = next[0].position;
            let same = |receipt: &&Receipt| receipt.position.shard == next.shard;
            assert!(
                receipts
                    .iter()
                    .filter(same)
                    .all(|receipt| receipt.position < next)
            );
            store.stop();
        }
    })
    .await;
}

#[tokio::test]
async fn resolved_segments_are_unlinked_and_the_account_still_holds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 2);
    let receipts = fill(&store, 0, 60, 3, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let handle = lane.handle();
    let deliveries = drain(&mut lane, 100);
    let positions: Vec<_> = deliveries
        .iter()
        .map(|delivery| delivery.event.position)
        .collect();
    handle.settle_delivered(&positions);
    assert_eq!((handle.pending(), store.totals(to[1]).pending), (0, 60));
    assert!(
        files(dir.path(), ".db").len() >= 7,
        "the other lane still needs them"
    );

    // Also while segments are being dropped no event is counted twice.
    let (watched, watching) = (store.clone(), Arc::new(AtomicBool::new(true)));
    let watch = {
        let (watching, destination) = (Arc::clone(&watching), to[1]);
        std::thread::spawn(move || {
            while watching.load(Ordering::Relaxed) {
                assert_eq!(watched.totals(destination).accepted, 60);
                std::thread::yield_now();
            }
        })
    };
    let mut other = store.lane(to[1]).unwrap();
    let other_handle = other.handle();
    for (n, delivery) in drain(&mut other, 100).iter().enumerate() {
        match n {
            5 => other_handle.settle(&delivery.event, Resolution::Expired),
            9 => other_handle.settle(&delivery.event, Resolution::DeadLettered(attempt(1))),
            _ => other_handle.settle(&delivery.event, Resolution::Delivered),
        }
    }
    eventually("only the active and the prepared segment are left", || {
        files(dir.path(), ".db").len() <= 3
    });
    watching.store(false, Ordering::Relaxed);
    watch.join().unwrap();
    let totals = store.totals(to[1]);
    assert_eq!((totals.accepted, totals.pending), (60, 0));
    assert_eq!((totals.delivered, totals.dead, totals.expired), (58, 1, 1));

    // The trace outlives the event.
    let found = store.event(receipts[0].position).unwrap().unwrap();
    assert!(found.event.is_none() && found.destinations.ids() == to);
    assert!(
        fill(&store, 0, 10, 3, &to)
            .await
            .iter()
            .all(|receipt| receipt.duplicate)
    );
    assert!(matches!(
        store.delivery_state(receipts[9].position, to[1]).unwrap(),
        DeliveryState::Dead {
            redriving: false,
            ..
        }
    ));
    let killed = copy_of(dir.path());
    store.stop();
    for dir in [dir.path(), killed.path()] {
        let (store, recovery) = open(dir, &tiny(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new());
        for destination in &to {
            let totals = store.totals(*destination);
            assert_eq!((totals.accepted, totals.pending), (60, 0));
        }
        assert!(
            fill(&store, 0, 60, 3, &to)
                .await
                .iter()
                .all(|receipt| receipt.duplicate)
        );
        store.stop();
    }
}

fn attempt(number: u32) -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number,
        at: Timestamp::from_micros(1),
        outcome: OutcomeKind::Unknown,
        class: wayhold_model::FailureClass::Timeout,
        status: Some(503),
        reason: "not now".to_owned(),
    }
}

#[tokio::test]
async fn a_restarted_lane_begins_with_what_is_unresolved_and_knows_its_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, 4, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let handle = lane.handle();
    for (n, delivery) in drain(&mut lane, 100).iter().enumerate() {
        match n {
            7 => handle.record_failure(
                delivery.event.position,
                attempt(3),
                Timestamp::from_micros(99),
            ),
            13 => handle
                .record_start(delivery.event.position, 1)
                .await
                .unwrap(),
            25 => {}
            _ => handle.settle(&delivery.event, Resolution::Delivered),
        }
    }
    handle.durable().await.unwrap();
    let killed = copy_of(dir.path());
    store.stop();
    for dir in [dir.path(), killed.path()] {
        let (store, _) = open(dir, &tiny(), &clock);
        let left = drain(&mut store.lane(to[0]).unwrap(), 2);
        assert_eq!(ids(&left), ["7", "13", "25"]);
        assert_eq!(
            left.iter().map(|d| d.attempts).collect::<Vec<_>>(),
            [3, 1, 0]
        );
        assert_eq!(left[0].retry_at, Some(Timestamp::from_micros(99)));
        assert_eq!(store.totals(to[0]).pending, 3);
        store.stop();
    }
}

#[tokio::test]
async fn the_next_of_a_key_is_found_across_segments_and_lanes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &HandClock::new());
    let to = destinations(&store, 2);
    let both = fill(&store, 0, 30, 3, &to).await;
    let one = fill(&store, 30, 30, 3, &to[..1]).await;
    let all: Vec<_> = both
        .iter()
        .chain(&one)
        .map(|receipt| receipt.position)
        .collect();
    let mut lane = store.lane(to[1]).unwrap();
    let key = drain(&mut lane, 100)[1].event.key_hash.unwrap();
    let handle = lane.handle();
    let expected: Vec<_> = (4..30).step_by(3).map(|n| all[n]).collect();
    assert_eq!(
        handle.next_of_key(key, all[1], all[59], 100).unwrap(),
        expected
    );
    assert_eq!(
        handle.next_of_key(key, all[1], all[59], 2).unwrap(),
        expected[..2]
    );
    assert_eq!(
        handle.next_of_key(key, all[1], all[9], 100).unwrap(),
        expected[..2]
    );
    handle.settle_delivered(&expected[..4]);
    assert_eq!(
        handle.next_of_key(key, all[1], all[59], 100).unwrap(),
        expected[4..]
    );
    store.stop();
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_holds_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let second = Store::open(dir.path(), tiny(), Arc::new(clock.clone()));
    let Err(OpenError::Locked { holder, .. }) = second else {
        panic!("expected a refusal")
    };
    assert_eq!(holder, format!(" (pid {})", std::process::id()));
    store.stop();
    open(dir.path(), &tiny(), &clock).0.stop();
}

#[tokio::test]
async fn dropping_a_request_at_any_time_leaves_its_event_absent_or_stored() {
    with_any_shards(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 1);
        for n in 0..500_u64 {
            let append = store.append(vec![event(&n.to_string(), "", "x", &to)]);
            // The client goes away after a few polls.
            drop(tokio::time::timeout(Duration::from_micros(n % 50), append).await);
        }
        let receipts = fill_unkeyed(&store, 500, &to).await;
        let deliveries = drain(&mut store.lane(to[0]).unwrap(), 100);
        assert_eq!(
            deliveries.len(),
            500,
            "each id once, whether its first request was dropped or not"
        );
        assert_eq!(receipts.len(), 500);
        store.stop();
    })
    .await;
}

async fn fill_unkeyed(
    store: &Store,
    count: u64,
    to: &[wayhold_model::DestinationId],
) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for n in 0..count {
        receipts.extend(
            store
                .append(vec![event(&n.to_string(), "", "x", to)])
                .await
                .unwrap(),
        );
    }
    receipts
}

#[tokio::test]
async fn the_oldest_pending_event_is_never_older_than_the_figures_say() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    let age = |store: &Store| store.figures().oldest_unresolved;
    assert_eq!(age(&store), None);
    // One minute apart, in segments of eight.
    for n in 0..20 {
        fill(&store, n, 1, 3, &to).await;
        clock.forward(Duration::from_secs(60));
    }
    let minutes = |n: u64| Some(Duration::from_secs(n * 60));
    let mut lane = store.lane(to[0]).unwrap();
    let all = drain(&mut lane, 100);
    let handle = lane.handle();
    for (n, delivery) in all.iter().enumerate() {
        // Exact at the start of a segment, also of the one that takes rows, and no younger within.
        let first = n as u64 / 8 * 8;
        assert_eq!(age(&store), minutes(20 - first), "{n} are resolved");
        handle.settle(&delivery.event, Resolution::Delivered);
    }
    assert_eq!(age(&store), None);
    store.stop();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    assert_eq!(age(&store), None);
    store.stop();
}

#[tokio::test]
async fn look_ups_while_segments_are_dropped_find_the_event_or_its_trace_and_nothing_wrong() {
    with_any_shards(|options| async move {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &options, &HandClock::new());
        let to = destinations(&store, 1);
        let receipts = fill(&store, 0, 120, 3, &to).await;
        let (asked, asking) = (store.clone(), Arc::new(AtomicBool::new(true)));
        let ask = {
            let asking = Arc::clone(&asking);
            std::thread::spawn(move || {
                while asking.load(Ordering::Relaxed) {
                    for receipt in &receipts {
                        let found = asked.event(receipt.position).unwrap().unwrap();
                        assert_eq!(found.position, receipt.position);
                    }
                }
            })
        };
        let mut lane = store.lane(to[0]).unwrap();
        let handle = lane.handle();
        for delivery in drain(&mut lane, 16) {
            handle.settle(&delivery.event, Resolution::Delivered);
        }
        eventually("only the active and the prepared segments are left", || {
            files_of_shards(dir.path(), ".db")
                .iter()
                .all(|names| names.len() <= 3)
        });
        asking.store(false, Ordering::Relaxed);
        ask.join().unwrap();
        assert_eq!(store.health().degraded, Vec::<String>::new());
        store.stop();
        // Nothing of a dropped segment is left, and nothing holds it open.
        let logs = files_of_shards(dir.path(), ".db-wal");
        for (logs, databases) in logs.iter().zip(files_of_shards(dir.path(), ".db")) {
            for log in logs {
                assert!(databases.contains(&log.replace("-wal", "")), "{log}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn accepting_is_refused_while_segments_cannot_be_sealed_and_a_stop_does_not_wait_for_them() {
    for mended in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &tiny(), &HandClock::new());
        let to = destinations(&store, 1);
        let obstacles: Vec<_> = (1..20)
            .map(|n| dir.path().join(format!("g1/s0/{n}.idx.tmp")))
            .collect();
        for obstacle in &obstacles {
            std::fs::create_dir(obstacle).unwrap();
        }
        let mut accepted = 0;
        let refusal = loop {
            let new = event(&accepted.to_string(), "", "x", &to);
            match store.append(vec![new]).await {
                Ok(_) => accepted += 1,
                Err(refusal) => break refusal,
            }
            assert!(accepted < 100, "more is unsealed than a start may read");
        };
        assert!(matches!(refusal, AppendError::Unavailable { .. }));
        assert!(store.health().unavailable.is_some());
        if mended {
            for obstacle in &obstacles {
                std::fs::remove_dir(obstacle).unwrap();
            }
            eventually("it accepts again", || store.health().unavailable.is_none());
            fill(&store, 200, 20, 3, &to).await;
            assert_eq!(store.totals(to[0]).accepted, accepted + 20);
        }
        let stopping = store.clone();
        let stop = tokio::task::spawn_blocking(move || stopping.stop());
        tokio::time::timeout(Duration::from_secs(20), stop)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn segments_that_an_earlier_run_did_not_checkpoint_hold_nobody_up() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let never = Options {
        checkpoint_after: Duration::from_secs(3600),
        ..tiny()
    };
    let (store, _) = open(dir.path(), &never, &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 120, 3, &to).await;
    store.stop();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    // A reader in each keeps the checkpointer busy for as long as it waits for one.
    let readers: Vec<_> = files(dir.path(), ".idx")
        .into_iter()
        .map(|name| dir.path().join("g1/s0").join(name).with_extension("db"))
        .map(|path| rusqlite::Connection::open(path).unwrap())
        .collect();
    for reader in &readers {
        let begun = reader.execute_batch("BEGIN; SELECT count(*) FROM events;");
        begun.unwrap();
    }
    // Time passes by hand, so that everything left is due at once.
    clock.forward(Duration::from_secs(1));
    // Were they waited for, these would be refused: the readers stay.
    fill(&store, 200, 30, 3, &to).await;
    drop(readers);
    store.stop();
}
