//! That what is still owed of segments of which most is resolved survives their compaction, in order and whole;
//! that the accounts hold at every moment; and that a cut between any two steps loses and repeats nothing.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "support/disk.rs"]
mod disk;
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use disk::{HookedDisk, occupied};
use support::{HandClock, copy_of, destinations, drain, event, eventually, files, ids, open, tiny};
use wayhold_model::{DestinationId, DestinationSet, Position};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::export::Wanted;
use wayhold_store::{Delivery, NewEvent, Options, Store};

/// Of so many events one is owed to the destination that is down; each fills two segments.
const OF: u64 = 16;

/// Rows of a segment.
const ROWS: u64 = 8;

const HOUR: Duration = Duration::from_secs(3600);

/// Compacts whatever gives anything back.
fn eager() -> Options {
    Options {
        compaction_gain: 1,
        compaction_every: Duration::from_millis(20),
        ..tiny()
    }
}

/// Event `n`, owed to the first destination, and every sixteenth also to the second.
fn mostly(n: u64, to: &[DestinationId]) -> NewEvent {
    let to = if n % OF == 5 { to } else { &to[..1] };
    event(&n.to_string(), &format!("k{}", n % 3), &data(n), to)
}

/// Large enough that a row is more than what a file has besides.
fn data(n: u64) -> String {
    format!("data {n} {}", "x".repeat(2000))
}

/// Stores these events, one segment after the other.
async fn store_events(
    store: &Store,
    range: std::ops::Range<u64>,
    to: &[DestinationId],
) -> Vec<Position> {
    let mut positions = Vec::new();
    for first in range.clone().step_by(usize::try_from(ROWS).unwrap()) {
        let events = (first..range.end.min(first + ROWS)).map(|n| mostly(n, to));
        let receipts = store.append(events.collect()).await.unwrap();
        positions.extend(receipts.iter().map(|one| one.position));
    }
    positions
}

/// Delivers everything that a destination is owed.
fn deliver(store: &Store, destination: DestinationId) -> Vec<Delivery> {
    let mut lane = store.lane(destination).unwrap();
    let all = drain(&mut lane, 50);
    let positions: Vec<Position> = all.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&positions);
    all
}

/// What the destination that is down is owed of so many events.
fn owed(events: u64) -> Vec<String> {
    (0..events)
        .filter(|n| n % OF == 5)
        .map(|n| n.to_string())
        .collect()
}

/// Accepted and pending; the account has to hold.
fn account(store: &Store, destination: DestinationId) -> (u64, u64) {
    let totals = store.totals(destination);
    let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
    assert_eq!(totals.accepted, ended + totals.pending, "{totals:?}");
    (totals.accepted, totals.pending)
}

/// Databases of segments that are there.
fn databases(dir: &Path) -> Vec<String> {
    let mut names = files(dir, ".db");
    names.retain(|name| !name.starts_with("state"));
    names
}

