//! What a start makes of what the last run, the system or a person left in the data directory.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "support/disk.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod disk;
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk::HookedDisk;
use support::{
    HandClock, copy_of, destinations, drain, eventually, files, fill, ids, names, open, tiny,
};
use wayhold_model::DestinationId;
use wayhold_model::approval::Per;
use wayhold_store::{CommandsError, Options, Resolution, Store};

/// Production limits but for what this machine need not pay.
fn options() -> Options {
    Options {
        window_ids: 10_000,
        min_free: Some(0),
        reserve_bytes: 4096,
        ..Options::default()
    }
}

fn shard(dir: &Path) -> PathBuf {
    dir.join("g1/s0")
}

/// A directory as a kill leaves it, with `count` events in one unsealed segment, and the mark as it was
/// after the first `marked` of them.
async fn killed_with_stale_mark(
    count: u64,
    marked: u64,
) -> (tempfile::TempDir, Vec<DestinationId>, HandClock) {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &options(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, marked, 5, &to).await;
    let mark = std::fs::read(shard(dir.path()).join("mark")).unwrap();
    fill(&store, marked, count - marked, 5, &to).await;
    let copy = copy_of(dir.path());
    store.stop();
    std::fs::write(shard(copy.path()).join("mark"), mark).unwrap();
    (copy, to, clock)
}

async fn deliver_all(store: &Store, to: &[DestinationId], count: u64) {
    assert_eq!(
        ids(&drain(&mut store.lane(to[0]).unwrap(), 100)),
        names(0..count)
    );
    assert!(
        fill(store, 0, count, 5, to)
            .await
            .iter()
            .all(|receipt| receipt.duplicate)
    );
}

#[tokio::test]
async fn rows_above_the_mark_are_copied_into_the_new_segment_before_anything_sees_them() {
    let (dir, to, clock) = killed_with_stale_mark(40, 25).await;
    let before = files(dir.path(), ".db");
    let (store, recovery) = open(dir.path(), &options(), &clock);
    assert_eq!((recovery.unproven, recovery.unclean), (15, true));
    deliver_all(&store, &to, 40).await;
    store.stop();
    // The copy stands on its own: with the old segment gone, exactly the unproven rows are left.
    let new = files(dir.path(), ".db")
        .into_iter()
        .find(|name| !before.contains(name))
        .unwrap();
    let connection = rusqlite::Connection::open(shard(dir.path()).join(new)).unwrap();
    let copied: Vec<String> = connection
        .prepare("SELECT id FROM events ORDER BY sequence")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(copied, names(25..40));
}

