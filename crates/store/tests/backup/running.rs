//! Backups while events come, are settled and are removed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use wayhold_model::DestinationId;
use wayhold_store::backup::{BackupError, Progress};
use wayhold_store::{Options, RunState, Store};

use crate::disk::HookedDisk;
use crate::mortal::MortalDisk;
use crate::support::{HandClock, destinations, event, eventually, fill, open, tiny};
use crate::{assert_restored, back_up, pending, restored, sharded};

/// Keys of the events.
const KEYS: u64 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_holds_all_that_was_acknowledged_before_it_began() {
    for shards in [1, 3] {
        under_load(shards).await;
    }
}

async fn under_load(shards: u16) {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &sharded(shards), &clock);
    let to = destinations(&store, 2);
    let (served, stuck) = (to[0], to[1]);
    let (acknowledged, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );

    let producing = {
        let (store, to) = (store.clone(), to.clone());
        let (acknowledged, stop) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut next = 0;
            while !stop.load(Ordering::SeqCst) {
                // Every fourth event concerns the destination that takes nothing.
                let to = if next % 4 == 0 { &to[..] } else { &to[..1] };
                fill(&store, next, 1, KEYS, to).await;
                next += 1;
                acknowledged.store(next, Ordering::SeqCst);
            }
        })
    };
    let delivered = Arc::new(AtomicU64::new(0));
    let delivering = {
        let mut lane = store.lane(served).unwrap();
        let (stop, delivered) = (Arc::clone(&stop), Arc::clone(&delivered));
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let read = lane.read(16).unwrap();
                let positions: Vec<_> = read.iter().map(|one| one.event.position).collect();
                lane.handle().settle_delivered(&positions);
                delivered.fetch_add(positions.len() as u64, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };

    eventually("some segments were filled and some removed", || {
        acknowledged.load(Ordering::SeqCst) > 200 && delivered.load(Ordering::SeqCst) > 100
    });
    let backup = tempfile::tempdir().unwrap();
    let before = acknowledged.load(Ordering::SeqCst);
    let progress = Progress::default();
    let manifest = tokio::task::block_in_place(|| store.back_up(backup.path(), &progress)).unwrap();
    let after = acknowledged.load(Ordering::SeqCst);
    stop.store(true, Ordering::SeqCst);
    producing.await.unwrap();
    delivering.join().unwrap();
    assert_eq!(manifest.shards.len(), usize::from(shards));
    assert!(manifest.left_out.is_empty(), "{:?}", manifest.left_out);
    assert_eq!(progress.copied(), manifest.bytes());

    let copy = tempfile::tempdir().unwrap();
    let told = restored(backup.path(), copy.path(), &clock).unwrap();
    let (restored, _) = open(copy.path(), &sharded(shards), &clock);
    assert_restored(&restored, &told, store.catalog().node_id());

    // The destination that took nothing is owed everything of before, once, in order.
    let owed = pending(&restored, stuck);
    let mut all: Vec<u64> = owed.values().flatten().copied().collect();
    all.sort_unstable();
    let due = before.div_ceil(4);
    let expected: Vec<u64> = (0..due).map(|n| 4 * n).collect();
    let (first, rest) = all.split_at(expected.len());
    assert_eq!(first, expected, "no gaps and nothing twice");
    assert!(rest.iter().all(|n| *n <= after && n % 4 == 0), "{rest:?}");
    // What came while it was made is there up to a moment of each key.
    let without_gaps = |of: &Vec<u64>| of.windows(2).all(|two| two[1] == two[0] + 4 * KEYS);
    assert!(owed.values().all(without_gaps), "{owed:?}");
    let in_order = |of: &Vec<u64>| of.is_sorted_by(|one, other| one < other);
    // The other one's are pending or resolved.
    let owed = pending(&restored, served);
    assert!(owed.values().all(in_order), "{owed:?}");
    let totals = restored.totals(served);
    assert_eq!(totals.accepted, totals.pending + totals.delivered);
    for n in 0..before {
        let found = restored.find("/test", &n.to_string()).unwrap();
        let found = found.expect("acknowledged before the backup began");
        let is_owed = owed
            .get(&format!("k{}", n % KEYS))
            .is_some_and(|of_key| of_key.contains(&n));
        let state = restored.delivery_state(found.position, served).unwrap();
        let is_pending = matches!(state, wayhold_store::DeliveryState::Pending);
        assert_eq!(is_owed, is_pending, "event {n}: {state:?}");
        // Known ids keep their first receipt.
        let original = store.find("/test", &n.to_string()).unwrap().unwrap();
        assert_eq!(original.position, found.position);
    }
    assert_idempotent(&restored, served, before).await;
    assert_eq!(told.generation, 1001);
    restored.stop();
    store.stop();
}

