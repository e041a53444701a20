//! Damaged files, failed writes and full disks.

use rusqlite::ffi;

use super::*;
use crate::delivery::{DeadLetter, SetAside};
use crate::disk::Disk;
use crate::progress::durability::NotDurable;
use crate::progress::memory::ResolvedSegment;
use crate::progress::{LetterAt, LetterError};

#[test]
fn a_flipped_byte_in_the_copy_of_an_event_is_named() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    shard.settle(6, dead(1));
    let id = shard.letters().list(None, None, 1).unwrap()[0].id;
    shard.progress.stop();
    let path = shard.folder.path().join("state-1.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|w| w == b"/shop").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let shard = shard.reopen();
    let letters = shard.letters();
    let damaged: Vec<_> = [id, id + 1]
        .into_iter()
        .filter(|id| matches!(letters.get(*id), Err(LetterError::Damaged { .. })))
        .collect();
    assert_eq!(damaged.len(), 1);
    assert!(matches!(
        letters.redrive(damaged[0], "ada"),
        Err(LetterError::Damaged { .. })
    ));
    assert_eq!(letters.list(None, None, 9).unwrap().len(), 1);
    assert!(shard.progress.health()[0].contains("is damaged on disk"));
    letters.discard(damaged[0], "ada", "damaged").unwrap();
}

#[test]
fn a_redrive_of_a_damaged_letter_ends_at_the_next_start() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let id = letters.list(None, None, 1).unwrap()[0].id;
    letters.redrive(id, "ada").unwrap();
    drop(letters);
    shard.progress.stop();
    let connection = rusqlite::Connection::open(shard.folder.path().join("state-1.db")).unwrap();
    connection
        .execute_batch("UPDATE dead_letters SET subject = 'x'; PRAGMA wal_checkpoint(TRUNCATE);")
        .unwrap();
    drop(connection);
    let shard = shard.reopen();
    assert_eq!(
        shard
            .progress
            .redriving(DESTINATION, &|_| None)
            .unwrap()
            .len(),
        0
    );
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.dead, totals.redriving), (1, 0));
    shard.letters().discard(id, "ada", "damaged").unwrap();
}

#[test]
fn a_file_that_somebody_else_locks_is_waited_for() {
    let shard = Shard::new();
    shard.progress.inject(failure(ffi::SQLITE_BUSY));
    shard.settle(5, Resolution::Delivered);
    shard.progress.durable_soon().unwrap();
    assert_eq!(shard.names(), ["state-1.db", "state-1.db-wal"]);
}

#[test]
fn a_flipped_bit_never_makes_a_delivery_resolved() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    shard.progress.stop();
    let path = shard.folder.path().join("state-1.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "UPDATE chunks SET resolved = CAST(x'ff' || substr(resolved, 2) AS BLOB);
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    drop(connection);
    let shard = shard.reopen();
    assert!(!shard.progress.is_resolved(LANE, Sequence(6)));
    assert_eq!(shard.opened.findings.len(), 1, "{:?}", shard.opened);
    assert!(shard.opened.findings[0].contains("sequences 0 to 4095"));
}

#[test]
fn a_damaged_file_is_kept_aside_and_its_letters_are_saved() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    shard.settle(6, Resolution::Delivered);
    let before = shard.letters().list(None, None, 9).unwrap();
    shard.progress.stop();
    let path = shard.folder.path().join("state-1.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("UPDATE lanes SET floor = 1000; PRAGMA wal_checkpoint(TRUNCATE);")
        .unwrap();
    drop(connection);
    let shard = shard.reopen();
    assert!(!shard.opened.is_fresh);
    assert_eq!(shard.opened.saved, [(LANE, Sequence(5))]);
    assert!(shard.opened.findings[0].contains("state-1.db.quarantined.1"));
    let after = shard.letters().list(None, None, 9).unwrap();
    assert_eq!((after.len(), after[0].id), (1, before[0].id));
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.dead, totals.delivered), (1, 0));
    assert!(shard.progress.is_resolved(LANE, Sequence(5)));
    assert!(!shard.progress.is_resolved(LANE, Sequence(6)), "repeated");
    shard.settle(7, dead(1));
    let newest = shard.letters().list(None, None, 9).unwrap()[1].id;
    assert!(
        newest > before[0].id + 1,
        "lost numbers are not given again"
    );
}

