//! How long what is resolved is kept, and that its end disturbs and loses nothing.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/disk.rs"]
mod disk;
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::{HookedDisk, occupied};
use support::{
    HandClock, copy_of, destinations, drain, event, eventually, files, fill, ids, names, open, tiny,
};
use wayhold_model::{DestinationId, OutcomeKind, Position, Timestamp};
use wayhold_store::{AppendError, AttemptRecord, Options, Resolution, Store};

const HOUR: Duration = Duration::from_secs(3600);

/// Keeps everything until a suite says otherwise.
fn keeping() -> Options {
    Options {
        retention: HOUR,
        retention_bytes: u64::MAX,
        ..tiny()
    }
}

/// Stores `count` events and delivers them all; their places.
async fn delivered(store: &Store, count: u64, to: &[DestinationId]) -> Vec<Position> {
    let receipts = fill(store, 0, count, 3, to).await;
    for destination in to {
        let mut lane = store.lane(*destination).unwrap();
        let positions: Vec<_> = drain(&mut lane, 100)
            .iter()
            .map(|delivery| delivery.event.position)
            .collect();
        lane.handle().settle_delivered(&positions);
    }
    receipts.iter().map(|receipt| receipt.position).collect()
}

/// Databases of segments that are there.
fn databases(dir: &Path) -> usize {
    let names = files(dir, ".db");
    names
        .iter()
        .filter(|name| !name.starts_with("state"))
        .count()
}

/// Whether the account of each destination adds up to `accepted` with nothing pending.
fn assert_accounts(store: &Store, to: &[DestinationId], accepted: u64) {
    for destination in to {
        let totals = store.totals(*destination);
        let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
        assert_eq!(
            (totals.accepted, totals.pending, ended),
            (accepted, 0, accepted)
        );
    }
}

fn is_whole(store: &Store, position: Position) -> bool {
    let found = store.event(position).unwrap().unwrap();
    assert_eq!(found.position, position);
    found.event.is_some()
}

/// Positions of events that are still there whole, of those given.
fn whole(store: &Store, positions: &[Position]) -> Vec<u64> {
    let whole = positions.iter().filter(|place| is_whole(store, **place));
    whole.map(|place| place.sequence.0).collect()
}

#[tokio::test]
async fn what_is_resolved_is_kept_whole_for_the_time_and_as_a_trace_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 2);
    let positions = delivered(&store, 40, &to).await;
    eventually("all closed segments are resolved", || {
        let figures = store.figures();
        figures.segments_closed == 0 && figures.segments_retained == 5
    });
    let figures = store.figures();
    assert!(figures.retained_bytes > 5 * 4096);
    assert_accounts(&store, &to, 40);
    // Long enough in the tail cache's absence: after a restart everything comes from the disk.
    store.stop();
    let (store, recovery) = open(dir.path(), &keeping(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert_eq!(store.figures().segments_retained, 5);
    assert_eq!(store.figures().retained_bytes, figures.retained_bytes);
    assert_accounts(&store, &to, 40);
    assert_eq!(whole(&store, &positions).len(), 40);
    let found = store.find("/test", "17").unwrap().unwrap();
    assert_eq!(&found.event.unwrap().event.data()[..], b"data 17");
    assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 100).len(), 0);

    clock.forward(HOUR);
    eventually("their time is over", || {
        store.figures().segments_retained == 0 && databases(dir.path()) == 2
    });
    assert_eq!(store.figures().retained_bytes, 0);
    assert_accounts(&store, &to, 40);
    assert_eq!(whole(&store, &positions), Vec::<u64>::new());
    assert_eq!(files(dir.path(), ".idx").len(), 5);
    let again = fill(&store, 0, 40, 3, &to).await;
    assert!(again.iter().all(|receipt| receipt.duplicate));
    store.stop();
    let (store, recovery) = open(dir.path(), &keeping(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert_accounts(&store, &to, 40);
    store.stop();
}

#[tokio::test]
async fn the_time_counts_from_the_resolution_also_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 8, 3, &to).await;
    // Pending for longer than anything is kept once it is resolved.
    clock.forward(3 * HOUR);
    let mut lane = store.lane(to[0]).unwrap();
    let pending = drain(&mut lane, 100);
    let positions: Vec<_> = pending.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&positions);
    eventually("it is resolved", || store.figures().segments_retained == 1);
    clock.forward(HOUR / 2);
    store.stop();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    assert_eq!(whole(&store, &positions).len(), 8);
    clock.forward(HOUR / 2);
    eventually("its time is over", || whole(&store, &positions).is_empty());
    store.stop();
}