/// Known ids are known, and what is new lies where the original never puts anything.
async fn assert_idempotent(restored: &Store, to: DestinationId, known: u64) {
    let again = fill(restored, 0, known, KEYS, &[to]).await;
    assert!(again.iter().all(|receipt| receipt.duplicate));
    let new = fill(restored, 1_000_000, 8, KEYS, &[to]).await;
    for receipt in new {
        assert!(!receipt.duplicate && receipt.position.generation.0 == 1001);
    }
}

#[tokio::test]
async fn a_copy_of_a_copy_has_a_place_of_its_own_again() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (mut store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    let mut places = vec![dir];
    for round in 0..3 {
        fill(&store, round * 20, 20, KEYS, &to).await;
        let backup = tempfile::tempdir().unwrap();
        back_up(&store, backup.path());
        let copy = tempfile::tempdir().unwrap();
        let told = restored(backup.path(), copy.path(), &clock).unwrap();
        assert_eq!(
            told.generation,
            (u32::try_from(round).unwrap() + 1) * 1000 + 1
        );
        let original = store.catalog().node_id().to_owned();
        store.stop();
        (store, _) = open(copy.path(), &sharded(2), &clock);
        assert_restored(&store, &told, &original);
        places.push(copy);
    }
    let all: usize = pending(&store, to[0]).values().map(Vec::len).sum();
    assert_eq!(all, 60);
    store.stop();
}

