//! What holds over several generations of shards as it does over one: order per key, identity, the account.
//! What a crash leaves half made is in `cut_off`.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/cuts.rs"]
mod cuts;
#[path = "../support/disk.rs"]
mod disk;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

mod cut_off;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use disk::HookedDisk;
use support::{
    HandClock, copy_of, destinations, drain, event, eventually, fill, ids, names, open, tiny,
};
use wayhold_model::{DestinationId, Generation, OutcomeKind, Position, Timestamp};
use wayhold_store::{
    AppendError, AttemptRecord, Delivery, GenerationState, Lane, LaneTotals, Options, ReshardError,
    Resolution, Store,
};

fn sharded(shards: u16) -> Options {
    Options { shards, ..tiny() }
}

fn set(store: &Store, shards: u16) -> Generation {
    store.set_shards(shards, "ada", None).unwrap().unwrap()
}

fn settle(lane: &Lane, deliveries: &[Delivery]) {
    let positions: Vec<Position> = deliveries.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&positions);
}

/// Generations with their states, oldest first.
fn states(store: &Store) -> Vec<(u32, u16, GenerationState)> {
    let figures = store.generations().into_iter();
    figures
        .map(|one| (one.generation.0, one.shards, one.state))
        .collect()
}

fn exists(dir: &Path, name: &str) -> bool {
    dir.join(name).exists()
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

#[tokio::test]
async fn new_events_go_to_the_new_shards_at_once_and_a_lane_that_runs_reads_on_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(2), &HandClock::new());
    let to = destinations(&store, 2);
    let mut lane = store.lane(to[0]).unwrap();
    fill(&store, 0, 30, 1, &to).await;
    let mut read = ids(&lane.read(7).unwrap());
    assert_eq!(set(&store, 3), Generation(2));
    assert_eq!(store.set_shards(3, "ada", None).unwrap(), None, "it is so");
    let receipts = fill(&store, 30, 30, 1, &to).await;
    assert!(
        receipts
            .iter()
            .all(|one| one.position.generation == Generation(2))
    );
    assert_eq!(set(&store, 1), Generation(3));
    fill(&store, 60, 30, 1, &to).await;
    eventually("everything is read", || {
        read.extend(ids(&drain(&mut lane, 7)));
        read.len() >= 90
    });
    assert_eq!(read, names(0..90));
    // A lane that is opened now reads the same.
    assert_eq!(
        ids(&drain(&mut store.lane(to[1]).unwrap(), 7)),
        names(0..90)
    );
    assert_eq!(store.totals(to[0]).accepted, 90);
    assert_eq!(store.figures().shards, 1);
    let generations = store.generations();
    assert_eq!(generations.iter().map(|one| one.pending).sum::<u64>(), 180);
    assert_eq!(
        states(&store),
        [
            (1, 2, GenerationState::Draining),
            (2, 3, GenerationState::Draining),
            (3, 1, GenerationState::Active)
        ]
    );
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
    assert!(matches!(
        store.set_shards(2, "ada", None),
        Err(ReshardError::Stopping)
    ));
}

#[tokio::test]
async fn a_number_that_no_generation_may_have_and_too_many_shards_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(1), &HandClock::new());
    for count in [0, 65] {
        let refused = store.set_shards(count, "ada", None);
        assert!(matches!(refused, Err(ReshardError::Count)));
    }
    assert_eq!(store.catalog().generations().len(), 1);
    store.stop();
}

#[tokio::test]
async fn an_id_stays_one_event_over_generations_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (mut store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    let mut first = BTreeMap::new();
    for (round, shards) in [3, 1, 4, 2].into_iter().enumerate() {
        let round = round as u64;
        for (id, receipt) in (round * 20..).zip(fill(&store, round * 20, 20, 7, &to).await) {
            first.insert(id, receipt.position);
        }
        set(&store, shards);
        if round % 2 == 1 {
            store.stop();
            drop(store);
            store = open(dir.path(), &sharded(2), &clock).0;
        }
        for (id, position) in &first {
            let again = event(
                &id.to_string(),
                &format!("k{}", id % 7),
                &format!("data {id}"),
                &to,
            );
            let again = store.append(vec![again]).await.unwrap()[0];
            assert!(again.duplicate && again.position == *position, "{id}");
            let other = event(&id.to_string(), &format!("k{}", id % 7), "other", &to);
            let refused = store.append(vec![other]).await.unwrap_err();
            assert_eq!(
                refused,
                AppendError::Conflict {
                    index: 0,
                    first: *position
                }
            );
        }
    }
    assert_eq!(store.totals(to[0]).accepted, 80);
    store.stop();
}

