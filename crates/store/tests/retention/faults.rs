//! What is kept, where removing it is cut off or refused, and where what tells of it is lost or damaged.

use super::*;

#[tokio::test]
async fn a_restart_between_any_two_steps_counts_once_delivers_nothing_again_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let options = Options {
        removal_step: 16 * 1024,
        retention: Duration::ZERO,
        ..tiny()
    };
    let (cuts, disk) = Cuts::of(dir.path());
    let (store, _) = Store::open_on(
        dir.path(),
        options.clone(),
        Arc::new(clock.clone()),
        Arc::new(disk),
    )
    .unwrap();
    let to = destinations(&store, 1);
    fill(&store, 0, 16, 3, &to).await;
    cuts.watch(true);
    let mut lane = store.lane(to[0]).unwrap();
    let all = drain(&mut lane, 100);
    let handle = lane.handle();
    for delivery in &all[1..] {
        handle.settle(&delivery.event, Resolution::Delivered);
    }
    handle.settle(&all[0].event, Resolution::DeadLettered(attempt()));
    eventually("they are removed", || databases(dir.path()) == 2);
    store.stop();
    assert_ne!(cuts.count(), 0);
    let copies = cuts.take();
    for (operation, name) in [
        ("overwrite", "/1.idx"),
        ("rename", "/1.db"),
        ("shorten", "/1.db-wal"),
        ("unlink", "/1.db.gone"),
    ] {
        let mut steps = copies.iter().map(|(step, _)| step);
        let is_there = steps.any(|step| step.starts_with(operation) && step.ends_with(name));
        assert!(is_there, "{operation} {name}");
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

pub(super) fn lose_progress(dir: &Path) {
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
