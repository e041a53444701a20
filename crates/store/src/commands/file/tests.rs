//! When the log is moved, and how long it becomes.

use std::path::Path;

use wayhold_model::command::{CommandId, State};

use super::super::error::Trouble;
use super::super::tests::{new, open};
use super::super::{Change, Commands, NewCommand};
use super::*;
use crate::commands::tests::MOVE_AFTER;
use crate::disk::SystemDisk;

const LOG_PAGES: u32 = MOVE_AFTER.pages;
const GROUPS_BETWEEN_MOVES: u32 = MOVE_AFTER.groups;

#[test]
fn the_log_is_moved_when_that_costs_few_syncs_or_it_is_long_or_nobody_waits() {
    for (pages, groups, busy, quiet) in [
        (0, 1_000, false, false),
        (LOG_PAGES_IN_QUIET, 1_000, false, false),
        (LOG_PAGES_IN_QUIET + 1, 1_000, false, true),
        (LOG_PAGES, GROUPS_BETWEEN_MOVES, false, true),
        (LOG_PAGES + 1, GROUPS_BETWEEN_MOVES - 1, false, true),
        (LOG_PAGES + 1, GROUPS_BETWEEN_MOVES, true, true),
        (LOG_PAGES_MAX, GROUPS_BETWEEN_MOVES - 1, false, true),
        (LOG_PAGES_MAX + 1, 1, true, true),
    ] {
        let busy_or_not = [
            Occasion::Busy {
                groups,
                after: MOVE_AFTER,
            },
            Occasion::Quiet,
        ];
        let due = busy_or_not.map(|occasion| occasion.is_due(pages));
        assert_eq!(due, [busy, quiet], "{pages} pages, {groups} groups");
    }
}

#[test]
fn what_a_reader_cut_short_is_known_as_not_synced_and_a_failure_after_it_waits_for_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let writer = file_of(folder.path());
    let reader = open_reader(folder.path(), None).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let count = "SELECT count(*) FROM counts";
    reader.query_row(count, [], |_| Ok(())).unwrap();
    let add = |state: &str| {
        let row = format!("INSERT INTO counts VALUES ('{state}', 1)");
        writer.execute_batch(&row).unwrap();
    };
    add("a");
    let always = Occasion::Busy {
        groups: 1,
        after: MoveAfter {
            pages: 0,
            groups: 1,
        },
    };
    let cut_short = move_if_due(&writer, always).unwrap().unwrap();
    assert!(!cut_short.is_whole && !cut_short.is_over);
    drop(reader);
    let moved = move_if_due(&writer, always).unwrap().unwrap();
    assert!(moved.is_whole && moved.is_over);

    let failure = |code| {
        let error = rusqlite::ffi::Error::new(code);
        rusqlite::Error::SqliteFailure(error, None)
    };
    let fsync = failure(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    for (is_partly_moved, waits_for_a_start) in [(false, false), (true, true)] {
        let trouble = Trouble::of_move(&fsync, is_partly_moved).unwrap();
        assert_eq!(matches!(trouble, Trouble::Broken(_)), waits_for_a_start);
    }
    let full = failure(rusqlite::ffi::SQLITE_FULL);
    assert_eq!(Trouble::of_move(&full, true), Some(Trouble::NoSpace));
}

fn file_of(folder: &Path) -> Connection {
    super::open(folder, None, &SystemDisk).unwrap()
}

/// A command of 64 KiB, which takes 17 pages and those that lead to them.
async fn add_large(commands: &Commands, number: u16) {
    let large = NewCommand {
        id: CommandId::from_bytes([number.to_be_bytes(); 8].concat().try_into().unwrap()),
        arguments: "x".repeat(64 * 1024),
        ..new(0)
    };
    let work =
        move |change: &mut Change<'_>| change.add_command(&large, State::Ready, (None, None));
    commands.change(work).await.unwrap();
}

/// Bytes of the file and of its log.
fn bytes(folder: &Path) -> (u64, u64) {
    let of = |name| std::fs::metadata(folder.join(name)).unwrap().len();
    (of("commands.db"), of("commands.db-wal"))
}

#[tokio::test]
async fn the_log_is_moved_into_the_file_once_nobody_waits_and_begun_again_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path());
    for number in 0..24 {
        add_large(&commands, number).await;
    }
    let (_, log) = bytes(folder.path());
    // Those of the last moment may be too few to be moved.
    let moved = async {
        while bytes(folder.path()).0 < 15 * 64 * 1024 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), moved)
        .await
        .unwrap();
    add_large(&commands, 24).await;
    assert_eq!(bytes(folder.path()).1, log);
    assert_eq!(commands.counts().of(State::Ready), 25);
    commands.stop();
    assert_eq!(bytes(folder.path()).1, 0, "a stopped store has no log");
}

#[tokio::test]
async fn the_log_stays_as_long_as_it_may_be_though_nobody_pauses_and_longer_while_it_is_read() {
    let page = u64::from(PROFILE.page_size) + 24;
    let most = (u64::from(LOG_PAGES) + 64) * page;
    for beside_a_reader in [100, 600] {
        let folder = tempfile::tempdir().unwrap();
        let commands = open(folder.path());
        let mut numbers = 0..;
        for number in numbers.by_ref().take(100) {
            add_large(&commands, number).await;
            assert!(bytes(folder.path()).1 <= most, "after {number}");
        }
        let reader = open_reader(folder.path(), None).unwrap();
        reader.execute_batch("BEGIN").unwrap();
        let seen = || -> i64 {
            let count = "SELECT count(*) FROM commands";
            reader.query_row(count, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(seen(), 100);
        for number in numbers.by_ref().take(beside_a_reader) {
            add_large(&commands, number).await;
        }
        assert_eq!(seen(), 100);
        let (_, grown) = bytes(folder.path());
        assert!(grown > most);
        drop(reader);
        // Begun again where it is, or cut off where it is longer than one may be.
        let is_kept = grown <= u64::from(LOG_PAGES_MAX) * page;
        assert_eq!(is_kept, beside_a_reader == 100);
        add_large(&commands, numbers.next().unwrap()).await;
        for number in numbers.by_ref().take(100) {
            add_large(&commands, number).await;
            let longest = if is_kept { grown + 64 * page } else { most };
            assert!(bytes(folder.path()).1 <= longest, "after {number}");
        }
        commands.stop();
        let commands = open(folder.path());
        let all = u64::from(numbers.next().unwrap());
        assert_eq!(commands.counts().of(State::Ready), all);
    }
}