/// Load of several producers, each with keys of its own and one event at a time, while the number of shards
/// changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn under_load_each_key_is_read_in_the_order_of_its_receipts_whatever_is_changed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(2), &HandClock::new());
    let to = destinations(&store, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..6)
        .map(|producer| {
            let (store, to, stop) = (store.clone(), to.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut sent = 0;
                while !stop.load(Ordering::SeqCst) {
                    let batch: Vec<_> = (0..3)
                        .map(|n| {
                            let key = format!("p{producer}-{}", n % 2);
                            event(
                                &format!("{key}/{}", sent + n),
                                &key,
                                &(sent + n).to_string(),
                                &to,
                            )
                        })
                        .collect();
                    let receipts = store.append(batch).await.unwrap();
                    assert!(receipts.iter().all(|one| !one.duplicate));
                    sent += 3;
                }
                sent
            })
        })
        .collect();
    let mut lane = store.lane(to[0]).unwrap();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0;
    let mut take = |lane: &mut Lane, max| {
        let batch = lane.read(max).unwrap();
        settle(lane, &batch);
        for delivery in &batch {
            let event = &delivery.event.event;
            let number = std::str::from_utf8(event.data()).unwrap().parse().unwrap();
            let before = last.insert(event.key().unwrap().to_owned(), number);
            assert!(
                before.is_none_or(|before| before < number),
                "{:?}",
                event.key()
            );
        }
        count += batch.len();
        batch.len()
    };
    for shards in [1, 3, 2, 4, 1, 2] {
        for _ in 0..10 {
            take(&mut lane, 40);
        }
        let changing = store.clone();
        let changed = tokio::task::spawn_blocking(move || set(&changing, shards));
        while !changed.is_finished() {
            take(&mut lane, 40);
        }
        changed.await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let mut sent = 0;
    for producer in producers {
        sent += producer.await.unwrap();
    }
    eventually("the rest is read", || {
        take(&mut lane, 40) == 0 && store.totals(to[0]).pending == 0
    });
    assert_eq!(count, sent);
    assert_eq!(store.totals(to[0]).accepted, sent as u64);
    store.stop();
}