#[tokio::test]
async fn a_mark_that_is_gone_or_torn_only_costs_a_copy() {
    for damage in ["absent", "torn"] {
        let (dir, to, clock) = killed_with_stale_mark(40, 25).await;
        let mark = shard(dir.path()).join("mark");
        match damage {
            "absent" => std::fs::remove_file(&mark).unwrap(),
            _ => std::fs::write(&mark, [0xff; 8192]).unwrap(),
        }
        let (store, recovery) = open(dir.path(), &options(), &clock);
        assert_eq!(
            (recovery.unproven, recovery.unclean),
            (40, true),
            "{damage}"
        );
        deliver_all(&store, &to, 40).await;
        store.stop();
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_of_opening_is_repeated_without_doubles() {
    let (dir, to, clock) = killed_with_stale_mark(40, 25).await;
    // Opening copies, then seals, then moves the mark. With the old files put back beside the new ones
    // the directory looks as if the process had ended between copying and sealing.
    let old = copy_of(dir.path());
    let (store, _) = open(dir.path(), &options(), &clock);
    store.stop();
    for name in std::fs::read_dir(shard(old.path())).unwrap() {
        let name = name.unwrap().file_name();
        if !name.to_string_lossy().starts_with("state") {
            std::fs::copy(shard(old.path()).join(&name), shard(dir.path()).join(&name)).unwrap();
        }
    }
    for sealed in files(dir.path(), ".idx") {
        std::fs::remove_file(shard(dir.path()).join(sealed)).unwrap();
    }
    let (store, recovery) = open(dir.path(), &options(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    deliver_all(&store, &to, 40).await;
    assert_eq!(store.totals(to[0]).accepted, 40);
    store.stop();
}

#[tokio::test]
async fn a_wal_that_ends_below_the_mark_is_named_with_the_lost_range() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &options(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, 5, &to).await;
    let copy = copy_of(dir.path());
    store.stop();
    let wal = files(copy.path(), ".db-wal")
        .into_iter()
        .map(|name| shard(copy.path()).join(name))
        .max_by_key(|path| std::fs::metadata(path).unwrap().len())
        .unwrap();
    let length = std::fs::metadata(&wal).unwrap().len();
    std::fs::File::options()
        .write(true)
        .open(&wal)
        .unwrap()
        .set_len(length / 2)
        .unwrap();
    let (store, recovery) = open(copy.path(), &options(), &clock);
    let finding = recovery
        .findings
        .iter()
        .find(|finding| finding.contains("tail"));
    assert!(
        finding.is_some_and(|finding| finding.contains("to 40 are lost")),
        "{:?}",
        recovery.findings
    );
    let left = drain(&mut store.lane(to[0]).unwrap(), 100);
    assert_eq!(
        ids(&left),
        names(0..left.len() as u64),
        "the rest is served, without a hole"
    );
    let next = fill(&store, 100, 1, 5, &to).await;
    assert_eq!(
        next[0].position.sequence.0, 41,
        "lost sequences are not given again"
    );
    store.stop();
}

#[tokio::test]
async fn unknown_files_are_put_aside_and_leftovers_of_our_own_are_removed() {
    let (dir, to, clock) = killed_with_stale_mark(10, 10).await;
    let shard = shard(dir.path());
    let stranger = format!("{}.bak", u64::MAX);
    for name in [
        "notes.txt",
        "77.bak",
        "9.db-wal",
        "3.idx.tmp",
        "9.db-journal",
        &stranger,
    ] {
        std::fs::write(shard.join(name), b"?").unwrap();
    }
    let (store, recovery) = open(dir.path(), &options(), &clock);
    deliver_all(&store, &to, 10).await;
    store.stop();
    for name in ["notes.txt", "77.bak", "9.db-wal", &stranger] {
        assert!(
            shard.join(format!("{name}.quarantined.1")).exists(),
            "{name}"
        );
        assert!(
            recovery
                .findings
                .iter()
                .any(|finding| finding.contains(name)),
            "{name}"
        );
    }
    for name in ["3.idx.tmp", "9.db-journal"] {
        assert!(!shard.join(name).exists(), "{name}");
    }
    // Numbers that any name ever held are not given again.
    assert!(
        files(dir.path(), ".db").iter().any(|name| name
            .trim_end_matches(".db")
            .parse::<u64>()
            .unwrap()
            > 77)
    );
}

#[tokio::test]
async fn a_damaged_index_file_is_put_aside_and_made_again_from_the_rows() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 30, 5, &to).await;
    eventually("three segments are indexed", || {
        files(dir.path(), ".idx").len() >= 3
    });
    store.stop();
    let victim = files(dir.path(), ".idx")[1].clone();
    let path = shard(dir.path()).join(&victim);
    let whole = std::fs::read(&path).unwrap();
    // In the header, in the ids, which the window is filled from, and in a section that only its reader
    // looks at.
    for at in [60, 190, whole.len() - 1] {
        let copy = copy_of(dir.path());
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(shard(copy.path()).join(&victim), bytes).unwrap();
        let (store, _) = open(copy.path(), &tiny(), &clock);
        let again = fill(&store, 0, 30, 5, &to).await;
        assert!(again.iter().all(|receipt| receipt.duplicate));
        deliver_all(&store, &to, 30).await;
        let degraded = store.health().degraded;
        assert!(
            degraded.iter().any(|finding| finding.contains(&victim)),
            "{degraded:?}"
        );
        store.stop();
    }
}

#[tokio::test]
async fn a_damaged_row_is_skipped_and_named_and_the_rest_is_served() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 30, 5, &to).await;
    store.stop();
    let first = shard(dir.path()).join(&files(dir.path(), ".db")[0]);
    let connection = rusqlite::Connection::open(&first).unwrap();
    connection
        .execute("UPDATE events SET data = x'00' WHERE id = '3'", [])
        .unwrap();
    drop(connection);
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let left = ids(&drain(&mut store.lane(to[0]).unwrap(), 100));
    assert_eq!(
        left,
        names(0..30)
            .into_iter()
            .filter(|id| id != "3")
            .collect::<Vec<_>>()
    );
    assert!(
        store
            .health()
            .degraded
            .iter()
            .any(|finding| finding.contains("damaged"))
    );
    store.stop();
}

