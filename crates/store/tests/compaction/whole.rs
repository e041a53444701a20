//! Nothing of what is still owed is lost, changed or moved by a compaction, or by one after the other.

use std::collections::BTreeSet;

use wayhold_model::Position;

use crate::disk::occupied;
use crate::support::{HandClock, destinations, drain, eventually, ids, open};
use crate::{
    HOUR, OF, account, compacted, data, databases, deliver, eager, mostly, owed, pending,
    store_events, uncompacted, until_compacted,
};

#[tokio::test]
async fn what_is_owed_survives_whole_and_in_order_and_the_rest_gives_its_room_back() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    let positions = store_events(&store, 0..160, &to).await;
    let before = occupied(dir.path());
    deliver(&store, to[0]);
    until_compacted(&store, dir.path(), &to);
    assert!(occupied(dir.path()) < before / 2, "{before}");
    assert!(store.figures().compactions > 0 && store.figures().compacted_bytes > 0);
    let mut store = store;
    for round in 0..3 {
        assert_eq!(account(&store, to[0]), (160, 0), "{round}");
        assert_eq!(account(&store, to[1]), (160 / OF, 160 / OF), "{round}");
        let all = drain(&mut store.lane(to[1]).unwrap(), 3);
        assert_eq!(ids(&all), owed(160), "{round}");
        for delivery in &all {
            let n: u64 = delivery.event.event.id().parse().unwrap();
            assert_eq!(delivery.event.event.data(), data(n).as_bytes());
            assert_eq!(
                delivery.event.position,
                positions[usize::try_from(n).unwrap()]
            );
            assert_eq!(
                delivery.event.event.key(),
                Some(format!("k{}", n % 3).as_str())
            );
        }
        assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 50).len(), 0);
        // What was left out is still one event with its receipt, and known by its trace.
        // But for the newest, which memory may still hold.
        for (n, position) in (0..150).zip(&positions) {
            let again = store.append(vec![mostly(n, &to)]).await.unwrap()[0];
            assert!(
                again.duplicate && again.position == *position,
                "{round}: {n}"
            );
            let found = store.find("/test", &n.to_string()).unwrap().unwrap();
            assert_eq!(found.position, *position);
            let is_owed = n % OF == 5;
            assert_eq!(found.event.is_some(), is_owed, "{round}: {n}");
            assert_eq!(found.destinations.ids().len(), 1 + usize::from(is_owed));
            let by_place = store.event(*position).unwrap().unwrap();
            assert_eq!(by_place.event.is_some(), is_owed);
        }
        assert_eq!(store.health().degraded, Vec::<String>::new());
        store.stop();
        drop(store);
        let recovery;
        (store, recovery) = open(dir.path(), &eager(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new());
    }
    assert_eq!(ids(&deliver(&store, to[1])), owed(160));
    eventually("all of it goes", || {
        store.figures().segments_closed == 0 && databases(dir.path()).len() == 2
    });
    assert_eq!(account(&store, to[0]), (160, 0));
    assert_eq!(account(&store, to[1]), (160 / OF, 0));
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}

#[tokio::test]
async fn what_was_compacted_is_compacted_again_with_what_came_after() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (mut store, to) = compacted(dir.path(), &eager(), &clock, 64).await;
    for round in 1..4 {
        let events = 64 * (round + 1);
        store_events(&store, 64 * round..events, &to).await;
        deliver(&store, to[0]);
        until_compacted(&store, dir.path(), &to);
        assert_eq!(account(&store, to[0]), (events, 0));
        assert_eq!(account(&store, to[1]), (events / OF, events / OF));
        assert_eq!(
            ids(&drain(&mut store.lane(to[1]).unwrap(), 5)),
            owed(events)
        );
        store.stop();
        drop(store);
        let recovery;
        (store, recovery) = open(dir.path(), &eager(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new());
    }
    store.stop();
}

#[tokio::test]
async fn a_compacted_segment_of_which_more_was_resolved_is_compacted_once_more() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let store = uncompacted(dir.path(), &clock, 256).await;
    store.stop();
    drop(store);
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    until_compacted(&store, dir.path(), &to);
    assert_eq!(
        store.figures().segments_compacted,
        2,
        "rows of a segment are a bound"
    );
    let mut lane = store.lane(to[1]).unwrap();
    let all = drain(&mut lane, 50);
    let some = all.iter().enumerate().filter(|(at, _)| at % 8 < 7);
    let some: Vec<Position> = some.map(|(_, one)| one.event.position).collect();
    lane.handle().settle_delivered(&some);
    eventually("they are compacted once more", || {
        account(&store, to[1]) == (16, 2) && store.figures().segments_compacted == 1
    });
    assert_eq!(
        ids(&drain(&mut store.lane(to[1]).unwrap(), 5)),
        ["117", "245"]
    );
    assert_eq!(account(&store, to[0]), (256, 0));
    store.stop();
}

/// A lane that reads on while segments are compacted around it, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_reads_meanwhile_gets_each_once_and_in_order() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    let mut slow = store.lane(to[1]).unwrap();
    let mut read = Vec::new();
    for round in 0..10 {
        store_events(&store, round * 64..(round + 1) * 64, &to).await;
        deliver(&store, to[0]);
        let before = store.figures().compactions;
        eventually("something is compacted", || {
            account(&store, to[0]);
            let batch = slow.read(1).unwrap();
            slow.handle().settle_delivered(
                &batch
                    .iter()
                    .map(|one| one.event.position)
                    .collect::<Vec<_>>(),
            );
            read.extend(ids(&batch));
            account(&store, to[1]);
            store.figures().compactions > before || read.len() as u64 == (round + 1) * 4
        });
    }
    eventually("all is read", || {
        read.extend(ids(&drain(&mut slow, 3)));
        read.len() == 40
    });
    assert_eq!(read, owed(640));
    let unique: BTreeSet<&String> = read.iter().collect();
    assert_eq!(unique.len(), 40);
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}

#[tokio::test]
async fn shards_that_take_no_more_events_are_compacted_drain_and_are_retired() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    store.set_shards(2, "ada", None).unwrap();
    deliver(&store, to[0]);
    eventually("it is compacted", || {
        let figures = store.figures();
        let compacted = figures.segments_compacted;
        compacted > 0
            && figures.segments_closed == compacted
            && databases(dir.path()).len() as u64 == compacted
    });
    store.stop();
    drop(store);
    let (store, recovery) = open(dir.path(), &eager(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    clock.forward(HOUR * 25);
    assert_eq!(pending(&store, to[1]), owed(64));
    assert_eq!(store.generations().len(), 2, "something is pending in it");
    assert_eq!(ids(&deliver(&store, to[1])), owed(64));
    eventually("its generation is retired", || {
        assert_eq!(account(&store, to[0]), (64, 0));
        assert_eq!(account(&store, to[1]), (4, 0));
        store.generations().len() == 1 && !dir.path().join("g1").exists()
    });
    assert_eq!(account(&store, to[1]), (4, 0));
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
    drop(store);
    let (store, recovery) = open(dir.path(), &eager(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert_eq!(account(&store, to[0]), (64, 0));
    assert_eq!(account(&store, to[1]), (4, 0));
    store.stop();
}