#[tokio::test]
async fn an_older_shard_that_cannot_be_read_holds_its_keys_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &sharded(4), &HandClock::new());
    let to = destinations(&store, 1);
    let receipts = fill(&store, 0, 160, 16, &to).await;
    // Which key lies in which shard differs from directory to directory: the first key's shard fails.
    let bad = receipts[0].position.shard;
    let is_bad = |n: u64| receipts[usize::try_from(n % 16).unwrap()].position.shard == bad;
    let folder = dir.path().join(format!("g1/s{}", bad.0));
    set(&store, 3);
    eventually("its segments are indexed", || {
        let mut names = names_in(&folder);
        names.retain(|name| !name.starts_with("state"));
        let count = |ending: &str| names.iter().filter(|name| name.ends_with(ending)).count();
        count(".idx") > 0 && count(".idx") == count(".db")
    });
    let mut obstacles = Vec::new();
    for name in names_in(&folder)
        .iter()
        .filter(|name| name.ends_with(".idx"))
    {
        let path = folder.join(name);
        // One that never held anything goes by itself.
        let Ok(mut bytes) = std::fs::read(&path) else {
            continue;
        };
        *bytes.last_mut().unwrap() ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
        let obstacle = folder.join(format!("{name}.tmp"));
        std::fs::create_dir(&obstacle).unwrap();
        obstacles.push(obstacle);
    }
    fill(&store, 160, 160, 16, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let (mut read, mut failures) = (Vec::new(), 0);
    loop {
        match lane.read(9) {
            Ok(batch) if batch.is_empty() => break,
            Ok(batch) => read.extend(ids(&batch)),
            Err(_) => failures += 1,
        }
        assert!(failures < 3, "it is left alone");
    }
    let numbers: Vec<u64> = read.iter().map(|id| id.parse().unwrap()).collect();
    for n in (160..320).filter(|n| !is_bad(*n)) {
        assert!(
            numbers.contains(&n),
            "{n} has nothing to do with the shard that fails"
        );
    }
    assert!(
        numbers.iter().all(|n| *n < 160 || !is_bad(*n)),
        "its keys wait for what came before"
    );
    for obstacle in obstacles {
        std::fs::remove_dir(obstacle).unwrap();
    }
    lane.read_failed_again();
    let mut numbers = numbers;
    numbers.extend(
        drain(&mut lane, 9)
            .iter()
            .map(|one| one.event.event.id().parse::<u64>().unwrap()),
    );
    for key in 0..16 {
        let of_key: Vec<u64> = numbers.iter().copied().filter(|n| n % 16 == key).collect();
        assert_eq!(
            of_key,
            (0..320).filter(|n| n % 16 == key).collect::<Vec<_>>()
        );
    }
    store.stop();
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.collect()
}

fn given_up() -> Resolution {
    Resolution::DeadLettered(AttemptRecord {
        answer: None,
        duration: None,
        number: 1,
        at: Timestamp::from_micros(1),
        outcome: OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: Some(400),
        reason: "no".to_owned(),
    })
}

#[tokio::test]
async fn a_generation_goes_when_nothing_of_it_is_pending_kept_remembered_or_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let hour = Duration::from_secs(3600);
    let options = Options {
        retention: hour,
        window: 3 * hour,
        ..sharded(2)
    };
    let (store, _) = open(dir.path(), &options, &clock);
    let to = destinations(&store, 1);
    let receipts = fill(&store, 0, 50, 9, &to).await;
    set(&store, 3);
    let mut lane = store.lane(to[0]).unwrap();
    let mut deliveries = drain(&mut lane, 9);
    assert_eq!(deliveries.len(), 50);
    let refused = deliveries.pop().unwrap();
    lane.handle().settle(&refused.event, given_up());
    settle(&lane, &deliveries[..40]);
    assert_eq!(states(&store)[0], (1, 2, GenerationState::Draining));
    settle(&lane, &deliveries[40..]);
    eventually("it is drained", || {
        states(&store)[0].2 == GenerationState::Drained
    });
    assert!(
        store
            .event(receipts[3].position)
            .unwrap()
            .unwrap()
            .event
            .is_some(),
        "kept"
    );
    clock.forward(hour);
    eventually("nothing is kept", || store.figures().retained_bytes == 0);
    let again = store
        .append(vec![event("3", "k3", "data 3", &to)])
        .await
        .unwrap()[0];
    assert!(again.duplicate && again.position == receipts[3].position);
    clock.forward(3 * hour);
    eventually("the ids are forgotten", || {
        store.event(receipts[3].position).unwrap().is_none()
    });
    let letters = store.dead_letters();
    let letter = letters.list(None, None, 9).unwrap().remove(0);
    assert!(exists(dir.path(), "g1"), "a dead letter lies in it");
    letters.redrive(letter.id, "ada").unwrap();
    lane.handle()
        .settle_letter(letter.id, Resolution::Delivered);
    eventually("it is retired", || store.generations().len() == 1);
    eventually("its files are removed", || !exists(dir.path(), "g1"));
    let expected = LaneTotals {
        accepted: 50,
        delivered: 50,
        redriven: 1,
        ..LaneTotals::default()
    };
    assert_eq!(store.totals(to[0]), expected);
    assert!(store.event(receipts[3].position).unwrap().is_none());
    lane.handle().settle_delivered(&[receipts[3].position]);
    assert_eq!(
        store.totals(to[0]),
        expected,
        "what is late concerns nothing"
    );
    // Its number and its sequences are never given again.
    assert_eq!(set(&store, 2), Generation(3));
    fill(&store, 50, 20, 9, &to).await;
    assert_eq!(drain(&mut lane, 9).len(), 20);
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
    let (store, recovery) = open(dir.path(), &options, &clock);
    assert_eq!(
        (recovery.unclean, recovery.findings),
        (false, Vec::<String>::new())
    );
    assert_eq!(store.totals(to[0]).accepted, 70);
    assert_eq!(store.totals(to[0]).pending, 20);
    store.stop();
}