/// Takes out of a file what versions 5 and 6 brought.
const WITHOUT_FINGERPRINTS: &str = "
    DROP TABLE edits;
    DROP INDEX dead_letters_by_cause;
    ALTER TABLE dead_letters DROP COLUMN fingerprint;
    CREATE INDEX dead_letters_by_class ON dead_letters(destination, class, redriving);";

/// Makes the file of a stopped shard one that the first version wrote.
fn to_format_1(shard: &Shard) {
    let path = shard.folder.path().join("state-1.db");
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch(&format!(
            "{WITHOUT_FINGERPRINTS}
             ALTER TABLE dead_letters DROP COLUMN given_up_at;
             ALTER TABLE dead_letters DROP COLUMN referred;
             DROP TABLE referred;
             DROP TABLE owner;
             DROP TABLE compacted;
             PRAGMA user_version = 1; PRAGMA wal_checkpoint(TRUNCATE);",
        ))
        .unwrap();
}

fn aside(shard: &Shard, sequence: u64) {
    let delivery = (LANE, DESTINATION, Sequence(sequence));
    let at = Timestamp::from_micros(70);
    let count = shard
        .progress
        .set_aside(&[delivery], SetAside::BacklogLimit, at);
    assert_eq!(count, 1);
}

#[test]
fn a_file_of_the_first_version_keeps_everything_and_takes_letters_of_the_second() {
    for damaged in [false, true] {
        let shard = Shard::new();
        shard.settle(5, dead(1));
        let before = shard.letters().list(None, None, 9).unwrap();
        shard.progress.stop();
        to_format_1(&shard);
        if damaged {
            let path = shard.folder.path().join("state-1.db");
            let connection = rusqlite::Connection::open(path).unwrap();
            connection
                .execute_batch("UPDATE lanes SET floor = 1000")
                .unwrap();
        }
        let shard = shard.reopen();
        assert_eq!(shard.opened.findings.len(), usize::from(damaged));
        aside(&shard, 6);
        let shard = shard.reopen();
        let letters = shard.letters().list(None, None, 9).unwrap();
        assert_eq!(letters.len(), 2);
        assert_eq!(letters[0].event.event.id(), before[0].event.event.id());
        assert_eq!((letters[0].referred, letters[1].referred), (false, true));
        assert_eq!(letters[1].at, Timestamp::from_micros(70));
        assert_eq!(shard.progress.totals(LANE).dead, 2);
    }
}

#[test]
fn letters_of_before_there_were_fingerprints_are_given_theirs() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    aside(&shard, 6);
    let before = shard.letters().list(None, None, 9).unwrap();
    shard.progress.stop();
    let path = shard.folder.path().join("state-1.db");
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch(&format!(
            "{WITHOUT_FINGERPRINTS} PRAGMA user_version = 4; PRAGMA wal_checkpoint(TRUNCATE);"
        ))
        .unwrap();
    let shard = shard.reopen();
    assert!(shard.opened.findings.is_empty(), "{:?}", shard.opened);
    let after = shard.letters().list(None, None, 9).unwrap();
    let prints = |letters: &[DeadLetter]| -> Vec<String> {
        let prints = letters.iter();
        prints.map(|letter| letter.fingerprint.clone()).collect()
    };
    assert_eq!(prints(&after), prints(&before));
    assert_ne!(after[0].fingerprint, after[1].fingerprint);
    assert!(after.iter().all(|letter| letter.fingerprint.len() == 12));
}