#[tokio::test]
async fn a_drop_that_was_recorded_is_finished_at_the_next_start() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, 5, &to).await;
    let before = copy_of(dir.path());
    let mut lane = store.lane(to[0]).unwrap();
    let positions: Vec<_> = drain(&mut lane, 100)
        .iter()
        .map(|d| d.event.position)
        .collect();
    lane.handle().settle_delivered(&positions);
    eventually("segments are dropped", || {
        files(dir.path(), ".db").len() <= 3
    });
    store.stop();
    // A database that was to be unlinked, and whose companions already were, comes back: as after a
    // crash between two unlinks.
    let name = files(before.path(), ".db")[0].clone();
    std::fs::copy(
        shard(before.path()).join(&name),
        shard(dir.path()).join(&name),
    )
    .unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    assert_eq!(store.totals(to[0]).pending, 0);
    eventually("the leftover is removed", || {
        !shard(dir.path()).join(&name).exists()
    });
    store.stop();
}

#[tokio::test]
async fn restarts_under_way_of_segment_changes_lose_nothing_and_double_nothing() {
    let clock = HandClock::new();
    let mut current = tempfile::tempdir().unwrap();
    let mut accepted = 0;
    let mut to = Vec::new();
    for round in 0..12_u64 {
        let (store, recovery) = open(current.path(), &tiny(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new(), "round {round}");
        to = destinations(&store, 1);
        fill(&store, accepted, 5 + round * 3, 5, &to).await;
        accepted += 5 + round * 3;
        clock.forward(Duration::from_secs(round));
        let killed = copy_of(current.path());
        store.stop();
        if round % 3 != 0 {
            current = killed;
        }
    }
    let (store, _) = open(current.path(), &tiny(), &clock);
    deliver_all(&store, &to, accepted).await;
    let totals = store.totals(to[0]);
    assert_eq!((totals.accepted, totals.pending), (accepted, accepted));
    store.stop();
}

#[tokio::test]
async fn starts_without_new_events_find_nothing_wrong_and_give_no_sequence_twice() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 20, 5, &to).await;
    store.stop();
    for start in 0..5 {
        let (store, recovery) = open(dir.path(), &tiny(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new(), "start {start}");
        assert!(!recovery.unclean);
        if start == 1 {
            let mut lane = store.lane(to[0]).unwrap();
            let all: Vec<_> = drain(&mut lane, 100)
                .iter()
                .map(|delivery| delivery.event.position)
                .collect();
            lane.handle().settle_delivered(&all);
            eventually("every segment that had a row is dropped", || {
                store.figures().segments_closed == 0
            });
        }
        if start == 3 {
            // Also when the window is over and no file names them any more.
            clock.forward(Duration::from_secs(25 * 3600));
            eventually("index files are forgotten", || {
                files(dir.path(), ".idx").is_empty()
            });
        }
        store.stop();
    }
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let next = fill(&store, 100, 1, 5, &to).await;
    assert_eq!(next[0].position.sequence.0, 21);
    assert_eq!(store.totals(to[0]).accepted, 21);
    store.stop();
}

#[tokio::test]
async fn without_mark_and_an_index_file_from_the_middle_order_holds_and_nothing_is_skipped() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 60, 5, &to).await;
    eventually("segments are indexed", || {
        files(dir.path(), ".idx").len() >= 5
    });
    store.stop();
    std::fs::remove_file(shard(dir.path()).join("mark")).unwrap();
    std::fs::remove_file(shard(dir.path()).join("1.idx")).unwrap();
    let (store, recovery) = open(dir.path(), &tiny(), &clock);
    assert!(recovery.unclean);
    deliver_all(&store, &to, 60).await;
    assert_eq!(store.totals(to[0]).pending, 60);
    store.stop();
}

