//! Progress against a simple model, and against every fault it promises to survive.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rusqlite::ffi;
use wayhold_model::event::EventParts;
use wayhold_model::{
    Clock, DestinationId, DestinationSet, Event, Generation, LaneId, OutcomeKind, Position,
    Sequence, ShardId, StoredEvent, Timestamp,
};

use super::handle::{NotDurable, Opened, Progress, ProgressOptions};
use super::memory::Dropped;
use super::{DeadLetters, LetterError};
use crate::catalog::Catalog;
use crate::delivery::{AttemptRecord, DeliveryState, Resolution};
use crate::disk::SystemDisk;

const LANE: LaneId = LaneId(1);
const DESTINATION: DestinationId = DestinationId(7);
const SEED: u64 = 42;

/// A shard's directory with its progress.
struct Shard {
    folder: tempfile::TempDir,
    progress: Progress,
    opened: Opened,
    no_space: Arc<AtomicUsize>,
}

fn options(directory: &Path, no_space: &Arc<AtomicUsize>) -> ProgressOptions {
    let no_space = Arc::clone(no_space);
    ProgressOptions {
        directory: directory.to_owned(),
        generation: Generation(1),
        shard: ShardId(0),
        hash_seed: SEED,
        disk: Arc::new(SystemDisk),
        vfs: None,
        on_no_space: Arc::new(move || {
            no_space.fetch_add(1, Ordering::SeqCst);
        }),
    }
}

impl Shard {
    fn open(folder: tempfile::TempDir) -> Self {
        let no_space = Arc::default();
        let (progress, opened) = Progress::open(options(folder.path(), &no_space)).unwrap();
        Self {
            folder,
            progress,
            opened,
            no_space,
        }
    }

    fn new() -> Self {
        Self::open(tempfile::tempdir().unwrap())
    }

    fn reopen(self) -> Self {
        self.progress.stop();
        drop(self.progress);
        Self::open(self.folder)
    }

    /// The shard that a kill at this moment would leave.
    fn killed(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        self.progress.copy_files(folder.path());
        Self::open(folder)
    }

    fn settle(&self, sequence: u64, resolution: Resolution) {
        self.progress
            .settle(LANE, DESTINATION, &event(sequence), resolution);
    }

    fn state(&self, sequence: u64) -> DeliveryState {
        self.progress
            .delivery_state(LANE, Sequence(sequence))
            .unwrap()
    }

    fn letters(&self) -> DeadLetters {
        let catalog = Catalog::open(self.folder.path(), &SystemDisk, Arc::new(Fixed)).unwrap();
        DeadLetters::new(self.progress.clone(), Arc::new(catalog))
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("state-") && !name.ends_with("-shm"))
            .collect();
        names.sort();
        names
    }
}

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(5)
    }
}

fn event(sequence: u64) -> Arc<StoredEvent> {
    let id = format!("e{sequence}");
    let event = Event::new(&EventParts {
        id: &id,
        source: "/shop",
        kind: "order.created",
        key: "k",
        extensions: r#"{"a":"b"}"#,
        data: bytes::Bytes::from(id.clone().into_bytes()),
        ..EventParts::default()
    })
    .unwrap();
    Arc::new(StoredEvent {
        position: Position {
            generation: Generation(1),
            shard: ShardId(0),
            sequence: Sequence(sequence),
        },
        accepted_at: Timestamp::from_micros(1),
        destinations: Arc::new(DestinationSet::new([DESTINATION])),
        key_hash: Some(wayhold_model::hash::key_hash("k", SEED)),
        event: Arc::new(event),
    })
}

fn attempt(number: u32) -> AttemptRecord {
    AttemptRecord {
        number,
        at: Timestamp::from_micros(u64::from(number) * 10),
        outcome: OutcomeKind::Refused,
        status: Some(400),
        reason: format!("no, {number}"),
    }
}

fn dead(number: u32) -> Resolution {
    Resolution::DeadLettered(attempt(number))
}

/// Nothing in here may run for ever.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn failure(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

