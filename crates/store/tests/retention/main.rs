//! How long what is resolved is kept, and that its end disturbs and loses nothing.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/cuts.rs"]
mod cuts;
#[path = "../support/disk.rs"]
mod disk;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

mod faults;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuts::Cuts;
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
                        faults::lose_progress(dir.path());
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