#[test]
fn what_letters_refer_to_stays_held_through_damage_and_failed_writes() {
    let is_held =
        |shard: &Shard, n: u64| shard.progress.view(LANE, |view| view.is_held(Sequence(n)));
    let tamper = |shard: &Shard, sql: &str| {
        let path = shard.folder.path().join("state-1.db");
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch(sql).unwrap();
    };
    let prepared = || {
        let shard = Shard::new();
        aside(&shard, 5);
        shard.settle(6, Resolution::Delivered);
        shard
    };
    // A failed write moves everything into a new file.
    let shard = prepared();
    shard.progress.durable_soon().unwrap();
    shard.progress.inject(failure(ffi::SQLITE_IOERR_WRITE));
    aside(&shard, 9);
    let shard = shard.reopen();
    assert!(is_held(&shard, 5) && is_held(&shard, 9) && !is_held(&shard, 6));

    // The marks, a letter, or the whole file are damaged.
    for (sql, kept) in [
        ("UPDATE referred SET held = zeroblob(512)", true),
        ("UPDATE lanes SET floor = 1000", true),
        ("UPDATE dead_letters SET given_up_at = 3", false),
    ] {
        let shard = prepared();
        shard.progress.stop();
        tamper(&shard, sql);
        let shard = shard.reopen();
        assert!(is_held(&shard, 5), "{sql}");
        let letters = shard.letters().list(None, None, 9).unwrap();
        assert_eq!(letters.len(), usize::from(kept), "{sql}");
        let id = shard.progress.next_letter() - 1;
        let id = letters.first().map_or(id, |letter| letter.id);
        shard.letters().discard(id, "ada", "damaged").unwrap();
        assert_eq!(shard.progress.totals(LANE).discarded, 1, "{sql}");
    }
}

#[test]
fn a_file_of_garbage_costs_repeats_and_no_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("state-3.db"), [7; 40_000]).unwrap();
    let shard = Shard::open(folder);
    assert_eq!(shard.opened.findings.len(), 1);
    shard.settle(5, Resolution::Delivered);
    let shard = shard.reopen();
    assert!(shard.progress.is_resolved(LANE, Sequence(5)));
    assert_eq!(
        shard.names(),
        ["state-3.db.quarantined.1", "state-4.db", "state-4.db-wal"]
    );
}

#[test]
fn a_file_whose_making_was_cut_off_is_as_if_it_were_not_there() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    shard.progress.stop();
    std::fs::write(shard.folder.path().join("state-2.db"), []).unwrap();
    let shard = shard.reopen();
    assert_eq!(shard.names(), ["state-1.db", "state-1.db-wal"]);
    assert_eq!(shard.progress.totals(LANE).dead, 1);
}

#[test]
fn after_a_failed_write_everything_goes_on_in_a_new_file() {
    let shard = Shard::new();
    let at = Timestamp::from_micros(99);
    shard.settle(5, dead(1));
    shard.settle(6, Resolution::Delivered);
    shard
        .progress
        .record_failure(LANE, Sequence(7), attempt(1), at);
    shard.progress.durable_soon().unwrap();
    for code in [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_CORRUPT] {
        shard.progress.inject(failure(code));
    }
    shard.settle(8, dead(2));
    shard
        .progress
        .record_failure(LANE, Sequence(7), attempt(2), at);
    shard.progress.durable_soon().unwrap();
    shard.settle(9, Resolution::Delivered);
    shard.progress.durable_soon().unwrap();
    eventually("moved twice", || shard.progress.health().len() == 2);
    assert_eq!(shard.names(), ["state-3.db", "state-3.db-wal"]);

    let killed = shard.killed();
    assert_eq!(killed.opened.findings, Vec::<String>::new());
    let all: Vec<_> = (5..=9).map(Sequence).collect();
    assert_eq!(killed.progress.count_unresolved(LANE, &all), 1);
    let totals = killed.progress.totals(LANE);
    assert_eq!((totals.delivered, totals.dead), (2, 2));
    let letters = killed.letters().list(None, None, 9).unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0].event.event.id(), "e5");
    killed.settle(7, dead(3));
    let letter = killed.letters().list(None, Some(letters[1].id), 9).unwrap();
    assert_eq!(letter[0].attempts, [1, 2, 3].map(attempt));
}

#[test]
fn a_full_disk_is_waited_for_and_nothing_is_rewritten() {
    let shard = Shard::new();
    for _ in 0..2 {
        shard.progress.inject(failure(ffi::SQLITE_FULL));
    }
    shard.settle(5, dead(1));
    eventually("told", || !shard.progress.health().is_empty());
    shard
        .progress
        .record_failure(LANE, Sequence(6), attempt(1), Timestamp::EPOCH);
    shard.progress.durable_soon().unwrap();
    assert_eq!(shard.no_space.load(Ordering::SeqCst), 2);
    assert_eq!(shard.progress.health(), Vec::<String>::new());
    assert_eq!(shard.names(), ["state-1.db", "state-1.db-wal"]);
    let killed = shard.killed();
    assert_eq!(killed.progress.totals(LANE).dead, 1);
    assert_eq!(
        killed
            .progress
            .retry_of(LANE, Sequence(6))
            .unwrap()
            .attempts,
        1
    );
}