#[tokio::test]
async fn what_is_beyond_the_bytes_goes_oldest_first() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 1);
    let positions = delivered(&store, 40, &to).await;
    eventually("all are resolved", || {
        store.figures().segments_retained == 5
    });
    let bytes = store.figures().retained_bytes;
    store.stop();
    // Room for two and a half.
    let less = Options {
        retention_bytes: bytes / 2,
        ..keeping()
    };
    let (store, _) = open(dir.path(), &less, &clock);
    eventually("the oldest have gone", || {
        store.figures().segments_retained == 2
    });
    assert!(store.figures().retained_bytes <= bytes / 2);
    assert_eq!(whole(&store, &positions), (25..=40).collect::<Vec<_>>());
    assert_accounts(&store, &to, 40);
    store.stop();
}

#[tokio::test]
async fn what_is_kept_gives_way_to_new_events_before_any_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let disk = HookedDisk::new(|_, _| Ok(()));
    let options = Options {
        min_free: Some(1024 * 1024),
        ..keeping()
    };
    let (store, _) = Store::open_on(
        dir.path(),
        options,
        Arc::new(clock.clone()),
        Arc::new(disk.clone()),
    )
    .unwrap();
    let to = destinations(&store, 1);
    let positions = delivered(&store, 80, &to).await;
    eventually("all are resolved", || {
        store.figures().segments_retained == 10
    });
    let segment = store.figures().retained_bytes / 10;
    // One segment's room is missing, all at once.
    disk.set_volume(occupied(dir.path()) + 1024 * 1024 - segment / 2);
    for n in 1000..1008 {
        store
            .append(vec![event(&n.to_string(), "", "x", &[])])
            .await
            .unwrap();
    }
    eventually("the oldest gave way", || {
        store.figures().disk_free_bytes >= 1024 * 1024 && !is_whole(&store, positions[0])
    });
    assert_eq!(store.health().unavailable, None);
    assert!(
        store.figures().segments_retained >= 3,
        "no more than had to"
    );
    // Nothing that is kept helps any more: then it is refused.
    disk.set_volume(0);
    eventually("nothing is kept", || store.figures().segments_retained == 0);
    eventually("it is refused", || store.health().unavailable.is_some());
    let refused = store.append(vec![event("2000", "", "x", &to)]).await;
    let Err(AppendError::NoSpace { retry_after }) = refused else {
        panic!("{refused:?}");
    };
    assert!((1..=60).contains(&retry_after.as_secs()), "{retry_after:?}");
    // What is known takes no room: it is answered all the same, and as a conflict where it is one.
    let known = event("1007", "", "x", &[]);
    let receipt = store.append(vec![known]).await.unwrap();
    assert!(receipt[0].duplicate);
    let other = event("1007", "", "y", &[]);
    let conflict = store.append(vec![other]).await;
    assert!(matches!(conflict, Err(AppendError::Conflict { .. })));
    assert_accounts(&store, &to, 80);
    store.stop();
}