#[tokio::test]
async fn the_sequence_of_a_damaged_row_above_the_mark_is_not_given_again() {
    let (dir, to, clock) = killed_with_stale_mark(40, 25).await;
    let database = largest(&shard(dir.path()), ".db-wal").replace("-wal", "");
    let connection = rusqlite::Connection::open(&database).unwrap();
    let damaged = connection.execute("UPDATE events SET data = x'00' WHERE id = '39'", []);
    assert_eq!(damaged.unwrap(), 1);
    drop(connection);
    let (store, recovery) = open(dir.path(), &options(), &clock);
    assert!(recovery.findings[0].contains("g1.s0.40"));
    let next = fill(&store, 100, 1, 5, &to).await;
    assert_eq!(next[0].position.sequence.0, 41);
    store.stop();
}

#[tokio::test]
async fn a_damaged_segment_is_still_there_as_it_was_found_when_its_rest_is_delivered_and_gone() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &options(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, 5, &to).await;
    let killed = copy_of(dir.path());
    store.stop();
    let database = largest(&shard(killed.path()), ".db-wal").replace("-wal", "");
    let connection = rusqlite::Connection::open(&database).unwrap();
    let damaged = connection.execute("UPDATE events SET data = x'00' WHERE id = '20'", []);
    assert_eq!(damaged.unwrap(), 1);
    // It stays open: at its end the log would go into the database.
    let gone_at_once = Options {
        retention: Duration::ZERO,
        ..options()
    };
    let (store, recovery) = open(killed.path(), &gone_at_once, &clock);
    let named = |text: &str| recovery.findings.iter().any(|one| one.contains(text));
    assert!(named("g1.s0.21") && named("was copied to"));
    let mut lane = store.lane(to[0]).unwrap();
    let rest = drain(&mut lane, 100);
    assert_eq!(rest.len(), 39);
    let positions: Vec<_> = rest.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&positions);
    eventually("the segment is removed", || {
        !Path::new(&database).exists() && store.figures().segments_retained == 0
    });
    store.stop();
    let (store, again) = open(killed.path(), &gone_at_once, &clock);
    assert_eq!(again.findings, Vec::<String>::new());
    store.stop();
    let copy = rusqlite::Connection::open(format!("{database}.quarantined.1")).unwrap();
    let rows = copy.query_row("SELECT count(*) FROM events", [], |row| {
        row.get::<_, i64>(0)
    });
    assert_eq!(rows.unwrap(), 40);
}

/// The largest file of a directory whose name ends so.
fn largest(dir: &Path, ending: &str) -> String {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(ending))
        .max_by_key(|entry| entry.metadata().unwrap().len())
        .unwrap()
        .path()
        .to_string_lossy()
        .into_owned()
}

/// Moves a segment's WAL into its database and fills a page in the middle of its events with rubbish.
fn damage_a_page(database: &str) {
    let connection = rusqlite::Connection::open(database).unwrap();
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(connection);
    let mut bytes = std::fs::read(database).unwrap();
    let page = bytes.len() / 4096 / 2;
    bytes[page * 4096..][..4096].fill(0xff);
    std::fs::write(database, bytes).unwrap();
}

/// What is left of `0..count` is in order, and the loss is one stretch of at most a page or two.
fn one_gap(left: &[String], count: u64) {
    let mut missing = names(0..count);
    missing.retain(|id| !left.contains(id));
    let first: u64 = missing.first().unwrap().parse().unwrap();
    assert_eq!(missing, names(first..first + missing.len() as u64));
    assert!(missing.len() < 40, "{missing:?}");
    let mut expected = names(0..count);
    expected.retain(|id| !missing.contains(id));
    assert_eq!(left, expected);
}

#[tokio::test]
async fn a_damaged_page_of_the_last_segment_costs_what_lies_on_it_and_not_the_start() {
    for marked in [300, 10] {
        let (dir, to, clock) = killed_with_stale_mark(300, marked).await;
        let wal = largest(&shard(dir.path()), ".db-wal");
        damage_a_page(wal.trim_end_matches("-wal"));
        let (store, recovery) = open(dir.path(), &options(), &clock);
        assert!(
            recovery
                .findings
                .iter()
                .any(|finding| finding.contains("cannot be read whole")),
            "{:?}",
            recovery.findings
        );
        one_gap(&ids(&drain(&mut store.lane(to[0]).unwrap(), 16)), 300);
        let next = fill(&store, 1000, 1, 5, &to).await;
        assert_eq!(next[0].position.sequence.0, 301);
        store.stop();
    }
}