/// A volume of its own that goes with the value.
struct SmallVolume(tempfile::TempDir);

impl SmallVolume {
    /// `None` where this process may not mount.
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then(|| Self(folder))
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg(self.0.path())
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn on_a_full_volume_progress_goes_on_in_the_reserve() {
    let Some(volume) = SmallVolume::mount(1024 * 1024) else {
        let strict = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(!strict, "a tmpfs cannot be mounted here");
        println!("skipped: a full volume because a tmpfs cannot be mounted here");
        return;
    };
    let directory = volume.0.path();
    let reserve = directory.join("reserve");
    SystemDisk.preallocate(&reserve, 400_000).unwrap();
    let released = reserve.clone();
    let no_space = Arc::default();
    let (progress, _) = Progress::open(ProgressOptions {
        letters: Arc::default(),
        on_no_space: Arc::new(move || drop(std::fs::remove_file(&released))),
        ..options(directory, &no_space)
    })
    .unwrap();
    let free = SystemDisk.space(directory).unwrap().free;
    std::fs::write(
        directory.join("filler"),
        vec![0; usize::try_from(free).unwrap()],
    )
    .unwrap();

    progress.settle(LANE, DESTINATION, &event(5), dead(1));
    progress.deliver(LANE, (6..50_000).map(Sequence));
    progress.durable_soon().unwrap();
    assert!(!reserve.exists());
    let killed = tempfile::tempdir().unwrap();
    progress.copy_files(killed.path());
    std::fs::remove_file(killed.path().join("filler")).unwrap();
    let killed = Shard::open(killed);
    assert_eq!(killed.opened.findings, Vec::<String>::new());
    assert_eq!(killed.progress.totals(LANE).delivered, 49_994);
    assert_eq!(killed.progress.totals(LANE).dead, 1);
    progress.stop();
}

#[test]
fn a_full_disk_keeps_segments_and_operators_waiting_only_for_a_while() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let id = letters.list(None, None, 1).unwrap()[0].id;
    for _ in 0..1_000 {
        shard.progress.inject(failure(ffi::SQLITE_FULL));
    }
    let resolved = ResolvedSegment {
        segment: 3,
        first: Sequence(1),
        last: Sequence(9),
    };
    assert_eq!(
        shard.progress.resolve_segment(resolved, &[(LANE, 4)]),
        Err(NotDurable)
    );
    assert!(matches!(
        letters.discard(id, "ada", "gone"),
        Err(LetterError::Unavailable { reason }) if reason.contains("space")
    ));
    shard.progress.clear_faults();
    shard
        .progress
        .resolve_segment(resolved, &[(LANE, 4)])
        .unwrap();
    letters.discard(id, "ada", "gone").unwrap();
    let totals = shard.killed().progress.totals(LANE);
    assert_eq!((totals.accepted_base, totals.discarded), (4, 1));
}

#[test]
fn a_redrive_that_is_not_on_disk_in_time_leaves_a_dead_letter_as_it_was() {
    let shard = Shard::new();
    for sequence in [5, 6] {
        shard.settle(sequence, dead(1));
    }
    let letters = shard.letters();
    let listed = letters.list(None, None, 2).unwrap();
    let redrive = |letter: &DeadLetter| match letter.event.position.sequence.0 {
        5 => letters.redrive(letter.id, "ada").map(|_| 1),
        _ => letters
            .redrive_some(&[LetterAt::of(letter)])
            .map(|redriven| redriven.len()),
    };
    for letter in &listed {
        for _ in 0..1_000 {
            shard.progress.inject(failure(ffi::SQLITE_FULL));
        }
        assert!(matches!(
            redrive(letter),
            Err(LetterError::Unavailable { .. })
        ));
        shard.progress.clear_faults();
        assert!(!shard.progress.is_redriving(letter.id));
        assert!(!letters.get(letter.id).unwrap().redriving);
        assert_eq!(redrive(letter).unwrap(), 1, "again");
    }
    let totals = shard.killed().progress.totals(LANE);
    assert_eq!((totals.dead, totals.redriving), (0, 2));
}