#[tokio::test]
async fn a_restart_between_any_two_steps_counts_once_delivers_nothing_again_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let options = Options {
        removal_step: 16 * 1024,
        retention: Duration::ZERO,
        ..tiny()
    };
    let copies: Arc<Mutex<Vec<(String, tempfile::TempDir)>>> = Arc::default();
    let disk = {
        let (copies, from) = (Arc::clone(&copies), dir.path().to_owned());
        HookedDisk::new(move |operation, path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            copies
                .lock()
                .unwrap()
                .push((format!("{operation} {name}"), copy_of(&from)));
            Ok(())
        })
    };
    let (store, _) = Store::open_on(
        dir.path(),
        options.clone(),
        Arc::new(clock.clone()),
        Arc::new(disk),
    )
    .unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 16, 3, &to).await;
    copies.lock().unwrap().clear();
    let mut lane = store.lane(to[0]).unwrap();
    let all = drain(&mut lane, 100);
    let handle = lane.handle();
    for delivery in &all[1..] {
        handle.settle(&delivery.event, Resolution::Delivered);
    }
    handle.settle(&all[0].event, Resolution::DeadLettered(attempt()));
    eventually("they are removed", || databases(dir.path()) == 2);
    store.stop();
    let copies = std::mem::take(&mut *copies.lock().unwrap());
    let steps: Vec<&str> = copies.iter().map(|(step, _)| step.as_str()).collect();
    for step in [
        "overwrite 1.idx",
        "rename 1.db",
        "shorten 1.db-wal",
        "unlink 1.db.gone",
    ] {
        assert!(steps.contains(&step), "{step} in {steps:?}");
    }
    for (step, copy) in copies {
        for options in [&options, &keeping()] {
            let copy = copy_of(copy.path());
            let (store, recovery) = open(copy.path(), options, &clock);
            assert_eq!(recovery.findings, Vec::<String>::new(), "before {step}");
            // What was settled and not yet written is delivered again, and nothing else can be.
            let mut lane = store.lane(to[0]).unwrap();
            let again = drain(&mut lane, 100);
            let handle = lane.handle();
            for delivery in &again {
                handle.settle(&delivery.event, Resolution::Delivered);
            }
            assert!(
                again.len() <= 8 || step.starts_with("replace"),
                "before {step}"
            );
            assert_accounts(&store, &to, 16);
            if options.retention.is_zero() {
                eventually("nothing of them is left", || {
                    databases(copy.path()) == 2
                        && files(copy.path(), ".gone").is_empty()
                        && files(copy.path(), "-wal").len() <= 3
                });
                assert_accounts(&store, &to, 16);
            }
            assert_eq!(
                store.health().degraded,
                Vec::<String>::new(),
                "before {step}"
            );
            store.stop();
            let (store, recovery) = open(copy.path(), options, &clock);
            assert_eq!(recovery.findings, Vec::<String>::new(), "before {step}");
            assert_accounts(&store, &to, 16);
            store.stop();
        }
    }
}

fn attempt() -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number: 1,
        at: Timestamp::from_micros(1),
        outcome: OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: Some(410),
        reason: "gone".to_owned(),
    }
}

#[tokio::test]
async fn a_step_that_fails_is_named_and_tried_again_and_what_cannot_be_noted_is_only_a_witness_less()
 {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let options = Options {
        removal_step: 16 * 1024,
        retention: Duration::ZERO,
        ..tiny()
    };
    // Each of these fails the first time, on the way of one segment; its note always does.
    let failing = Arc::new(Mutex::new(vec![
        ("rename", "1.db"),
        ("shorten", "1.db-wal"),
        ("unlink", "1.db-wal"),
        ("unlink", "1.db-shm"),
        ("unlink", "1.db.gone"),
    ]));
    let disk = {
        let failing = Arc::clone(&failing);
        HookedDisk::new(move |operation, path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let mut failing = failing.lock().unwrap();
            let step = (operation, name.as_str());
            if step == ("overwrite", "1.idx") {
                return Err(std::io::Error::other("no note today"));
            }
            match failing.iter().position(|one| *one == step) {
                Some(at) => {
                    failing.remove(at);
                    Err(std::io::Error::other("not today"))
                }
                None => Ok(()),
            }
        })
    };
    let (store, _) = Store::open_on(
        dir.path(),
        options.clone(),
        Arc::new(clock.clone()),
        Arc::new(disk),
    )
    .unwrap();
    let to = destinations(&store, 1);
    delivered(&store, 16, &to).await;
    eventually("both are removed all the same", || {
        databases(dir.path()) == 2 && files(dir.path(), ".gone").is_empty()
    });
    assert_eq!(*failing.lock().unwrap(), Vec::new());
    assert_accounts(&store, &to, 16);
    let degraded = store.health().degraded;
    assert!(
        degraded.len() == 1 && degraded[0].contains("1.db cannot be removed"),
        "{degraded:?}"
    );
    store.stop();
    let (store, recovery) = open(dir.path(), &options, &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert_accounts(&store, &to, 16);
    store.stop();
}

