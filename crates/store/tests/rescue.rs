//! Looking into a stopped store: nothing is changed, everything that is whole comes out.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use support::{HandClock, copy_of, destinations, drain, eventually, fill, names, open, tiny};
use wayhold_model::DestinationId;
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::export::{Exported, Wanted};
use wayhold_store::{Options, Resolution, Store};

fn three_shards() -> Options {
    Options {
        shards: 3,
        ..tiny()
    }
}

/// Names and bytes of everything below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(contents(&path)),
            false => drop(all.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all
}

fn exported(store: &StoppedStore, wanted: Wanted) -> Vec<Exported> {
    let mut all = Vec::new();
    store
        .export(wanted, &mut |event| {
            all.push(event);
            Ok(())
        })
        .unwrap();
    all
}

fn ids_of(exported: &[Exported]) -> BTreeSet<String> {
    let ids = exported.iter().map(|one| one.event.event.id().to_owned());
    ids.collect()
}

/// Settles every second delivery that a destination has, and waits until that is on disk.
async fn settle_half(store: &Store, to: DestinationId) -> BTreeSet<String> {
    let mut lane = store.lane(to).unwrap();
    let handle = lane.handle();
    let mut kept = BTreeSet::new();
    for (number, delivery) in drain(&mut lane, 100).into_iter().enumerate() {
        match number % 2 {
            0 => handle.settle(&delivery.event, Resolution::Delivered),
            _ => drop(kept.insert(delivery.event.event.id().to_owned())),
        }
    }
    handle.durable().await.unwrap();
    kept
}

#[tokio::test]
async fn a_stopped_or_killed_store_is_found_whole_comes_out_whole_and_is_left_as_it_was() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &three_shards(), &clock);
    let to = destinations(&store, 2);
    fill(&store, 0, 100, 7, &to).await;
    let first = settle_half(&store, to[0]).await;
    let pending = |id| store.totals(id).pending;
    eventually("half is settled", || pending(to[0]) == first.len() as u64);
    let killed = copy_of(dir.path());
    store.stop();
    for (how, dir) in [("stopped", dir.path()), ("killed", killed.path())] {
        let before = contents(dir);
        let stopped = StoppedStore::open(dir).unwrap();
        let inventory = stopped.inspect().unwrap();
        let rows: u64 = inventory
            .shards
            .iter()
            .flat_map(|shard| &shard.segments)
            .map(|segment| segment.rows)
            .sum();
        assert_eq!((inventory.shards.len(), rows), (3, 100), "{how}");
        let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
        assert_eq!(verified.rows, 100, "{how}");
        assert!(
            verified.findings.is_empty(),
            "{how}: {:?}",
            verified.findings
        );
        let all = Wanted {
            all: true,
            ..Wanted::default()
        };
        assert_eq!(exported(&stopped, all).len(), 100, "{how}");
        let pending = exported(&stopped, Wanted::default());
        let everything: BTreeSet<String> = names(0..100).into_iter().collect();
        assert_eq!(ids_of(&pending), everything, "{how}");
        for one in &pending {
            let expected: Vec<DestinationId> = match first.contains(one.event.event.id()) {
                true => to.clone(),
                false => vec![to[1]],
            };
            assert_eq!(one.owed, expected, "{how}");
        }
        let owed_to_first = Wanted {
            destination: Some(to[0]),
            ..Wanted::default()
        };
        assert_eq!(ids_of(&exported(&stopped, owed_to_first)), first, "{how}");
        drop(stopped);
        assert!(contents(dir) == before, "{how}: something was changed");
    }
}

#[tokio::test]
async fn a_store_that_runs_is_not_looked_into_and_who_runs_it_is_named() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let refused = StoppedStore::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    assert!(
        refused.contains(&std::process::id().to_string()),
        "{refused}"
    );
    store.stop();
    drop(store);
    // Two may look at the same time, and no server starts meanwhile.
    let looking = [(); 2].map(|()| StoppedStore::open(dir.path()).unwrap());
    assert!(Store::open(dir.path(), tiny(), std::sync::Arc::new(clock.clone())).is_err());
    drop(looking);
    open(dir.path(), &tiny(), &clock).0.stop();
    let nothing = tempfile::tempdir().unwrap();
    let refused = StoppedStore::open(nothing.path()).unwrap_err().to_string();
    assert!(refused.contains("no data directory"), "{refused}");
}