#[tokio::test]
async fn a_damaged_page_of_a_sealed_segment_stops_no_lane() {
    let (dir, to, clock) = killed_with_stale_mark(300, 300).await;
    open(dir.path(), &options(), &clock).0.stop();
    let wal = largest(&shard(dir.path()), ".db-wal");
    damage_a_page(wal.trim_end_matches("-wal"));
    let (store, recovery) = open(dir.path(), &options(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    for max in [1, 16, 1000] {
        one_gap(&ids(&drain(&mut store.lane(to[0]).unwrap(), max)), 300);
    }
    assert!(store.health().degraded[0].contains("is damaged on disk"));
    store.stop();
}

#[tokio::test]
async fn a_database_that_is_damaged_as_a_whole_or_gone_stops_no_lane() {
    for damage in ["damaged", "gone"] {
        let clock = HandClock::new();
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), &tiny(), &clock);
        let to = destinations(&store, 1);
        fill(&store, 0, 60, 5, &to).await;
        store.stop();
        let (store, _) = open(dir.path(), &tiny(), &clock);
        let victim = shard(dir.path()).join("3.db");
        match damage {
            "gone" => std::fs::remove_file(&victim).unwrap(),
            _ => {
                // Also the log: what is whole there is still read.
                for suffix in ["", "-wal"] {
                    let file = format!("{}{suffix}", victim.display());
                    std::fs::write(file, [0xff; 8192]).unwrap();
                }
            }
        }
        let left = ids(&drain(&mut store.lane(to[0]).unwrap(), 16));
        assert_eq!(
            left,
            [names(0..16), names(24..60)].concat(),
            "the third segment held 16 to 23"
        );
        assert!(store.health().degraded[0].contains("3.db"));
        store.stop();
    }
}

/// A sync of it may have failed in the run that was killed, and its last pages be in the system's memory alone: then a power
/// cut while it is moved would leave half of it in its file.
#[tokio::test]
async fn each_log_of_a_run_that_was_killed_is_written_again_before_any_of_it_is_moved() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 4, 2, &to).await;
    let mut lane = store.lane(to[0]).unwrap();
    let (handle, read) = (lane.handle(), drain(&mut lane, 9));
    handle.settle(&read[0].event, Resolution::Delivered);
    let commands = store.commands().unwrap();
    let halted = commands.change(|change| {
        change.halt(Per::Kind, "refund", "ada", "too many")?;
        Ok::<_, CommandsError>(())
    });
    halted.await.unwrap();
    let logs = |dir: &Path| -> BTreeMap<String, u64> {
        let of = |folder: &Path| {
            let files = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
            let named = files.map(|file| {
                let name = file.file_name().into_string().unwrap();
                (name, file.metadata().unwrap().len())
            });
            let is_log = |(name, bytes): &(String, u64)| name.ends_with("-wal") && *bytes > 0;
            named.filter(is_log).collect::<Vec<_>>()
        };
        let mut all = of(dir);
        // Of segments nothing is moved before they are closed.
        let of_progress = |(name, _): &(String, u64)| name.starts_with("state-");
        all.extend(of(&shard(dir)).into_iter().filter(of_progress));
        all.into_iter().collect()
    };
    eventually("all have one", || {
        let logs = logs(dir.path());
        let has = |start: &str| logs.keys().any(|name| name.starts_with(start));
        ["catalog.db", "commands.db", "state-"].into_iter().all(has)
    });
    let copy = copy_of(dir.path());
    store.stop();

    let before = logs(copy.path());
    let written: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let disk = {
        let written = Arc::clone(&written);
        HookedDisk::new(move |operation, path| {
            let name = path.file_name().unwrap().to_string_lossy();
            if operation == "overwrite" && name.ends_with("-wal") {
                let bytes = path.metadata()?.len();
                written.lock().unwrap().insert(name.into_owned(), bytes);
            }
            Ok(())
        })
    };
    let (store, _) =
        Store::open_on(copy.path(), tiny(), Arc::new(clock.clone()), Arc::new(disk)).unwrap();
    let halts = store.commands().unwrap().read(|view| view.halts());
    assert_eq!(halts.unwrap().len(), 1);
    store.stop();
    assert_eq!(*written.lock().unwrap(), before);
}