#[test]
fn a_settlement_is_seen_at_once_and_survives_a_restart() {
    let shard = Shard::new();
    assert!(shard.opened.is_fresh);
    shard.settle(5, Resolution::Delivered);
    shard.settle(6, Resolution::Expired);
    assert!(shard.progress.is_resolved(LANE, Sequence(5)));
    assert!(!shard.progress.is_resolved(LANE, Sequence(7)));
    let shard = shard.reopen();
    assert!(!shard.opened.is_fresh);
    assert_eq!(shard.opened.findings, Vec::<String>::new());
    let all = [4, 5, 6, 7].map(Sequence);
    assert_eq!(shard.progress.count_unresolved(LANE, &all), 2);
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.delivered, totals.expired), (1, 1));
}

#[test]
fn a_settlement_that_comes_twice_counts_once() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    shard.settle(5, dead(1));
    shard.progress.deliver(LANE, [Sequence(5), Sequence(5)]);
    shard.progress.raise_floor(LANE, Sequence(10));
    shard.settle(5, Resolution::Delivered);
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.delivered, totals.dead), (1, 0));
}

#[test]
fn what_nobody_waits_for_is_in_the_file_soon() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    eventually("flushed", || {
        shard.killed().progress.is_resolved(LANE, Sequence(5))
    });
}

#[test]
fn a_retry_keeps_its_attempts_and_takes_them_into_the_dead_letter() {
    let shard = Shard::new();
    let at = Timestamp::from_micros(99);
    for number in 1..=3 {
        shard
            .progress
            .record_failure(LANE, Sequence(5), attempt(number), at);
    }
    let shard = shard.reopen();
    let retry = shard.progress.retry_of(LANE, Sequence(5)).unwrap();
    assert_eq!((retry.attempts, retry.retry_at), (3, Some(at)));
    let DeliveryState::Retrying { attempts, last, .. } = shard.state(5) else {
        panic!("{:?}", shard.state(5));
    };
    assert_eq!((attempts, last), (3, attempt(3)));

    // Begun, and perhaps cut off: it counts, but there is nothing to tell of it.
    shard.progress.record_start(LANE, Sequence(5), 4);
    let shard = shard.reopen();
    assert_eq!(
        shard.progress.retry_of(LANE, Sequence(5)).unwrap().attempts,
        4
    );
    for number in 5..30 {
        shard
            .progress
            .record_failure(LANE, Sequence(5), attempt(number), at);
    }
    shard.settle(5, dead(30));
    let letter = shard.letters().list(None, None, 10).unwrap().remove(0);
    let numbers: Vec<_> = letter.attempts.iter().map(|a| a.number).collect();
    assert_eq!(numbers, (11..=30).collect::<Vec<_>>());
    assert_eq!(shard.progress.retry_of(LANE, Sequence(5)), None);
    let shard = shard.reopen();
    assert_eq!(shard.progress.retry_of(LANE, Sequence(5)), None);
}

#[test]
fn a_dead_letter_holds_the_whole_event() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    shard.settle(6, dead(1));
    let shard = shard.reopen();
    let letters = shard.letters();
    let all = letters.list(Some(DESTINATION), None, 10).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(
        letters
            .list(Some(DestinationId(8)), None, 10)
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        letters.list(None, Some(all[0].id), 10).unwrap()[0].id,
        all[1].id
    );
    let (letter, original) = (&all[0], event(5));
    assert_eq!(*letter.event.event, *original.event);
    assert_eq!(letter.event.position, original.position);
    assert_eq!(letter.event.destinations, original.destinations);
    assert_eq!(letter.event.key_hash, original.key_hash);
    assert_eq!(
        (letter.class.as_str(), letter.status, letter.reason.as_str()),
        ("refused", Some(400), "no, 1")
    );
    assert_eq!(letter.destination, DESTINATION);
    assert_eq!(
        letters.counts().unwrap(),
        [(DESTINATION, "refused".to_owned(), 2)]
    );
    assert_eq!(
        shard.state(5),
        DeliveryState::Dead {
            letter: letter.id,
            redriving: false
        }
    );
}