/// As `eventually`: removing many files goes with pauses, which a slow disk makes long.
fn patiently(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(200),
            "never came true: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until all that is closed was compacted and its sources are gone, the accounts being exact meanwhile.
fn until_compacted(store: &Store, dir: &Path, to: &[DestinationId]) {
    let accounts: Vec<_> = to.iter().map(|one| account(store, *one)).collect();
    patiently("it is compacted", || {
        let now: Vec<_> = to.iter().map(|one| account(store, *one)).collect();
        assert_eq!(now, accounts);
        let figures = store.figures();
        let (closed, compacted) = (figures.segments_closed, figures.segments_compacted);
        // Beside them the active one and the prepared one.
        closed == compacted && compacted > 0 && databases(dir).len() as u64 == compacted + 2
    });
}

/// A store of which the second destination is owed a sixteenth, compacted.
async fn compacted(
    dir: &Path,
    options: &Options,
    clock: &HandClock,
    events: u64,
) -> (Store, Vec<DestinationId>) {
    let (store, _) = open(dir, options, clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..events, &to).await;
    assert_eq!(deliver(&store, to[0]).len() as u64, events);
    until_compacted(&store, dir, &to);
    (store, to)
}

/// A store with the same that nothing was compacted of, checkpointed and with everything else delivered.
async fn uncompacted(dir: &Path, clock: &HandClock, events: u64) -> Store {
    let (store, _) = open(dir, &tiny(), clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..events, &to).await;
    until_checkpointed(dir, events / ROWS);
    deliver(&store, to[0]);
    let half = events / ROWS / 2;
    eventually("the others are resolved", || {
        store.figures().segments_closed == half
    });
    store
}

/// Waits until the logs of these segments, counted from the first, are moved into their databases.
fn until_checkpointed(dir: &Path, segments: u64) {
    let shard = dir.join("g1/s0");
    eventually("all is checkpointed", || {
        (1..=segments).all(|number| {
            let log = shard.join(format!("{number}.db-wal"));
            shard.join(format!("{number}.idx")).exists()
                && log.metadata().map_or(true, |log| log.len() == 0)
        })
    });
}

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

/// The directory as it is before every single change of a file while segments are compacted and removed, opened
/// again: the accounts are exact, what is owed comes in order, and what is delivered comes no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_may_be_cut_off_before_each_of_its_steps() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let copies: Arc<Mutex<Vec<(String, tempfile::TempDir)>>> = Arc::default();
    let is_watched = Arc::new(AtomicBool::new(false));
    let disk: Arc<OnceLock<HookedDisk>> = Arc::default();
    let hook = {
        let (copies, is_watched) = (Arc::clone(&copies), Arc::clone(&is_watched));
        let disk = Arc::clone(&disk);
        let path = dir.path().to_owned();
        move |operation: &'static str, at: &Path| {
            if is_watched.load(Ordering::SeqCst) {
                let mut copies = copies.lock().unwrap();
                let copy = disk.get().unwrap().still(|| copy_of(&path));
                copies.push((format!("{operation} {}", at.display()), copy));
            }
            Ok(())
        }
    };
    let disk = disk.get_or_init(|| HookedDisk::new(hook)).clone();
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
    is_watched.store(true, Ordering::SeqCst);
    until_compacted(&store, dir.path(), &to);
    is_watched.store(false, Ordering::SeqCst);
    store.stop();
    let copies = std::mem::take(&mut *copies.lock().unwrap());
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
async fn events_that_letters_refer_to_are_kept_and_sent_again() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    for first in (0..96).step_by(8) {
        let events = (first..first + ROWS).map(|n| NewEvent {
            set_aside: (n % OF == 5).then(|| Arc::new(DestinationSet::new([to[1]]))),
            ..mostly(n, &to)
        });
        store.append(events.collect()).await.unwrap();
    }
    deliver(&store, to[0]);
    until_compacted(&store, dir.path(), &to);
    let letters = || {
        let listed = store.dead_letters().list(None, None, 100).unwrap();
        let letters = listed.iter().map(|one| one.event.event.id().to_owned());
        letters.collect::<Vec<_>>()
    };
    assert_eq!(letters(), owed(96));
    assert_eq!(account(&store, to[1]), (6, 0));
    store.stop();
}

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
async fn shards_that_take_no_more_events_are_compacted_too() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    store.set_shards(2, "ada", None).unwrap();
    deliver(&store, to[0]);
    patiently("it is compacted", || {
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
    assert_eq!(ids(&deliver(&store, to[1])), owed(64));
    assert_eq!(account(&store, to[1]), (4, 0));
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
    patiently("it is compacted and forgotten", || {
        let figures = store.figures();
        // Segments of which little is to be gained stay as they are.
        let left = figures.segment_bytes + figures.index_bytes + figures.retained_bytes;
        account(&store, to[0]) == (events, 0)
            && left < bytes / 33
            && databases(dir.path()).len() as u64 == figures.segments_closed + 2
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

/// `cargo test -p wayhold-store --test compaction -- --ignored --nocapture`
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

/// What is still owed, as an export of the stopped store has it.
fn exported(stopped: &StoppedStore) -> Vec<String> {
    let mut exported = Vec::new();
    let summary = stopped.export(Wanted::default(), &mut |one| {
        exported.push(one.event.event.id().to_owned());
        Ok(())
    });
    let summary = summary.unwrap();
    assert!(summary.damaged == 0 && summary.unreadable.is_empty());
    exported
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
    assert!(!compacted.is_empty());
    for one in compacted {
        assert!(one.covers == one.span && one.rows > 0 && one.bytes.is_some());
    }
    let pending: u64 = segments.iter().flat_map(|one| one.pending.values()).sum();
    assert_eq!(pending, 4);
}
