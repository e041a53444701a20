//! Backups around a compaction: nothing is compacted while one is made, and what is restored is whole and counts
//! everything once.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use wayhold_model::{Clock, DestinationId};
use wayhold_store::backup::{Progress, restore};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::{Options, Store};

use crate::disk::HookedDisk;
use crate::support::{HandClock, destinations, eventually, ids, open};
use crate::{
    HOUR, OF, account, compacted, deliver, eager, exported, owed, pending, store_events,
    until_compacted,
};

/// Restores a backup, and holds it to be whole and to be owed exactly this; the accounts as they are there.
fn assert_whole(backup: &Path, clock: &HandClock, owed: &[String], what: &str) -> [(u64, u64); 2] {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    restore(backup, &data, "ada", &as_clock).unwrap();
    let stopped = StoppedStore::open(&data).unwrap();
    let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
    assert!(!verified.is_damaged(), "{what}: {:?}", verified.findings);
    let exported = exported(&stopped);
    assert!(
        owed.iter().all(|id| exported.contains(id)),
        "{what}: {exported:?}"
    );
    drop(stopped);
    let (store, _) = open(&data, &eager(), clock);
    assert_eq!(store.health().degraded, Vec::<String>::new(), "{what}");
    let to: Vec<DestinationId> = store
        .catalog()
        .destinations()
        .iter()
        .map(|one| one.id)
        .collect();
    let accounts = [account(&store, to[0]), account(&store, to[1])];
    assert_eq!(pending(&store, to[1]), owed, "{what}");
    assert_eq!(pending(&store, to[0]).len() as u64, accounts[0].1, "{what}");
    // It goes on from there like any other.
    deliver(&store, to[0]);
    assert_eq!(ids(&deliver(&store, to[1])), owed, "{what}");
    eventually("all of it goes", || store.figures().segments_closed == 0);
    for (destination, (accepted, _)) in to.iter().zip(accounts) {
        assert_eq!(account(&store, *destination), (accepted, 0), "{what}");
    }
    store.stop();
    accounts
}

#[tokio::test]
async fn a_backup_of_a_compacted_store_restores_what_is_owed_and_the_accounts() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = compacted(dir.path(), &eager(), &clock, 256).await;
    let backup = tempfile::tempdir().unwrap();
    store.back_up(backup.path(), &Progress::default()).unwrap();
    store.stop();
    drop(store);
    let accounts = assert_whole(backup.path(), &clock, &owed(256), "running");
    assert_eq!(accounts, [(256, 0), (16, 16)]);
    let backup = tempfile::tempdir().unwrap();
    let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let progress = Progress::default();
    Store::back_up_stopped(dir.path(), backup.path(), &as_clock, &progress).unwrap();
    let accounts = assert_whole(backup.path(), &clock, &owed(256), "stopped");
    assert_eq!(accounts, [(256, 0), (16, 16)]);
}

/// Where a backup is held: before it makes a file of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Its segments are pinned.
    Pinned,
    /// Its progress is being copied.
    State,
    /// Its progress is copied, its segments are not.
    Segment,
    /// All is copied.
    Mark,
}

const STEPS: [Step; 4] = [Step::Pinned, Step::State, Step::Segment, Step::Mark];

impl Step {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        match name {
            "s0" => Some(Self::Pinned),
            "mark" => Some(Self::Mark),
            _ if !name.ends_with(".db") || name.starts_with("catalog") => None,
            _ if name.starts_with("state") => Some(Self::State),
            _ => Some(Self::Segment),
        }
    }
}

/// A disk on which a backup into `below` stops at each of these steps until it is told to go on.
fn holding(below: &Path, steps: &[Step]) -> (HookedDisk, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reached, wait) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let below: PathBuf = below.to_owned();
    let steps: VecDeque<Step> = steps.iter().copied().collect();
    let held = Mutex::new((steps, told));
    let disk = HookedDisk::new(move |_, path| {
        if path.starts_with(&below) {
            let (steps, told) = &mut *held.lock().unwrap();
            if Step::of(path).is_some_and(|step| steps.front() == Some(&step)) {
                steps.pop_front();
                reached.send(()).unwrap();
                told.recv().unwrap();
            }
        }
        Ok(())
    });
    (disk, wait, go_on)
}

/// Events come and are delivered at one moment of a backup, and at the same or a later one all that is
/// resolved has been kept long enough, so that what is left of it would be compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_compacted_during_a_backup_and_what_is_restored_counts_everything_once() {
    for (at, comes) in STEPS.into_iter().enumerate() {
        for due in &STEPS[at..] {
            during(comes, *due).await;
        }
    }
}

/// Lets time pass until everything that is closed is compacted. When something was resolved is noted a moment after
/// it was, so that no single jump of the clock is known to come after it.
fn keep_long_enough(store: &Store, clock: &HandClock) {
    eventually("it was kept long enough", || {
        clock.forward(HOUR * 2);
        let figures = store.figures();
        figures.segments_closed == figures.segments_compacted && figures.segments_compacted > 0
    });
}

async fn during(comes: Step, due: Step) {
    let what = format!("comes at {comes:?}, due at {due:?}");
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let backup = tempfile::tempdir().unwrap();
    let mut steps = vec![comes, due];
    steps.dedup();
    let (disk, wait, go_on) = holding(backup.path(), &steps);
    let options = Options {
        retention: HOUR,
        retention_bytes: u64::MAX,
        ..eager()
    };
    let opened = Store::open_on(dir.path(), options, Arc::new(clock.clone()), Arc::new(disk));
    let (store, _) = opened.unwrap();
    let to = destinations(&store, 2);
    store_events(&store, 0..64, &to).await;
    deliver(&store, to[0]);
    eventually("the others are resolved", || {
        store.figures().segments_closed == 4
    });
    keep_long_enough(&store, &clock);
    until_compacted(&store, dir.path(), &to);
    let before = store.figures().compactions;
    let making = {
        let (store, backup) = (store.clone(), backup.path().to_owned());
        std::thread::spawn(move || store.back_up(&backup, &Progress::default()))
    };
    wait.recv().unwrap();
    store_events(&store, 64..192, &to).await;
    deliver(&store, to[0]);
    store.lane(to[0]).unwrap().handle().durable().await.unwrap();
    let closed = store.figures().segments_compacted + 8;
    eventually("the others are resolved", || {
        store.figures().segments_closed == closed
    });
    if due != comes {
        go_on.send(()).unwrap();
        wait.recv().unwrap();
    }
    clock.forward(HOUR * 2);
    // Time to compact them, if that were wrong.
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(store.figures().compactions, before, "{what}");
    go_on.send(()).unwrap();
    let made = making.join().unwrap().unwrap();
    assert!(made.left_out.is_empty(), "{what}: {:?}", made.left_out);
    keep_long_enough(&store, &clock);
    until_compacted(&store, dir.path(), &to);
    assert_eq!(account(&store, to[1]), (192 / OF, 192 / OF), "{what}");
    store.stop();
    // What came after the copy of the last segments is in no backup.
    let events = if comes == Step::Mark { 64 } else { 192 };
    let accounts = assert_whole(backup.path(), &clock, &owed(events), &what);
    assert_eq!(accounts[1], (events / OF, events / OF), "{what}");
}