#[test]
fn a_redrive_is_pending_until_it_ends_and_only_one_is_under_way() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let id = letters.list(None, None, 1).unwrap()[0].id;
    assert!(letters.redrive(id, "ada").unwrap().redriving);
    assert!(matches!(
        letters.redrive(id, "eve"),
        Err(LetterError::Redriving { .. })
    ));
    assert!(matches!(
        letters.discard(id, "eve", "gone"),
        Err(LetterError::Redriving { .. })
    ));
    drop(letters);

    let shard = shard.killed();
    let totals = shard.progress.totals(LANE);
    assert_eq!((totals.dead, totals.redriving, totals.redriven), (0, 1, 1));
    let under_way = shard.progress.redriving(LANE).unwrap();
    assert_eq!((under_way.len(), under_way[0].id), (1, id));

    shard.progress.settle_letter(id, dead(2));
    shard.progress.settle_letter(id, Resolution::Delivered);
    let letters = shard.letters();
    let letter = letters.get(id).unwrap();
    assert_eq!((letter.redriving, letter.attempts.len()), (false, 2));
    letters.redrive(id, "ada").unwrap();
    shard.progress.settle_letter(id, Resolution::Delivered);
    assert!(matches!(letters.get(id), Err(LetterError::NotFound { .. })));
    assert_eq!(shard.state(5), DeliveryState::Resolved);
    let totals = shard.progress.totals(LANE);
    assert_eq!(
        (
            totals.dead,
            totals.redriving,
            totals.redriven,
            totals.delivered
        ),
        (0, 0, 2, 1)
    );
}

#[test]
fn what_an_operator_does_is_audited_and_on_disk_when_it_returns() {
    let shard = Shard::new();
    for sequence in [5, 6] {
        shard.settle(sequence, dead(1));
    }
    let catalog =
        Arc::new(Catalog::open(shard.folder.path(), &SystemDisk, Arc::new(Fixed)).unwrap());
    let letters = DeadLetters::new(shard.progress.clone(), Arc::clone(&catalog));
    let ids: Vec<_> = letters
        .list(None, None, 9)
        .unwrap()
        .iter()
        .map(|l| l.id)
        .collect();
    letters.redrive(ids[0], "ada").unwrap();
    letters.discard(ids[1], "bob", "test order").unwrap();
    let killed = shard.killed();
    let totals = killed.progress.totals(LANE);
    assert_eq!((totals.redriving, totals.discarded, totals.dead), (1, 1, 0));
    let trail = catalog.audit_trail(None, 10).unwrap();
    let told: Vec<_> = trail
        .iter()
        .map(|e| (e.by.as_str(), e.action.as_str(), e.reason.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("bob", "dead_letter.discarded", Some("test order")),
            ("ada", "dead_letter.redriven", None)
        ]
    );
}

#[test]
fn letter_numbers_are_never_reused() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let first = letters.list(None, None, 1).unwrap()[0].id;
    letters.discard(first, "ada", "gone").unwrap();
    drop(letters);
    let shard = shard.reopen();
    shard.settle(6, dead(1));
    assert!(shard.letters().list(None, None, 1).unwrap()[0].id > first);
}

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
    letters.discard(damaged[0], "ada", "damaged").unwrap();
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

#[test]
fn a_full_disk_keeps_segments_and_operators_waiting_only_for_a_while() {
    let shard = Shard::new();
    shard.settle(5, dead(1));
    let letters = shard.letters();
    let id = letters.list(None, None, 1).unwrap()[0].id;
    for _ in 0..1_000 {
        shard.progress.inject(failure(ffi::SQLITE_FULL));
    }
    let dropped = Dropped {
        segment: 3,
        first: Sequence(1),
        last: Sequence(9),
    };
    assert_eq!(
        shard.progress.drop_segment(dropped, &[(LANE, 4)]),
        Err(NotDurable)
    );
    assert!(matches!(
        letters.discard(id, "ada", "gone"),
        Err(LetterError::Unavailable { reason }) if reason.contains("space")
    ));
    shard.progress.clear_faults();
    shard.progress.drop_segment(dropped, &[(LANE, 4)]).unwrap();
    letters.discard(id, "ada", "gone").unwrap();
    let totals = shard.killed().progress.totals(LANE);
    assert_eq!((totals.accepted_base, totals.discarded), (4, 1));
}

