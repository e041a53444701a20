//! What the process does to its own files never drops the locks by which SQLite keeps others away from them: the
//! system drops all of a process's locks on a file as soon as it closes any descriptor of it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::{HandClock, destinations, eventually, fill, open, tiny};
use crate::{back_up, restored};

/// Databases that the running store has open for writing: the catalogue, progress, the active segment.
fn live(dir: &Path) -> Vec<PathBuf> {
    let newest = std::fs::read_dir(dir.join("g1/s0"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".db")?.parse::<u64>().ok()
        })
        .max()
        .unwrap();
    // The newest is the one that was made ahead; the one before takes rows.
    let segments = [newest, newest - 1].map(|number| dir.join(format!("g1/s0/{number}.db")));
    let mut live = vec![dir.join("catalog.db"), dir.join("g1/s0/state-1.db")];
    live.extend(segments);
    live
}

/// Files on which this process has a lock, as the system tells it.
fn locked() -> BTreeSet<u64> {
    let own = std::process::id().to_string();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks
        .lines()
        .filter(|line| line.contains("POSIX"))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == own)?;
            words.get(at + 1)?.rsplit(':').next()?.parse().ok()
        })
        .collect()
}

/// The system tells its locks in pieces while others come and go, so that one telling may miss some; a lock
/// that was dropped is in none.
fn unlocked(files: &[PathBuf]) -> Vec<&PathBuf> {
    let mut unlocked: Vec<&PathBuf> = files.iter().collect();
    for _ in 0..20 {
        let locked = locked();
        unlocked.retain(|path| !locked.contains(&std::fs::metadata(path).unwrap().ino()));
        if unlocked.is_empty() {
            break;
        }
    }
    unlocked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_locks_on_live_files_are_held_through_backups_health_and_figures() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 30, 5, &to).await;
    let place = tempfile::tempdir().unwrap();
    for round in 0..20_u64 {
        // As many as a segment holds, so that the active one is never full and about to be closed.
        fill(&store, 100 + 8 * round, 8, 5, &to).await;
        eventually("the next segment is made and all are locked", || {
            unlocked(&live(dir.path())).is_empty()
        });
        let files = live(dir.path());
        let backup = place.path().join(round.to_string());
        let backing_up = {
            let (store, backup) = (store.clone(), backup.clone());
            std::thread::spawn(move || back_up(&store, &backup))
        };
        loop {
            store.health();
            store.figures();
            store.totals(to[0]);
            assert_eq!(unlocked(&files), Vec::<&PathBuf>::new(), "round {round}");
            if backing_up.is_finished() {
                break;
            }
        }
        backing_up.join().unwrap();
        assert_eq!(unlocked(&files), Vec::<&PathBuf>::new(), "round {round}");
    }
    let last = place.path().join("19");
    restored(&last, &place.path().join("data"), &clock).unwrap();

    // The probe can tell: this is what must never be done.
    let files = live(dir.path());
    drop(std::fs::File::open(&files[1]).unwrap());
    assert_eq!(unlocked(&files), [&files[1]]);
    store.stop();
}
