//! What the store says is pending, measured without reading events, and what it recalls of events that it
//! may not store.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::time::Duration;

use support::{HandClock, destinations, event, eventually, fill, open, tiny};
use wayhold_model::{Clock, Timestamp};
use wayhold_store::{AppendError, Options, Store};

/// Counts and ages as `(events, age of the oldest in seconds)`, of the whole and of each destination.
fn measured(store: &Store, now: Timestamp) -> Vec<(u64, Option<u64>)> {
    let all = store.backlog_meter(true).measure();
    let destinations = all.destinations.into_iter().map(|(_, one)| one);
    std::iter::once(all.whole)
        .chain(destinations)
        .map(|one| {
            let age = one.oldest.map(|oldest| now.since(oldest).as_secs());
            (one.events, age)
        })
        .collect()
}

#[tokio::test]
async fn the_backlog_is_counted_per_destination_and_once_altogether_also_after_a_restart() {
    for shards in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let clock = HandClock::new();
        let options = Options {
            shards,
            // A checkpoint changes what the files hold between two measurements.
            checkpoint_after: Duration::from_secs(3_600),
            ..tiny()
        };
        let (store, _) = open(dir.path(), &options, &clock);
        let [a, b] = destinations(&store, 2)[..] else {
            panic!("two were made");
        };
        assert_eq!(measured(&store, clock.now()), [(0, None); 3]);
        // Over several segments: 30 for both, 10 s later 10 for b alone.
        fill(&store, 0, 30, 7, &[a, b]).await;
        clock.forward(Duration::from_secs(10));
        fill(&store, 30, 10, 7, &[b]).await;
        clock.forward(Duration::from_secs(5));
        let now = clock.now();
        assert_eq!(
            measured(&store, now),
            [(40, Some(15)), (30, Some(15)), (40, Some(15))],
            "{shards} shards"
        );
        // One meter goes on through all that follows, as the one of a server does.
        let mut meter = store.backlog_meter(true);
        let before = meter.measure();
        let mut lane = store.lane(b).unwrap();
        let delivered = support::drain(&mut lane, 64);
        assert_eq!(delivered.len(), 40);
        let early = |id: &str| id.parse::<u64>().unwrap() < 30;
        let done = delivered.iter().filter(|one| early(one.event.event.id()));
        let done: Vec<_> = done.map(|one| one.event.position).collect();
        lane.handle().settle_delivered(&done);
        let after = meter.measure();
        let of = |all: &wayhold_store::Backlogs, at: usize| all.destinations[at].1;
        assert_eq!((of(&after, 0).events, of(&after, 1).events), (30, 10));
        assert_eq!(of(&after, 1).resolved - of(&before, 1).resolved, 30);
        assert_eq!(after.whole.events, 40);
        assert_eq!(after.whole.resolved, before.whole.resolved);
        // An index file is not read for an age more often than once a second.
        eventually("the oldest of the second is a later one", || {
            let all = meter.measure();
            let age = |at: usize| now.since(of(&all, at).oldest.unwrap()).as_secs();
            (age(0), age(1)) == (15, 5)
        });
        assert_eq!(store.backlog_meter(false).measure().whole.oldest, None);
        // Bytes are a share of what lies on disk, and what both are owed is there once.
        assert!(of(&after, 0).bytes > 0 && of(&after, 1).bytes > 0);
        assert!(after.whole.bytes <= before.whole.bytes);
        assert!(after.whole.bytes <= store.figures().segment_bytes);
        assert!(of(&before, 0).bytes < before.whole.bytes);
        store.stop();
        drop(lane);
        drop(store);

        let (store, _) = open(dir.path(), &options, &clock);
        assert_eq!(
            measured(&store, now),
            [(40, Some(15)), (30, Some(15)), (10, Some(5))],
            "after a restart, {shards} shards"
        );
        // All of it resolved: nothing is left, however full the segments that are kept are.
        for destination in [a, b] {
            let mut lane = store.lane(destination).unwrap();
            let all = support::drain(&mut lane, 64);
            let all: Vec<_> = all.iter().map(|one| one.event.position).collect();
            lane.handle().settle_delivered(&all);
        }
        eventually("nothing is pending", || {
            measured(&store, now) == [(0, None); 3]
        });
        store.stop();
    }
}

#[tokio::test]
async fn what_was_accepted_is_recalled_without_anything_being_stored() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    let receipts = fill(&store, 0, 3, 2, &to).await;
    let again = |n: u64| {
        event(
            &n.to_string(),
            &format!("k{}", n % 2),
            &format!("data {n}"),
            &to,
        )
    };
    let new = || event("new", "k", "x", &to);
    for n in [2, 0] {
        let recalled = store.recall(again(n)).await.unwrap().unwrap();
        let first = receipts[usize::try_from(n).unwrap()];
        assert_eq!(
            (recalled.position, recalled.duplicate),
            (first.position, true)
        );
    }
    assert_eq!(store.recall(new()).await.unwrap(), None);
    assert_eq!(store.totals(to[0]).accepted, 3);
    // The id is still free, and another event under a known one is still a conflict.
    let other = event("1", "k1", "other", &to);
    assert!(matches!(
        store.recall(other).await,
        Err(AppendError::Conflict { index: 0, .. })
    ));
    assert!(!store.append(vec![new()]).await.unwrap()[0].duplicate);
    store.stop();
}

#[tokio::test]
async fn the_backlog_of_every_generation_counts() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    let mut meter = store.backlog_meter(true);
    let mut counted = || {
        let all = meter.measure();
        (all.whole.events, all.destinations[0].1.events)
    };
    fill(&store, 0, 20, 7, &to).await;
    store.set_shards(3, "ada", None).unwrap();
    fill(&store, 20, 20, 7, &to).await;
    assert_eq!(counted(), (40, 40));
    let mut lane = store.lane(to[0]).unwrap();
    let all = support::drain(&mut lane, 64);
    let all: Vec<_> = all.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&all);
    eventually("nothing is pending in any", || counted() == (0, 0));
    store.stop();
}