#[test]
fn a_dropped_segment_moves_its_obligations_to_the_base_once() {
    let shard = Shard::new();
    let dropped = Dropped {
        segment: 3,
        first: Sequence(1),
        last: Sequence(100),
    };
    let accepted = [(LANE, 40), (LaneId(2), 60)];
    shard.progress.drop_segment(dropped, &accepted).unwrap();
    let shard = shard.killed();
    assert_eq!(shard.progress.dropped(), [dropped]);
    shard.progress.drop_segment(dropped, &accepted).unwrap();
    assert_eq!(shard.progress.totals(LANE).accepted_base, 40);
    assert_eq!(shard.progress.totals(LaneId(2)).accepted_base, 60);
    shard.progress.forget_dropped(3);
    let shard = shard.reopen();
    assert_eq!(shard.progress.dropped(), []);
    assert_eq!(shard.progress.totals(LANE).accepted_base, 40);
}

#[test]
fn chunks_below_the_floor_leave_the_file_and_its_pages_too() {
    let shard = Shard::new();
    let chunks = 3_000;
    shard
        .progress
        .deliver(LANE, (0..chunks).map(|chunk| Sequence(chunk << 12)));
    shard.progress.durable_soon().unwrap();
    let path = shard.folder.path().join("state-1.db");
    let figures = || {
        let c = rusqlite::Connection::open(&path).unwrap();
        let chunks: u64 = c
            .query_row("SELECT count(*) FROM chunks", [], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
            .cast_unsigned();
        let pages: i64 = c
            .pragma_query_value(None, "page_count", |row| row.get(0))
            .unwrap();
        (chunks, pages)
    };
    let (before, pages) = figures();
    assert_eq!(before, chunks);
    shard
        .progress
        .raise_floor(LANE, Sequence((chunks - 1) << 12));
    eventually("cleaned", || {
        let (chunks, now) = figures();
        chunks == 1 && now < pages
    });
    assert!(shard.progress.is_resolved(LANE, Sequence(17)));
    let shard = shard.reopen();
    assert!(shard.progress.is_resolved(LANE, Sequence(17)));
    assert_eq!(shard.progress.totals(LANE).delivered, chunks);
}

#[test]
fn after_the_stop_nobody_is_told_that_something_is_on_disk() {
    let shard = Shard::new();
    shard.settle(5, Resolution::Delivered);
    shard.progress.stop();
    shard.progress.durable_soon().unwrap();
    shard.settle(6, Resolution::Delivered);
    assert_eq!(shard.progress.durable_soon(), Err(NotDurable));
}

#[tokio::test]
async fn a_task_that_waits_does_not_wait_for_the_interval() {
    let shard = Shard::new();
    for sequence in 0..50 {
        shard.progress.record_start(LANE, Sequence(sequence), 2);
        shard.progress.durable().await.unwrap();
    }
    assert!(
        shard
            .killed()
            .progress
            .retry_of(LANE, Sequence(49))
            .is_some()
    );
}

/// What happens to a shard, in random order.
#[derive(Clone, Debug)]
enum Step {
    Deliver(u8, u8),
    Expire(u8, u8),
    GiveUp(u8, u8),
    Fail(u8, u8),
    Start(u8, u8),
    Redrive(u8),
    Discard(u8),
    EndRedrive(u8, u8),
    RaiseFloor(u8),
    Durable,
    Reopen,
    Kill,
    FailedWrite,
    FullDisk,
}

fn step() -> impl Strategy<Value = Step> {
    let lane = 0..2_u8;
    let place = 0..EVENTS;
    prop_oneof![
        8 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Deliver(l, s)),
        1 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Expire(l, s)),
        4 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::GiveUp(l, s)),
        4 => (lane.clone(), place.clone()).prop_map(|(l, s)| Step::Fail(l, s)),
        2 => (lane.clone(), place).prop_map(|(l, s)| Step::Start(l, s)),
        3 => any::<u8>().prop_map(Step::Redrive),
        2 => any::<u8>().prop_map(Step::Discard),
        3 => (any::<u8>(), 0..3_u8).prop_map(|(n, r)| Step::EndRedrive(n, r)),
        2 => lane.prop_map(Step::RaiseFloor),
        2 => Just(Step::Durable),
        1 => Just(Step::Reopen),
        2 => Just(Step::Kill),
        1 => Just(Step::FailedWrite),
        1 => Just(Step::FullDisk),
    ]
}

/// Events of each lane in a random run.
const EVENTS: u8 = 24;

