//! Faults that public reports tell of, provoked here: what other programs and our own questions do to files
//! that are open, and numbers that come round again.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use support::{HandClock, destinations, drain, event, eventually, fill, ids, open, tiny};
use tempfile::tempdir;
use wayhold_store::{AttemptRecord, Options, Resolution};

/// Nothing rolls on while somebody else holds the active file.
fn one_segment() -> Options {
    Options {
        segment_rows: 65_536,
        segment_bytes: 64 << 20,
        ..tiny()
    }
}

/// The active segment, the state file and the catalogue.
fn live_files(dir: &Path) -> Vec<PathBuf> {
    ["g1/s0/1.db", "g1/s0/state-1.db", "catalog.db"]
        .map(|name| dir.join(name))
        .to_vec()
}

fn dead() -> Resolution {
    Resolution::DeadLettered(AttemptRecord {
        answer: None,
        duration: None,
        number: 1,
        at: wayhold_model::Timestamp::EPOCH,
        outcome: wayhold_model::OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: None,
        reason: "no".to_owned(),
    })
}

/// Inodes on which this process holds POSIX locks, as the kernel sees it.
fn locked() -> BTreeSet<u64> {
    let process = std::process::id().to_string();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let of_us = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, _, owner, file, ..] = words.as_slice() else {
            return None;
        };
        let inode = file.rsplit(':').next()?.parse().ok()?;
        (*owner == process).then_some(inode)
    });
    of_us.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_question_makes_the_process_drop_the_locks_of_its_open_files() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &one_segment(), &clock);
    let all = destinations(&store, 1);
    let receipts = fill(&store, 0, 20, 3, &all).await;
    let inodes = live_files(dir.path()).into_iter().map(|path| {
        let inode = std::fs::metadata(&path).unwrap().ino();
        (path, inode)
    });
    let inodes: Vec<_> = inodes.collect();
    let assert_locked = |after: &str| {
        let mut unlocked: Vec<_> = inodes.iter().collect();
        // The system tells its locks in pieces while others come and go, so that one telling may miss some; a
        // lock that was dropped is in none.
        for _ in 0..20 {
            let locked = locked();
            unlocked.retain(|(_, inode)| !locked.contains(inode));
        }
        assert!(unlocked.is_empty(), "{unlocked:?} after {after}");
    };
    assert_locked("writing");
    let mut lane = store.lane(all[0]).unwrap();
    for n in 0..60 {
        fill(&store, 20 + n, 1, 3, &all).await;
        store.health();
        assert_locked("health");
        store.figures();
        assert_locked("figures");
        store.totals(all[0]);
        store.event(receipts[3].position).unwrap().unwrap();
        store.find("/test", "7").unwrap().unwrap();
        assert_locked("look-ups");
        let read = lane.read(1).unwrap();
        lane.handle().settle(&read[0].event, dead());
        store.dead_letters().list(None, None, 5).unwrap();
        store.dead_letters().counts().unwrap();
        assert_locked("dead letters");
        store.catalog().audit_trail(None, 5).unwrap();
        assert_locked("the audit trail");
    }
    for (path, _) in &inodes {
        let connection = Connection::open(path).unwrap();
        let whole: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(whole, "ok");
    }
    store.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_that_writes_into_the_open_files_refuses_nobody() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &one_segment(), &clock);
    let all = destinations(&store, 1);
    fill(&store, 0, 1, 1, &all).await;
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let strangers: Vec<_> = live_files(dir.path())
        .into_iter()
        .map(|path| {
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            std::thread::spawn(move || {
                let mut connection = Connection::open(path).unwrap();
                connection.busy_timeout(Duration::from_secs(20)).unwrap();
                connection.execute_batch("CREATE TABLE scratch(n)").unwrap();
                while !stop.load(Ordering::Acquire) {
                    // Reads, and then writes, in one transaction.
                    let transaction = connection
                        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
                        .unwrap();
                    let insert = "INSERT INTO scratch SELECT count(*) FROM scratch";
                    transaction.execute(insert, []).unwrap();
                    transaction.commit().unwrap();
                    written.fetch_add(1, Ordering::AcqRel);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        })
        .collect();
    let mut lane = store.lane(all[0]).unwrap();
    for n in 1..120 {
        // No error reaches whoever accepts, settles, redrives or changes the catalogue.
        fill(&store, n, 1, 3, &all).await;
        let read = lane.read(1).unwrap();
        lane.handle().settle(&read[0].event, dead());
        if n % 10 == 0 {
            let newest = store.dead_letters().list(None, None, 200).unwrap();
            let id = newest.iter().rfind(|letter| !letter.redriving).unwrap().id;
            store.dead_letters().redrive(id, "ada").unwrap();
        }
    }
    stop.store(true, Ordering::Release);
    for stranger in strangers {
        stranger.join().unwrap();
    }
    assert!(written.load(Ordering::Acquire) > 3, "they did write");
    assert_eq!(store.health().unavailable, None);
    let totals = store.totals(all[0]);
    assert_eq!(totals.accepted, totals.pending + totals.dead);
    assert_eq!(totals.accepted, 120);
    store.stop();
}

#[tokio::test]
async fn a_number_is_not_given_again_when_everything_is_drained_and_a_stale_one_harms_nobody() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let mut highest = 0;
    let mut letters = Vec::new();
    for round in 0..4 {
        let (store, _) = open(dir.path(), &tiny(), &clock);
        let all = destinations(&store, 1);
        let receipts = fill(&store, round * 20, 20, 3, &all).await;
        let mut lane = store.lane(all[0]).unwrap();
        let read = drain(&mut lane, 50);
        let expected: Vec<String> = (round * 20..round * 20 + 20)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(
            ids(&read),
            expected,
            "nothing old is taken for something new"
        );
        assert!(receipts[0].position.sequence.0 > highest);
        highest = receipts[19].position.sequence.0;
        let handle = lane.handle();
        handle.settle(&read[0].event, dead());
        let positions: Vec<_> = read.iter().map(|one| one.event.position).collect();
        handle.settle_delivered(&positions[1..]);
        let letter = store.dead_letters().list(None, None, 1).unwrap().remove(0);
        assert!(!letters.contains(&letter.id));
        store.dead_letters().discard(letter.id, "ada", "x").unwrap();
        letters.push(letter.id);
        // Late answers for what ended long ago, of this run and the one before.
        for id in &letters {
            handle.settle_letter(*id, Resolution::Delivered);
            assert!(store.dead_letters().redrive(*id, "ada").is_err());
        }
        handle.settle(&read[0].event, dead());
        handle.settle_delivered(&positions);
        let totals = store.totals(all[0]);
        let rounds = round + 1;
        assert_eq!((totals.delivered, totals.discarded), (rounds * 19, rounds));
        eventually("it is empty", || store.figures().segments_closed == 0);
        clock.forward(Duration::from_secs(1));
        store.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_follows_parallel_writers_skips_nothing() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 1);
    const WRITERS: u64 = 8;
    const EACH: u64 = 60;
    let writers = (0..WRITERS).map(|writer| {
        let (store, all) = (store.clone(), all.clone());
        tokio::spawn(async move {
            for n in 0..EACH {
                let id = (writer * EACH + n).to_string();
                // Batches of different sizes take differently long to commit.
                let data = "x".repeat(usize::try_from(writer * 300).unwrap());
                store
                    .append(vec![event(&id, &id, &data, &all)])
                    .await
                    .unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut lane = store.lane(all[0]).unwrap();
    let mut seen = Vec::new();
    while seen.len() < usize::try_from(WRITERS * EACH).unwrap() {
        // Asked before reading: what comes after the last of them has ended is not there.
        let ended = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let read = match lane.read_cached(3) {
            Some(read) => read,
            None => lane.read(3).unwrap(),
        };
        if read.is_empty() {
            assert!(!ended, "{} were read, and the rest never comes", seen.len());
            tokio::task::yield_now().await;
        }
        seen.extend(read.iter().map(|one| one.event.position));
    }
    assert!(seen.is_sorted_by(|one, next| one < next));
    store.stop();
}