#[tokio::test]
async fn what_was_put_aside_stays_and_is_named_when_its_generation_is_retired() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let options = Options {
        window: Duration::from_secs(1),
        ..sharded(1)
    };
    let (store, _) = open(dir.path(), &options, &clock);
    let to = destinations(&store, 1);
    std::fs::write(dir.path().join("g1/s0/3.db.quarantined.1"), "evidence").unwrap();
    fill(&store, 0, 20, 3, &to).await;
    set(&store, 2);
    let mut lane = store.lane(to[0]).unwrap();
    let all = drain(&mut lane, 9);
    settle(&lane, &all);
    eventually("it is retired", || {
        clock.forward(Duration::from_secs(2));
        store.generations().len() == 1
    });
    store.stop();
    drop((lane, store));
    let (store, recovery) = open(dir.path(), &options, &clock);
    assert!(
        recovery
            .findings
            .iter()
            .any(|one| one.contains("/g1 is no longer needed"))
    );
    assert_eq!(names_in(&dir.path().join("g1/s0")), ["3.db.quarantined.1"]);
    store.stop();
}

/// Unless it was chosen, what must be free follows the shards that take events, whatever the options say of a
/// new directory; and no change brings more shards than there is room for.
#[test]
fn the_space_to_keep_free_follows_the_number_of_shards() {
    const MIB: u64 = 1024 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let clock: Arc<dyn wayhold_model::Clock> = Arc::new(HandClock::new());
    let disk = HookedDisk::new(|_, _| Ok(()));
    // With the reserve that is 512 MiB for one shard, which is the least, and 1281 MiB for four.
    let options = |shards, min_free| Options {
        segment_bytes: 160 * MIB,
        reserve_bytes: MIB,
        min_free,
        ..sharded(shards)
    };
    let start = |options| {
        let opened = Store::open_on(
            dir.path(),
            options,
            Arc::clone(&clock),
            Arc::new(disk.clone()),
        );
        opened.unwrap().0
    };
    let accepts = |store: &Store, volume: u64, expected: bool| {
        disk.set_volume(volume);
        eventually("it has looked at the volume", || {
            let free = store.figures().disk_free_bytes;
            free <= volume && free + 64 * MIB > volume
        });
        eventually(
            &format!("with {volume} bytes it accepts: {expected}"),
            || store.health().unavailable.is_none() == expected,
        );
    };
    let store = start(options(1, None));
    accepts(&store, 700 * MIB, true);
    let refused = store.set_shards(4, "ada", None);
    let told = refused.unwrap_err().to_string();
    assert!(
        told.contains(&format!("4 shards need {} free", 1281 * MIB)),
        "{told}"
    );
    assert_eq!(states(&store), [(1, 1, GenerationState::Active)]);
    accepts(&store, 2000 * MIB, true);
    set(&store, 4);
    accepts(&store, 1400 * MIB, true);
    accepts(&store, 1200 * MIB, false);
    store.stop();
    drop(store);
    // The directory's number counts, not the one for a new directory.
    let store = start(options(1, None));
    accepts(&store, 1200 * MIB, false);
    accepts(&store, 1500 * MIB, true);
    set(&store, 1);
    accepts(&store, 700 * MIB, true);
    store.stop();
    drop(store);
    // What was chosen stays.
    let store = start(options(1, Some(100 * MIB)));
    set(&store, 4);
    accepts(&store, 700 * MIB, true);
    accepts(&store, 90 * MIB, false);
    store.stop();
}