/// What one delivery has become, by the rules alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pending { attempts: u32 },
    Delivered,
    Expired,
    Dead(u64),
    Redriving(u64),
    Discarded,
}

struct Model {
    base: u64,
    fates: BTreeMap<(u8, u8), Fate>,
    /// The same at the last moment that was known to be on disk.
    durable: BTreeMap<(u8, u8), Fate>,
}

impl Model {
    fn new(base: u64) -> Self {
        let places = (0..2).flat_map(|lane| (0..EVENTS).map(move |place| (lane, place)));
        let fates: BTreeMap<_, _> = places
            .map(|at| (at, Fate::Pending { attempts: 0 }))
            .collect();
        Self {
            base,
            durable: fates.clone(),
            fates,
        }
    }

    /// Sequences that straddle a chunk's border, at the end of what is possible as well.
    fn sequence(&self, place: u8) -> Sequence {
        Sequence(self.base + u64::from(place))
    }

    fn resolve(&mut self, lane: u8, place: u8, fate: Fate) {
        if let Some(now @ Fate::Pending { .. }) = self.fates.get_mut(&(lane, place)) {
            *now = fate;
        }
    }

    fn nth(&self, n: u8, wanted: impl Fn(Fate) -> Option<u64>) -> Option<((u8, u8), u64)> {
        let all: Vec<_> = self
            .fates
            .iter()
            .filter_map(|(at, fate)| wanted(*fate).map(|id| (*at, id)))
            .collect();
        all.get(usize::from(n).checked_rem(all.len())?).copied()
    }

    fn check(&self, shard: &Shard) {
        for lane in 0..2 {
            let id = LaneId(u32::from(lane));
            let count = |wanted: fn(&Fate) -> bool| {
                let of_lane = self.fates.iter().filter(|((l, _), _)| *l == lane);
                of_lane.filter(|(_, fate)| wanted(fate)).count() as u64
            };
            let totals = shard.progress.totals(id);
            assert_eq!(totals.delivered, count(|f| *f == Fate::Delivered));
            assert_eq!(totals.expired, count(|f| *f == Fate::Expired));
            assert_eq!(totals.discarded, count(|f| *f == Fate::Discarded));
            assert_eq!(totals.dead, count(|f| matches!(f, Fate::Dead(_))));
            assert_eq!(totals.redriving, count(|f| matches!(f, Fate::Redriving(_))));
        }
        for ((lane, place), fate) in &self.fates {
            let id = LaneId(u32::from(*lane));
            let sequence = self.sequence(*place);
            let attempts = shard
                .progress
                .retry_of(id, sequence)
                .map_or(0, |r| r.attempts);
            match fate {
                Fate::Pending { attempts: expected } => {
                    assert!(!shard.progress.is_resolved(id, sequence));
                    assert_eq!(attempts, *expected);
                }
                _ => {
                    assert!(shard.progress.is_resolved(id, sequence));
                    assert_eq!(attempts, 0);
                }
            }
        }
    }

