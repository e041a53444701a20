//! A compaction that is cut off, refused by the disk or met by damage has lost and repeated nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wayhold_model::Position;
use wayhold_store::rescue::StoppedStore;
use wayhold_store::{Options, Store};

use crate::cuts::Cuts;
use crate::disk::HookedDisk;
use crate::support::{HandClock, destinations, drain, eventually, files, ids, open};
use crate::{
    account, compacted, databases, deliver, eager, exported, owed, store_events, uncompacted,
    until_checkpointed, until_compacted,
};

/// The directory as it is before every single change of a file while segments are compacted and removed, opened
/// again: the accounts are exact, what is owed comes in order, and what is delivered comes no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_may_be_cut_off_before_each_of_its_steps() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (cuts, disk) = Cuts::of(dir.path());
    let opened = Store::open_on(dir.path(), eager(), Arc::new(clock.clone()), Arc::new(disk));
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    until_checkpointed(dir.path(), 8);
    let all = drain(&mut store.lane(to[0]).unwrap(), 50);
    let positions: Vec<Position> = all.iter().map(|one| one.event.position).collect();
    let lane = store.lane(to[0]).unwrap().handle();
    lane.settle_delivered(&positions);
    // What is delivered is known to be: from here on nothing of it may come again.
    lane.durable().await.unwrap();
    cuts.watch(true);
    until_compacted(&store, dir.path(), &to);
    cuts.watch(false);
    store.stop();
    let copies = cuts.take();
    let has = |what: &str, name: &str| {
        let mut told = copies.iter().map(|(operation, _)| operation);
        told.any(|one| one.starts_with(what) && one.ends_with(name))
    };
    assert!(has("replace", ".idx") && has("rename", ".db.new") && has("rename", ".db"));
    assert!(has("unlink", ".db.gone") && has("unlink", ".db-wal"));
    for (number, (operation, copy)) in copies.into_iter().enumerate() {
        let stopped = StoppedStore::open(copy.path()).unwrap();
        let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
        assert!(
            !verified.is_damaged(),
            "{operation}: {:?}",
            verified.findings
        );
        let accounts = verified
            .accounts
            .iter()
            .map(|(_, one)| (one.accepted, one.pending));
        assert_eq!(
            accounts.collect::<Vec<_>>(),
            [(64, 0), (4, 4)],
            "{operation}"
        );
        assert_eq!(exported(&stopped), owed(64), "{operation}");
        drop(stopped);
        for round in 0..2 {
            let (store, recovery) = open(copy.path(), &eager(), &clock);
            assert_eq!(recovery.findings, Vec::<String>::new(), "{operation}");
            assert_eq!(account(&store, to[0]), (64, 0), "{operation} {round}");
            assert_eq!(account(&store, to[1]), (4, 4), "{operation} {round}");
            let again = drain(&mut store.lane(to[0]).unwrap(), 50);
            assert_eq!(ids(&again), Vec::<String>::new(), "{operation} {round}");
            let pending = drain(&mut store.lane(to[1]).unwrap(), 50);
            assert_eq!(ids(&pending), owed(64), "{operation} {round}");
            // Going on from there is the same work as anywhere else.
            if round == 1 && number % 4 == 0 {
                until_compacted(&store, copy.path(), &to);
                assert_eq!(
                    files(copy.path(), ".new"),
                    Vec::<String>::new(),
                    "{operation}"
                );
                assert_eq!(ids(&deliver(&store, to[1])), owed(64));
                eventually("it is resolved", || store.figures().segments_closed == 0);
                assert_eq!(account(&store, to[1]), (4, 0), "{operation}");
                assert_eq!(store.health().degraded, Vec::<String>::new(), "{operation}");
            }
            store.stop();
        }
    }
}