#[tokio::test]
async fn what_an_operator_had_stopped_stays_stopped_and_says_why() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 3);
    let catalog = store.catalog();
    catalog
        .set_run_state(to[0], RunState::Paused, "bob", Some("stock-taking"))
        .unwrap();
    catalog
        .set_run_state(to[1], RunState::Disabled, "bob", Some("gone"))
        .unwrap();
    let backup = tempfile::tempdir().unwrap();
    back_up(&store, backup.path());
    let copy = tempfile::tempdir().unwrap();
    let told = restored(backup.path(), copy.path(), &clock).unwrap();
    assert_eq!(told.paused, ["d3"]);
    let (store, _) = open(copy.path(), &tiny(), &clock);
    let states = store.catalog().destinations().into_iter();
    let states: Vec<_> = states
        .map(|one| (one.state, one.reason.unwrap_or_default()))
        .collect();
    assert_eq!(states[0].0, RunState::Paused);
    assert!(states[0].1.contains("stock-taking") && states[0].1.contains("restored"));
    assert_eq!(states[1], (RunState::Disabled, "gone".to_owned()));
    assert_eq!(states[2].0, RunState::Paused);
    let trail = store.catalog().audit_trail(None, 1).unwrap();
    assert_eq!(
        (trail[0].action.as_str(), trail[0].by.as_str()),
        ("store.restored", "ada")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_backup_is_refused_and_a_stop_ends_the_first() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (begun, wait) = mpsc::channel::<()>();
    let (go_on, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let backup = tempfile::tempdir().unwrap();
    let below = backup.path().to_owned();
    let disk = HookedDisk::new(move |_, path| {
        if path.starts_with(&below) && path.ends_with("unfinished") {
            begun.send(()).unwrap();
            held.lock().unwrap().recv().unwrap();
        }
        Ok(())
    });
    let (store, _) =
        Store::open_on(dir.path(), tiny(), Arc::new(clock.clone()), Arc::new(disk)).unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 30, KEYS, &to).await;
    let first = {
        let (store, to) = (store.clone(), backup.path().to_owned());
        std::thread::spawn(move || store.back_up(&to, &Progress::default()))
    };
    wait.recv().unwrap();
    let other = tempfile::tempdir().unwrap();
    let second = store.back_up(other.path(), &Progress::default());
    assert!(matches!(second, Err(BackupError::Running)), "{second:?}");
    assert!(std::fs::read_dir(other.path()).unwrap().next().is_none());
    store.stop();
    go_on.send(()).unwrap();
    let ended = first.join().unwrap();
    assert!(matches!(ended, Err(BackupError::Stopping)), "{ended:?}");
    assert!(!backup.path().join("manifest.json").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_during_which_the_number_of_shards_changes_is_none_and_the_next_one_holds_all() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (begun, wait) = mpsc::channel::<()>();
    let (go_on, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let place = tempfile::tempdir().unwrap();
    let below = place.path().join("first");
    // A mark is written once the segments are copied.
    let disk = HookedDisk::new(move |_, path| {
        if path.starts_with(&below) && path.ends_with("mark") && begun.send(()).is_ok() {
            held.lock().unwrap().recv().ok();
        }
        Ok(())
    });
    let (store, _) =
        Store::open_on(dir.path(), tiny(), Arc::new(clock.clone()), Arc::new(disk)).unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 30, KEYS, &to).await;
    let first = {
        let (store, to) = (store.clone(), place.path().join("first"));
        std::thread::spawn(move || store.back_up(&to, &Progress::default()))
    };
    wait.recv().unwrap();
    drop(wait);
    store.set_shards(3, "ada", None).unwrap();
    fill(&store, 30, 30, KEYS, &to).await;
    drop(go_on);
    let ended = first.join().unwrap();
    assert!(matches!(ended, Err(BackupError::Resharded)), "{ended:?}");
    let (backup, copy) = (place.path().join("second"), place.path().join("copy"));
    assert_eq!(back_up(&store, &backup).shards.len(), 4);
    let original = store.catalog().node_id().to_owned();
    store.stop();
    let told = restored(&backup, &copy, &clock).unwrap();
    let (restored, _) = open(&copy, &tiny(), &clock);
    assert_restored(&restored, &told, &original);
    assert_eq!(restored.shards(), 3, "as many as the original's newest");
    let owed = pending(&restored, to[0]);
    assert_eq!(owed.values().map(Vec::len).sum::<usize>(), 60);
    assert!(owed.values().all(|of| of.is_sorted()), "{owed:?}");
    restored.stop();
}

#[tokio::test]
async fn a_volume_that_runs_low_ends_a_backup_and_words_about_the_directory_come_first() {
    const MIB: u64 = 1024 * 1024;
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let disk = HookedDisk::new(|_, _| Ok(()));
    let options = Options {
        min_free: Some(20 * MIB),
        ..tiny()
    };
    let as_disk = Arc::new(disk.clone());
    let (store, _) = Store::open_on(dir.path(), options, Arc::new(clock.clone()), as_disk).unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 30, KEYS, &to).await;
    disk.set_volume(10 * MIB);
    eventually("the volume is low", || store.health().unavailable.is_some());
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup");
    let ended = store.back_up(&backup, &Progress::default());
    assert!(matches!(ended, Err(BackupError::NoSpace)), "{ended:?}");
    std::fs::write(backup.join("notes.txt"), "mine").unwrap();
    let ended = store.back_up(&backup, &Progress::default());
    assert!(
        matches!(ended, Err(BackupError::Destination { .. })),
        "{ended:?}"
    );
    std::fs::remove_file(backup.join("notes.txt")).unwrap();
    disk.set_volume(u64::MAX);
    eventually("there is room again", || {
        store.health().unavailable.is_none()
    });
    back_up(&store, &backup);
    store.stop();
}