#[tokio::test]
async fn several_shards_keep_no_more_together_than_one() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let options = Options {
        shards: 2,
        ..keeping()
    };
    let (store, _) = open(dir.path(), &options, &clock);
    let to = destinations(&store, 1);
    delivered(&store, 120, &to).await;
    eventually("all are resolved", || {
        let figures = store.figures();
        figures.segments_closed == 0 && figures.segments_retained >= 10
    });
    let bytes = store.figures().retained_bytes;
    store.stop();
    let less = Options {
        retention_bytes: bytes / 2,
        ..options
    };
    let (store, _) = open(dir.path(), &less, &clock);
    eventually("the oldest of each have gone", || {
        store.figures().retained_bytes <= bytes / 2
    });
    assert!(store.figures().segments_retained >= 2);
    assert_accounts(&store, &to, 120);
    store.stop();
}

#[tokio::test]
async fn accounts_hold_whatever_is_kept_removed_killed_or_lost() {
    for seed in 1..=4 {
        let clock = HandClock::new();
        let mut dice = Dice(seed);
        let mut dir = tempfile::tempdir().unwrap();
        let disk = HookedDisk::new(|_, _| Ok(()));
        let open = |dir: &Path| {
            let (clock, disk) = (Arc::new(clock.clone()), Arc::new(disk.clone()));
            Store::open_on(dir, keeping(), clock, disk).unwrap().0
        };
        let mut store = open(dir.path());
        let to = destinations(&store, 2);
        let mut accepted = 0;
        // As long as nothing was lost, everything that was accepted is counted.
        let mut is_lost = false;
        for step in 0..40 {
            match dice.roll(8) {
                0..3 => {
                    let count = dice.roll(20);
                    fill(&store, accepted, count, 3, &to).await;
                    accepted += count;
                }
                3..6 => {
                    let mut lane = store.lane(to[usize::from(dice.roll(2) == 1)]).unwrap();
                    let handle = lane.handle();
                    for delivery in drain(&mut lane, 100) {
                        match dice.roll(20) {
                            0 => {}
                            1 => handle.settle(&delivery.event, Resolution::Expired),
                            2 => {
                                handle.settle(&delivery.event, Resolution::DeadLettered(attempt()));
                            }
                            _ => handle.settle(&delivery.event, Resolution::Delivered),
                        }
                    }
                }
                6 => clock.forward(HOUR * u32::try_from(dice.roll(2)).unwrap()),
                _ => {
                    // A kill is one moment; what follows a record must not be copied without it.
                    let killed = disk.still(|| copy_of(dir.path()));
                    store.stop();
                    if dice.roll(2) == 1 {
                        dir = killed;
                    }
                    if dice.roll(6) == 0 {
                        is_lost = true;
                        lose_progress(dir.path());
                    }
                    store = open(dir.path());
                }
            }
            for destination in &to {
                let totals = store.totals(*destination);
                let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
                let place = format!("seed {seed}, step {step}");
                assert_eq!(totals.accepted, totals.pending + ended, "{place}");
                assert!(totals.accepted <= accepted, "{place}");
                assert!(is_lost || totals.accepted == accepted, "{place}");
            }
        }
        store.stop();
    }
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn lose_progress(dir: &Path) {
    for name in files(dir, "") {
        if name.starts_with("state") {
            std::fs::remove_file(dir.join("g1/s0").join(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_lost_state_file_repeats_nothing_of_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 2);
    delivered(&store, 40, &to).await;
    eventually("all are resolved", || {
        store.figures().segments_retained == 5
    });
    // These are resolved for one lane only, so their segment cannot be kept yet.
    fill(&store, 40, 8, 3, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let rest: Vec<_> = drain(&mut lane, 100)
        .iter()
        .map(|delivery| delivery.event.position)
        .collect();
    lane.handle().settle_delivered(&rest);
    lane.handle().durable().await.unwrap();
    store.stop();
    lose_progress(dir.path());
    for start in 0..2 {
        let (store, recovery) = open(dir.path(), &keeping(), &clock);
        if start == 0 {
            assert!(recovery.findings[0].contains("may be repeated"));
        } else {
            assert_eq!(recovery.findings, Vec::<String>::new());
        }
        for destination in &to {
            let totals = store.totals(*destination);
            assert_eq!((totals.accepted, totals.pending), (8, 8), "start {start}");
            let again = drain(&mut store.lane(*destination).unwrap(), 100);
            assert_eq!(ids(&again), names(40..48));
        }
        assert_eq!(store.figures().segments_retained, 5);
        store.stop();
    }
    clock.forward(HOUR);
    let (store, _) = open(dir.path(), &keeping(), &clock);
    eventually("what was kept goes in its time", || {
        store.figures().segments_retained == 0
    });
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}

#[tokio::test]
async fn a_damaged_state_file_counts_saved_dead_letters_of_what_is_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 16, 3, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let handle = lane.handle();
    for (n, delivery) in drain(&mut lane, 100).iter().enumerate() {
        match n {
            3 => handle.settle(&delivery.event, Resolution::DeadLettered(attempt())),
            _ => handle.settle(&delivery.event, Resolution::Delivered),
        }
    }
    eventually("both are resolved", || {
        store.figures().segments_retained == 2
    });
    store.stop();
    let state = dir.path().join("g1/s0/state-1.db");
    let damage = rusqlite::Connection::open(&state).unwrap();
    let damaged = damage.execute("UPDATE lanes SET delivered = delivered + 1", []);
    assert_eq!(damaged.unwrap(), 1);
    drop(damage);
    for start in 0..2 {
        let (store, _) = open(dir.path(), &keeping(), &clock);
        let totals = store.totals(to[0]);
        assert_eq!(
            (totals.accepted, totals.pending, totals.dead),
            (1, 0, 1),
            "start {start}"
        );
        assert_eq!(drain(&mut store.lane(to[0]).unwrap(), 100).len(), 0);
        store.stop();
    }
}

#[tokio::test]
async fn a_note_that_is_torn_or_damaged_says_nothing_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(), &clock);
    let to = destinations(&store, 1);
    delivered(&store, 8, &to).await;
    eventually("it is resolved", || store.figures().segments_retained == 1);
    store.stop();
    let whole = std::fs::read(index(dir.path())).unwrap();
    let cut = |bytes: usize| whole[..whole.len() - bytes].to_vec();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (name, content) in [("torn", cut(5)), ("absent", cut(24)), ("flipped", flipped)] {
        for lost in [false, true] {
            let copy = copy_of(dir.path());
            std::fs::write(index(copy.path()), &content).unwrap();
            if lost {
                lose_progress(copy.path());
            }
            let (store, recovery) = open(copy.path(), &keeping(), &clock);
            let pending = store.totals(to[0]).pending;
            // It is never taken for a resolution; where progress knows, it is noted anew.
            assert_eq!(pending, if lost { 8 } else { 0 }, "{name}");
            assert_eq!(recovery.findings.len(), usize::from(lost), "{name}");
            store.stop();
            if !lost {
                let mended = std::fs::read(index(copy.path())).unwrap();
                assert_eq!(mended.len(), whole.len(), "{name}");
            }
        }
    }
}

fn index(dir: &Path) -> std::path::PathBuf {
    dir.join("g1/s0/1.idx")
}
