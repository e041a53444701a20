//! A generation that a crash left half made is completed, and shards that nobody knows of are a fault.

use super::*;
use crate::cuts::Cuts;

#[tokio::test]
async fn shards_that_the_catalogue_does_not_know_are_a_fault_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &sharded(1), &clock);
    store.stop();
    drop(store);
    let older = copy_of(dir.path());
    let (store, _) = open(dir.path(), &sharded(1), &clock);
    set(&store, 2);
    store.stop();
    drop(store);
    // The catalogue of a backup beside newer shards.
    std::fs::copy(
        older.path().join("catalog.db"),
        dir.path().join("catalog.db"),
    )
    .unwrap();
    let opened = Store::open(dir.path(), sharded(1), Arc::new(clock));
    let told = opened.map(|_| ()).unwrap_err().to_string();
    assert!(
        told.contains("g2") && told.contains("catalogue does not know"),
        "{told}"
    );
    assert!(exists(dir.path(), "g2/s1/mark"));
}

/// What a switch and the retirement after it do to the disk, cut at every single operation: the directory as
/// it was before the operation is opened again, nothing is lost, nothing comes twice that was known to be
/// delivered, the order holds, and the change can be made once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_may_be_cut_off_before_each_of_its_steps_and_made_again() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        window: Duration::from_secs(1),
        ..sharded(1)
    };
    let (cuts, disk) = Cuts::of(dir.path());
    let opened = Store::open_on(
        dir.path(),
        options.clone(),
        Arc::new(clock.clone()),
        Arc::new(disk),
    );
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 12, 3, &to).await;
    cuts.watch(true);
    set(&store, 2);
    fill(&store, 12, 6, 3, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let mut read = Vec::new();
    eventually("all is read", || {
        read.extend(drain(&mut lane, 9));
        read.len() == 18
    });
    read.retain(|one| one.event.position.generation == Generation(1));
    settle(&lane, &read);
    lane.handle().durable().await.unwrap();
    // A copy before each step and syncs on a busy disk take as long as they take: only a store that takes no
    // step any more has not removed it.
    let mut steps = 0;
    while exists(dir.path(), "g1") {
        eventually(
            "the first generation is removed, or another step towards it",
            || {
                clock.forward(Duration::from_secs(2));
                let taken = cuts.count();
                let goes_on = taken > steps || !exists(dir.path(), "g1");
                steps = taken;
                goes_on
            },
        );
    }
    cuts.watch(false);
    store.stop();
    let copies = cuts.take();
    let has = |what: &str| {
        copies
            .iter()
            .any(|(operation, _)| operation.starts_with(what))
    };
    assert!(has("create_directory") && has("replace") && has("unlink") && has("remove_directory"));
    for (operation, copy) in copies {
        let (store, recovery) = open(copy.path(), &options, &clock);
        assert_eq!(recovery.findings, Vec::<String>::new(), "{operation}");
        check(&store, to[0], &operation).await;
        store.stop();
    }
}

/// Whatever was accepted before the cut is counted and comes in order; and what goes on from there works.
async fn check(store: &Store, to: DestinationId, operation: &str) {
    let totals = store.totals(to);
    assert!(
        (12..=18).contains(&totals.accepted),
        "{operation}: {totals:?}"
    );
    assert_eq!(
        totals.accepted,
        totals.delivered + totals.pending,
        "{operation}"
    );
    store.set_shards(3, "ada", None).unwrap();
    fill(store, 99, 9, 3, &[to]).await;
    let mut lane = store.lane(to).unwrap();
    let mut read = Vec::new();
    eventually(operation, || {
        read.extend(drain(&mut lane, 9));
        read.len() as u64 >= totals.pending + 9
    });
    let numbers: Vec<u64> = ids(&read).iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(numbers.len() as u64, totals.pending + 9, "{operation}");
    for key in 0..3 {
        let of_key = numbers.iter().filter(|n| *n % 3 == key);
        assert!(of_key.is_sorted(), "{operation}: {numbers:?}");
    }
}
