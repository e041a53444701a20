//! What holds over several generations of shards as it does over one: order per key, identity, the account;
//! and that a generation that a crash left half made is completed.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::sync::Arc;

use support::{HandClock, destinations, drain, event, fill, ids, names, open, tiny};
use wayhold_model::Generation;
use wayhold_store::{Options, Store};

fn sharded(shards: u16) -> Options {
    Options { shards, ..tiny() }
}

#[tokio::test]
async fn a_generation_that_is_only_named_is_made_by_the_next_start_and_the_older_one_drains() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    let first = fill(&store, 0, 40, 1, &to).await;
    store.stop();
    drop(store);
    let alone = Store::catalog_alone(dir.path(), Arc::new(clock.clone())).unwrap();
    let named = alone.catalog.add_generation(3, "ada", None).unwrap();
    assert_eq!(named, Generation(2));
    drop(alone);
    // Whatever a crash left of it is completed.
    std::fs::create_dir_all(dir.path().join("g2/s1")).unwrap();
    for _ in 0..2 {
        let (store, recovery) = open(dir.path(), &sharded(1), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new());
        assert_eq!(store.shards(), 3);
        assert!(store.catalog().generations().iter().all(|one| one.made));
        store.stop();
    }
    let (store, _) = open(dir.path(), &sharded(1), &clock);
    let again = store.append(vec![event("7", "k0", "data 7", &to)]).await;
    let again = again.unwrap()[0];
    assert!(again.duplicate && again.position == first[7].position);
    let second = fill(&store, 40, 40, 1, &to).await;
    assert!(second.iter().all(|one| one.position.generation == named));
    let mut lane = store.lane(to[0]).unwrap();
    assert_eq!(ids(&drain(&mut lane, 7)), names(0..80));
    store.stop();
}
