//! What compaction may write, what it leaves for replay, and how much what is owed holds of the disk.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::Position;
use wayhold_store::catalog::{NewReplay, ReplayState};
use wayhold_store::{NewEvent, Options, ScanOrder, Store, TimeRange};

use crate::disk::{HookedDisk, occupied};
use crate::support::{HandClock, destinations, drain, event, eventually, files, open, tiny};
use crate::{HOUR, account, databases, deliver, eager, store_events, until_compacted};

#[tokio::test]
async fn what_is_resolved_is_kept_for_the_time_or_as_far_as_the_bytes_reach() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let keeping = Options {
        retention: HOUR,
        retention_bytes: u64::MAX,
        ..eager()
    };
    let (store, _) = open(dir.path(), &keeping, &clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    deliver(&store, to[0]);
    // Time to be found, and to be compacted if that were wrong.
    std::thread::sleep(Duration::from_millis(1200));
    clock.forward(HOUR / 2);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(store.figures().compactions, 0);
    clock.forward(HOUR);
    eventually("the time is over", || store.figures().compactions > 0);
    store.stop();
    drop(store);
    let other = tempfile::tempdir().unwrap();
    let bytes = Options {
        retention_bytes: 1,
        ..keeping
    };
    let (store, _) = open(other.path(), &bytes, &clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    deliver(&store, to[0]);
    until_compacted(&store, other.path(), &to);
    store.stop();
}

#[tokio::test]
async fn what_a_replay_needs_is_neither_compacted_nor_removed_until_it_ends() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    let new = NewReplay {
        destination: to[1],
        request: "{}".to_owned(),
        range: TimeRange::default(),
    };
    let replay = store.catalog().add_replay(&new, "ada").unwrap();
    store_events(&store, 0..64, &to).await;
    deliver(&store, to[0]);
    let is_whole = |store: &Store| {
        let mut scan = store.scan(ScanOrder::OldestFirst, TimeRange::default(), None);
        let found = std::iter::from_fn(|| scan.read().unwrap()).count();
        assert_eq!(found, 64);
        assert!(store.holds_all(TimeRange::default()));
        assert_eq!(store.figures().compactions, 0);
    };
    // Time to be found, and to be compacted or removed if that were wrong.
    std::thread::sleep(Duration::from_millis(1200));
    is_whole(&store);
    store.stop();
    drop(store);
    let (store, _) = open(dir.path(), &eager(), &clock);
    std::thread::sleep(Duration::from_millis(1200));
    is_whole(&store);
    let end = ReplayState::Cancelled;
    let ended = store
        .catalog()
        .set_replay_state(replay.id, end, "ada", None);
    assert_eq!(ended.unwrap().state, end);
    until_compacted(&store, dir.path(), &to);
    assert!(!store.holds_all(TimeRange::default()));
    store.stop();
}

#[tokio::test]
async fn what_a_replay_needs_gives_way_to_nobody_and_accepting_stops_before_the_disk_is_full() {
    const MIN_FREE: u64 = 1 << 20;
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let disk = HookedDisk::new(|_, _| Ok(()));
    let options = Options {
        min_free: Some(MIN_FREE),
        retention: HOUR,
        retention_bytes: u64::MAX,
        ..tiny()
    };
    let opened = Store::open_on(
        dir.path(),
        options,
        Arc::new(clock.clone()),
        Arc::new(disk.clone()),
    );
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    deliver(&store, to[0]);
    deliver(&store, to[1]);
    let kept = || store.figures().segments_retained;
    eventually("all is resolved", || kept() == 8);
    let new = NewReplay {
        destination: to[1],
        request: "{}".to_owned(),
        range: TimeRange::default(),
    };
    let replay = store.catalog().add_replay(&new, "ada").unwrap();
    // What is kept would be room enough, if it could go.
    disk.set_volume(occupied(dir.path()) + MIN_FREE - 1);
    eventually("it is refused", || store.health().unavailable.is_some());
    clock.forward(2 * HOUR);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(kept(), 8);
    let end = ReplayState::Cancelled;
    let ended = store
        .catalog()
        .set_replay_state(replay.id, end, "ada", None);
    assert_eq!(ended.unwrap().state, end);
    eventually("nothing is kept", || kept() == 0);
    eventually("it accepts again", || store.health().unavailable.is_none());
    store.stop();
}