/// The same while deliveries are confirmed one after the other, so that there is always something that is resolved and
/// not on disk yet: whatever is left out of a compacted segment is known to be resolved, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_durably_resolved_is_left_out() {
    const EVENTS: u64 = 160;
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    // Between these a compacted segment takes the place of its sources.
    let (cuts, disk) = Cuts::before(dir.path(), |operation, at| {
        operation == "rename" && at.extension().is_some_and(|end| end == "new")
    });
    cuts.watch(true);
    let options = Options {
        compaction_every: Duration::from_millis(1),
        ..eager()
    };
    let opened = Store::open_on(dir.path(), options, Arc::new(clock.clone()), Arc::new(disk));
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 2);
    store_events(&store, 0..EVENTS, &to).await;
    until_checkpointed(dir.path(), EVENTS / 8);
    let mut lane = store.lane(to[0]).unwrap();
    for one in drain(&mut lane, 50) {
        lane.handle().settle_delivered(&[one.event.position]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until_compacted(&store, dir.path(), &to);
    store.stop();
    assert_ne!(cuts.count(), 0);
    for (operation, copy) in cuts.take() {
        let (store, recovery) = open(copy.path(), &eager(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new(), "{operation}");
        let (accepted, pending) = account(&store, to[0]);
        assert_eq!(accepted, EVENTS, "{operation}");
        let again = drain(&mut store.lane(to[0]).unwrap(), 50);
        assert_eq!(again.len() as u64, pending, "{operation}");
        assert_eq!(
            ids(&drain(&mut store.lane(to[1]).unwrap(), 50)),
            owed(EVENTS)
        );
        store.stop();
    }
}

#[tokio::test]
async fn what_is_unfinished_without_an_index_file_is_as_if_never_begun() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, to) = compacted(dir.path(), &eager(), &clock, 64).await;
    store.stop();
    drop(store);
    for name in [
        "90.db.new",
        "90.db.new-wal",
        "90.db.new-shm",
        "90.idx.tmp",
        "91.db.new-journal",
    ] {
        std::fs::write(dir.path().join("g1/s0").join(name), "half").unwrap();
    }
    let (store, recovery) = open(dir.path(), &eager(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert!(databases(dir.path()).iter().all(|name| name != "90.db"));
    assert_eq!(files(dir.path(), ".quarantined.1"), Vec::<String>::new());
    assert!(!dir.path().join("g1/s0/90.db.new").exists());
    assert_eq!(ids(&deliver(&store, to[1])), owed(64));
    store.stop();
}

/// A disk that refuses one operation on one kind of file.
fn refusing(operation: &'static str, ending: &'static str) -> (HookedDisk, Arc<AtomicU64>) {
    let refused = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&refused);
    let disk = HookedDisk::new(move |asked, path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Segments of the writer's have low numbers here, compacted ones those after.
        let number: u64 = name
            .split('.')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        if asked == operation && name.ends_with(ending) && number > 9 {
            count.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other("refused"));
        }
        Ok(())
    });
    (disk, refused)
}

#[tokio::test]
async fn a_disk_that_refuses_a_step_is_named_and_nothing_is_lost() {
    for (operation, ending) in [
        ("replace", ".idx"),
        ("rename", ".db.new"),
        ("unlink", ".db.new-wal"),
    ] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
        let (disk, refused) = refusing(operation, ending);
        let opened = Store::open_on(dir.path(), eager(), Arc::new(clock.clone()), Arc::new(disk));
        let (store, _) = opened.unwrap();
        let to = destinations(&store, 2);
        store_events(&store, 0..64, &to).await;
        deliver(&store, to[0]);
        eventually("it is refused and named", || {
            let degraded = store.health().degraded;
            refused.load(Ordering::SeqCst) > 0
                && degraded
                    .iter()
                    .any(|one| one.contains("cannot be compacted"))
        });
        assert_eq!(account(&store, to[0]), (64, 0));
        assert_eq!(ids(&drain(&mut store.lane(to[1]).unwrap(), 3)), owed(64));
        store.stop();
        drop(store);
        let (store, recovery) = open(dir.path(), &eager(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new(), "{operation}");
        until_compacted(&store, dir.path(), &to);
        assert_eq!(ids(&deliver(&store, to[1])), owed(64), "{operation}");
        store.stop();
    }
}

#[tokio::test]
async fn a_damaged_source_stays_and_is_named_and_others_are_compacted() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let store = uncompacted(dir.path(), &clock, 96).await;
    store.stop();
    drop(store);
    // The row of event 37, which is owed: the fifth segment.
    let path = dir.path().join("g1/s0/5.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(8)
        .position(|part| part == b"data 37 ")
        .unwrap();
    bytes[at + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    eventually("the others are compacted", || {
        let figures = store.figures();
        figures.segments_compacted >= 2 && databases(dir.path()).len() == 5
    });
    let named = store.health().degraded;
    assert!(
        named
            .iter()
            .any(|one| one.contains("5.db is not compacted")),
        "{named:?}"
    );
    assert!(path.exists());
    let mut expected = owed(96);
    expected.retain(|id| id != "37");
    assert_eq!(ids(&drain(&mut store.lane(to[1]).unwrap(), 50)), expected);
    store.stop();
}
