//! A compacted store in the hands of the tools, whole and with files lost: what is gone is named, and what is there is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::repair::{Names, repair};

use crate::support::{HandClock, copy_of, destinations, drain, files, ids, open};
use crate::{
    account, compacted, compacted_segments, databases, deliver, eager, exported, mostly, owed,
    pending, uncompacted, until_compacted,
};

#[tokio::test]
async fn lost_progress_repeats_what_is_held_and_the_accounts_hold() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, to) = compacted(dir.path(), &eager(), &clock, 64).await;
    store.stop();
    drop(store);
    for name in files(dir.path(), "") {
        if name.starts_with("state") {
            std::fs::remove_file(dir.path().join("g1/s0").join(name)).unwrap();
        }
    }
    for _ in 0..2 {
        let (store, _) = open(dir.path(), &eager(), &clock);
        // What was left out is not known to anybody any more, but by its trace.
        assert_eq!(account(&store, to[0]), (4, 4));
        assert_eq!(account(&store, to[1]), (4, 4));
        store.stop();
    }
    let (store, _) = open(dir.path(), &eager(), &clock);
    for destination in &to {
        assert_eq!(ids(&deliver(&store, *destination)), owed(64));
    }
    assert_eq!(account(&store, to[0]), (4, 0));
    let again = store.append(vec![mostly(0, &to)]).await.unwrap()[0];
    assert!(again.duplicate);
    store.stop();
}

#[tokio::test]
async fn a_damaged_index_file_of_a_compacted_segment_is_made_again_from_its_rows() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, to) = compacted(dir.path(), &eager(), &clock, 64).await;
    let segment = databases(dir.path())
        .into_iter()
        .max_by_key(|name| {
            dir.path()
                .join("g1/s0")
                .join(name)
                .metadata()
                .unwrap()
                .len()
        })
        .unwrap();
    store.stop();
    drop(store);
    let index = dir.path().join("g1/s0").join(segment).with_extension("idx");
    for part in 0..4 {
        let mut bytes = std::fs::read(&index).unwrap();
        // In the header, and in sections behind it.
        let at = 30 + part * (bytes.len() - 60) / 3;
        bytes[at] ^= 1;
        std::fs::write(&index, bytes).unwrap();
        let (store, _) = open(dir.path(), &eager(), &clock);
        assert_eq!(account(&store, to[0]), (64, 0), "{at}");
        assert_eq!(account(&store, to[1]), (4, 4), "{at}");
        assert_eq!(
            ids(&drain(&mut store.lane(to[1]).unwrap(), 3)),
            owed(64),
            "{at}"
        );
        assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 50).len(), 0, "{at}");
        store.stop();
    }
}

#[tokio::test]
async fn a_stopped_store_that_was_compacted_is_whole_and_tells_what_each_segment_covers() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = compacted(dir.path(), &eager(), &clock, 64).await;
    store.stop();
    drop(store);
    let stopped = StoppedStore::open(dir.path()).unwrap();
    let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
    assert_eq!(exported(&stopped), owed(64));
    let inventory = stopped.inspect().unwrap();
    let segments = &inventory.shards[0].segments;
    let compacted: Vec<_> = segments.iter().filter(|one| one.covers.is_some()).collect();
    assert!(compacted.iter().any(|one| !one.resolved));
    for one in compacted {
        assert!(one.covers == one.span && one.rows > 0, "{one:?}");
        // One that was compacted again itself, as happens where the last segments are sealed late, is an index alone.
        assert_eq!(one.bytes.is_some(), !one.resolved, "{one:?}");
    }
    let pending: u64 = segments.iter().flat_map(|one| one.pending.values()).sum();
    assert_eq!(pending, 4);
}

/// What is done to a compacted store of two compacted segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    State,
    Index,
    Database,
}

/// Removes it; the file that has to be named.
fn lose(dir: &Path, lost: Lost, number: u64) -> PathBuf {
    let shard = dir.join("g1/s0");
    let file = |ending: &str| shard.join(format!("{number}.{ending}"));
    match lost {
        Lost::State => {
            for name in files(dir, "") {
                if name.starts_with("state") {
                    std::fs::remove_file(shard.join(name)).unwrap();
                }
            }
            shard.join("state-1.db")
        }
        Lost::Index => {
            std::fs::remove_file(file("idx")).unwrap();
            file("idx")
        }
        Lost::Database => {
            std::fs::remove_file(file("db")).unwrap();
            file("db")
        }
    }
}

/// With and without a repair: what is lost is named, what is there is served, and nothing that was delivered comes
/// again but what lost progress costs.
#[tokio::test]
async fn what_is_lost_of_a_compacted_store_is_named_and_the_rest_is_served() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let store = uncompacted(dir.path(), &clock, 256).await;
    store.stop();
    drop(store);
    // All at once, so that as few segments as can be hold what is left.
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    until_compacted(&store, dir.path(), &to);
    store.stop();
    drop(store);
    let segments = compacted_segments(dir.path());
    assert_eq!(segments.len(), 2, "rows of a segment are a bound");
    let all = owed(256);
    let (first, second) = all.split_at(8);
    for lost in [Lost::State, Lost::Index, Lost::Database] {
        for is_repaired in [false, true] {
            let what = format!("{lost:?}, repaired: {is_repaired}");
            let copy = copy_of(dir.path());
            let named = lose(copy.path(), lost, segments[0]);
            let stopped = StoppedStore::open(copy.path()).unwrap();
            let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
            let left = exported(&stopped);
            drop(stopped);
            // An index file follows from its rows: the start makes it again.
            let is_named = verified.findings.iter().any(|one| one.file == named);
            assert_eq!(
                is_named,
                lost != Lost::Index,
                "{what}: {:?}",
                verified.findings
            );
            let expected = match lost {
                Lost::Database => second,
                _ => &all,
            };
            assert_eq!(left, expected, "{what}");
            if is_repaired {
                let names: Names = to
                    .iter()
                    .zip(["d1", "d2"])
                    .map(|(id, name)| (*id, name.to_owned()))
                    .collect();
                repair(copy.path(), &names, Arc::new(clock.clone()), &mut |_| {}).unwrap();
            }
            for round in 0..2 {
                let (store, _) = open(copy.path(), &eager(), &clock);
                let told = store.health().degraded.join("\n");
                let number = format!("{}.db is missing with 8 unresolved", segments[0]);
                assert_eq!(
                    told.contains(&number),
                    lost == Lost::Database && !is_repaired,
                    "{what}: {told}"
                );
                assert_eq!(pending(&store, to[1]), expected, "{what} {round}");
                let again = pending(&store, to[0]);
                match lost {
                    // Only what is held; what was left out was resolved.
                    Lost::State => assert_eq!(again, all, "{what} {round}"),
                    _ => assert_eq!(again, Vec::<String>::new(), "{what} {round}"),
                }
                if lost != Lost::Database {
                    account(&store, to[0]);
                    account(&store, to[1]);
                }
                store.stop();
            }
            // Events that nothing is left of are taken again once a person has repaired it.
            let (store, _) = open(copy.path(), &eager(), &clock);
            for id in first {
                let again = store
                    .append(vec![mostly(id.parse().unwrap(), &to)])
                    .await
                    .unwrap()[0];
                let is_taken = lost == Lost::Database && is_repaired;
                assert_eq!(again.duplicate, !is_taken, "{what}: {id}");
            }
            for id in second {
                let again = store
                    .append(vec![mostly(id.parse().unwrap(), &to)])
                    .await
                    .unwrap()[0];
                assert!(again.duplicate, "{what}: {id}");
            }
            store.stop();
        }
    }
}