    /// What a kill leaves: nothing that was on disk is undone, and the accounting holds.
    fn check_killed(&self, killed: &Shard) {
        let letters = killed.progress.read_letters(|connection| {
            connection
                .prepare("SELECT lane, redriving FROM dead_letters")?
                .query_map([], |row| {
                    Ok((row.get::<_, u32>(0)?, row.get::<_, bool>(1)?))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
        });
        let letters = letters.unwrap();
        for lane in 0..2_u8 {
            let id = LaneId(u32::from(lane));
            let all: Vec<_> = (0..EVENTS).map(|place| self.sequence(place)).collect();
            let pending = killed.progress.count_unresolved(id, &all);
            let totals = killed.progress.totals(id);
            assert_eq!(
                u64::from(EVENTS),
                pending
                    + totals.redriving
                    + totals.delivered
                    + totals.dead
                    + totals.expired
                    + totals.discarded
            );
            let held =
                |redriving| letters.iter().filter(|l| **l == (id.0, redriving)).count() as u64;
            assert_eq!((totals.dead, totals.redriving), (held(false), held(true)));
        }
        for ((lane, place), fate) in &self.durable {
            let id = LaneId(u32::from(*lane));
            if !matches!(fate, Fate::Pending { .. }) {
                assert!(killed.progress.is_resolved(id, self.sequence(*place)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_run_is_what_the_rules_say_and_any_kill_leaves_it_accounted_for(
        base in prop_oneof![Just(0), Just(4_090), Just(i64::MAX as u64 - 10), Just(u64::MAX - 30)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut shard = Shard::new();
        let mut model = Model::new(base);
        for step in steps {
            shard = apply(shard, &mut model, step);
            model.check(&shard);
        }
    }
}

fn apply(shard: Shard, model: &mut Model, step: Step) -> Shard {
    let progress = &shard.progress;
    let lane_id = |lane: u8| LaneId(u32::from(lane));
    match step {
        Step::Deliver(lane, place) => {
            progress.deliver(lane_id(lane), [model.sequence(place)]);
            model.resolve(lane, place, Fate::Delivered);
        }
        Step::Expire(lane, place) => {
            let event = event(model.sequence(place).0);
            progress.settle(lane_id(lane), DESTINATION, &event, Resolution::Expired);
            model.resolve(lane, place, Fate::Expired);
        }
        Step::GiveUp(lane, place) => {
            let event = event(model.sequence(place).0);
            let letter = progress.change(|memory| {
                memory.dead_letter(lane_id(lane), DESTINATION, &event, attempt(1))
            });
            if let Some(letter) = letter {
                model.resolve(lane, place, Fate::Dead(letter));
            }
        }
        Step::Fail(lane, place) | Step::Start(lane, place) => {
            let (id, sequence) = (lane_id(lane), model.sequence(place));
            if let Some(Fate::Pending { attempts }) = model.fates.get_mut(&(lane, place)) {
                *attempts += 1;
                match step {
                    Step::Fail(..) => {
                        progress.record_failure(id, sequence, attempt(*attempts), Timestamp::EPOCH);
                    }
                    _ => progress.record_start(id, sequence, *attempts),
                }
            } else {
                progress.record_failure(id, sequence, attempt(9), Timestamp::EPOCH);
            }
        }
        Step::Redrive(n) => {
            let dead = model.nth(n, |fate| match fate {
                Fate::Dead(id) => Some(id),
                _ => None,
            });
            if let Some((at, letter)) = dead {
                assert!(progress.change(|m| m.redrive(letter, lane_id(at.0))));
                assert!(!progress.change(|m| m.redrive(letter, lane_id(at.0))));
                model.fates.insert(at, Fate::Redriving(letter));
            }
        }
        Step::Discard(n) => {
            let dead = model.nth(n, |fate| match fate {
                Fate::Dead(id) => Some(id),
                _ => None,
            });
            if let Some((at, letter)) = dead {
                assert!(progress.change(|m| m.discard(letter, lane_id(at.0))));
                model.fates.insert(at, Fate::Discarded);
            }
        }
        Step::EndRedrive(n, how) => {
            let under_way = model.nth(n, |fate| match fate {
                Fate::Redriving(id) => Some(id),
                _ => None,
            });
            if let Some((at, letter)) = under_way {
                let (resolution, fate) = match how {
                    0 => (Resolution::Delivered, Fate::Delivered),
                    1 => (Resolution::Expired, Fate::Expired),
                    _ => (dead(2), Fate::Dead(letter)),
                };
                progress.settle_letter(letter, resolution.clone());
                progress.settle_letter(letter, resolution);
                model.fates.insert(at, fate);
            }
        }
        Step::RaiseFloor(lane) => {
            let unresolved = (0..EVENTS).find(|place| {
                matches!(model.fates.get(&(lane, *place)), Some(Fate::Pending { .. }))
            });
            let floor = model.sequence(unresolved.unwrap_or(EVENTS));
            progress.raise_floor(lane_id(lane), floor);
        }
        Step::Durable => {
            progress.durable_soon().unwrap();
            model.durable = model.fates.clone();
        }
        Step::Reopen => {
            model.durable = model.fates.clone();
            return shard.reopen();
        }
        Step::Kill => model.check_killed(&shard.killed()),
        Step::FailedWrite => progress.inject(failure(ffi::SQLITE_IOERR_WRITE)),
        Step::FullDisk => progress.inject(failure(ffi::SQLITE_FULL)),
    }
    shard
}