#[tokio::test]
async fn a_damaged_segment_is_left_out_with_its_name_and_the_rest_is_saved() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, KEYS, &to).await;
    store.stop();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let damaged = dir.path().join("g1/s0/2.db");
    eventually("it is checkpointed", || {
        std::fs::metadata(dir.path().join("g1/s0/2.db-wal")).map_or(0, |log| log.len()) == 0
    });
    std::fs::write(&damaged, [7; 16384]).unwrap();
    let backup = tempfile::tempdir().unwrap();
    let manifest = back_up(&store, backup.path());
    assert_eq!(manifest.left_out.len(), 1, "{:?}", manifest.left_out);
    assert!(manifest.left_out[0].starts_with("g1/s0/2.db: "));
    let copy = tempfile::tempdir().unwrap();
    restored(backup.path(), copy.path(), &clock).unwrap();
    let (restored, _) = open(copy.path(), &tiny(), &clock);
    let degraded = restored.health().degraded.join("\n");
    assert!(
        degraded.contains("2.db is missing with 8 unresolved"),
        "{degraded}"
    );
    let all: usize = pending(&restored, to[0]).values().map(Vec::len).sum();
    assert_eq!(all, 32);
}

#[tokio::test]
async fn a_directory_that_is_not_fit_for_a_backup_is_refused_and_left_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let places = tempfile::tempdir().unwrap();
    let place = |name: &str| places.path().join(name);
    std::fs::create_dir(place("full")).unwrap();
    std::fs::write(place("full/notes.txt"), "mine").unwrap();
    std::fs::create_dir(place("marked")).unwrap();
    std::fs::write(place("marked/unfinished"), "").unwrap();
    std::fs::write(place("marked/notes.txt"), "mine").unwrap();
    std::os::unix::fs::symlink(dir.path(), place("link")).unwrap();
    back_up(&store, &place("made"));
    for (path, words) in [
        (place("full"), "notes.txt"),
        (place("marked"), "notes.txt"),
        (place("made"), "holds a backup already"),
        (place("link"), "data directory"),
        (place("link/inside"), "data directory"),
        (dir.path().join("inside"), "data directory"),
        (dir.path().parent().unwrap().to_owned(), "data directory"),
        (place("absent/inside"), "parent"),
        ("relative".into(), "absolute"),
    ] {
        let refused = store.back_up(&path, &Progress::default()).unwrap_err();
        let told = refused.to_string();
        assert!(told.contains(words), "{}: {told}", path.display());
    }
    assert_eq!(
        std::fs::read_to_string(place("full/notes.txt")).unwrap(),
        "mine"
    );
    assert!(!dir.path().join("inside").exists() && !place("absent").exists());
    for (path, mode) in [
        ("made", 0o700),
        ("made/g1/s0", 0o700),
        ("made/catalog.db", 0o600),
        ("made/manifest.json", 0o600),
    ] {
        use std::os::unix::fs::PermissionsExt;
        let found = std::fs::metadata(place(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path}");
    }
}

#[tokio::test]
async fn backups_of_an_empty_store_and_of_old_generations_restore_too() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    back_up(&store, first.path());
    fill(&store, 0, 30, KEYS, &to).await;
    store.catalog().add_generation(3, "ada", None).unwrap();
    store.stop();
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    fill(&store, 30, 30, KEYS, &to).await;
    let manifest = back_up(&store, second.path());
    assert_eq!(manifest.shards.len(), 5);
    for (backup, expected) in [(first, 0), (second, 60)] {
        let copy = tempfile::tempdir().unwrap();
        let told = restored(backup.path(), copy.path(), &clock).unwrap();
        let (restored, _) = open(copy.path(), &sharded(2), &clock);
        assert_restored(&restored, &told, store.catalog().node_id());
        let all = pending(&restored, to[0]);
        assert_eq!(all.values().map(Vec::len).sum::<usize>(), expected);
        assert!(all.values().all(|of| of.is_sorted()), "{all:?}");
        fill(&restored, 100, 9, KEYS, &to).await;
        restored.stop();
    }
}

#[tokio::test]
async fn what_reads_a_dead_disk_says_so_and_the_store_goes_on() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let backup = tempfile::tempdir().unwrap();
    let disk = MortalDisk::new(backup.path(), 20);
    let (store, _) =
        Store::open_on(dir.path(), tiny(), Arc::new(clock.clone()), Arc::new(disk)).unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 30, KEYS, &to).await;
    let failed = store.back_up(backup.path(), &Progress::default());
    assert!(failed.unwrap_err().to_string().contains("dead"));
    let new = event("new", "k", "data new", &to);
    store.append(vec![new]).await.unwrap();
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}