#[tokio::test]
async fn without_room_nothing_is_compacted_until_there_is_some() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let disk = HookedDisk::new(|_, _| Ok(()));
    let options = Options {
        min_free: Some(1 << 20),
        ..eager()
    };
    let opened = Store::open_on(
        dir.path(),
        options,
        Arc::new(clock.clone()),
        Arc::new(disk.clone()),
    );
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    // What goes because all of it is resolved leaves less than that.
    disk.set_volume(occupied(dir.path()));
    std::thread::sleep(Duration::from_millis(300));
    deliver(&store, to[0]);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(store.figures().compactions, 0);
    assert_eq!(files(dir.path(), ".new"), Vec::<String>::new());
    disk.set_volume(u64::MAX);
    until_compacted(&store, dir.path(), &to);
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}

/// Accepts events of 1 KiB of which one in a hundred is owed to a destination that is down, delivers the others,
/// and waits until the retention and the window are over: bytes of the events, and of everything that is left.
async fn held_of(events: u64, options: &Options) -> (u64, u64) {
    const BATCH: u64 = 100;
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), options, &clock);
    let to = destinations(&store, 2);
    let payload = "x".repeat(1024);
    let mut lane = store.lane(to[0]).unwrap();
    let (mut bytes, mut delivered) = (0, 0);
    for first in (0..events).step_by(1000) {
        let requests = (first..first + 1000).step_by(100).map(|first| {
            let batch: Vec<NewEvent> = (first..first + BATCH)
                .map(|n| {
                    let to = if n % 100 == 7 { &to[..] } else { &to[..1] };
                    event(&n.to_string(), &format!("k{}", n % 1000), &payload, to)
                })
                .collect();
            bytes += batch.iter().map(|one| one.event.size() as u64).sum::<u64>();
            let store = store.clone();
            tokio::spawn(async move { store.append(batch).await.unwrap() })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.unwrap();
        }
        let read = drain(&mut lane, 1000);
        delivered += read.len() as u64;
        let positions: Vec<Position> = read.iter().map(|one| one.event.position).collect();
        lane.handle().settle_delivered(&positions);
    }
    assert_eq!(delivered, events);
    store.stop();
    drop((lane, store));
    // Starting over seals the segment that took the last ones.
    let (store, _) = open(dir.path(), options, &clock);
    clock.forward(HOUR * 25);
    eventually("it is compacted and forgotten", || {
        let figures = store.figures();
        // Segments of which little is to be gained stay as they are.
        let left = figures.segment_bytes + figures.index_bytes + figures.retained_bytes;
        account(&store, to[0]) == (events, 0)
            && left < bytes / 33
            && databases(dir.path()).len() as u64 == figures.segments_closed + 2
            // The ids of segments that are gone are forgotten some time after the window is over.
            && files(dir.path(), ".idx").len() as u64 == figures.segments_closed
    });
    assert_eq!(account(&store, to[1]), (events / 100, events / 100));
    store.stop();
    drop(store);
    // What a running store has besides, logs and files made ahead, is bounded by its limits.
    let (store, _) = open(dir.path(), options, &clock);
    assert_eq!(
        drain(&mut store.lane(to[1]).unwrap(), 1000).len() as u64,
        events / 100
    );
    store.stop();
    (bytes, occupied(dir.path()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_in_a_hundred_holds_about_one_in_a_hundred() {
    let options = Options {
        segment_rows: 65_536,
        segment_bytes: 2 << 20,
        group_bytes: 1 << 20,
        queue_bytes: 64 << 20,
        tail_bytes: 8 << 20,
        compaction_gain: 1 << 20,
        ..tiny()
    };
    let (accepted, held) = held_of(24_000, &options).await;
    assert!(held * 100 <= accepted * 3, "{held} of {accepted}");
}

/// `cargo test --test compaction -- --ignored --nocapture`: the figure in docs/benchmarks.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes some gigabytes"]
async fn one_in_a_hundred_of_a_million_at_the_limits_of_production() {
    let options = Options {
        min_free: Some(0),
        checkpoint_after: Duration::from_secs(1),
        retention: Duration::ZERO,
        ..Options::default()
    };
    let (accepted, held) = held_of(1_000_000, &options).await;
    println!(
        "accepted {accepted} bytes, held {held} bytes: {:.2} %",
        held as f64 * 100.0 / accepted as f64
    );
    assert!(held * 100 <= accepted * 3, "{held} of {accepted}");
}
