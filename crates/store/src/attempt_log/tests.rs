//! The record through its face: what is added is found, also after a kill; what is old or too much goes.

use std::sync::atomic::{AtomicU64, Ordering};

use wayhold_model::{Generation, Sequence, ShardId};

use super::*;

#[derive(Debug, Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl HandClock {
    fn at(&self, seconds: u64) {
        self.0.store(seconds * 1_000_000, Ordering::Relaxed);
    }
}

fn position(sequence: u64) -> Position {
    Position {
        generation: Generation(1),
        shard: ShardId(0),
        sequence: Sequence(sequence),
    }
}

fn options() -> RecordOptions {
    RecordOptions {
        time: Duration::from_secs(800),
        bytes: 1 << 30,
    }
}

fn entry(sequence: u64, number: u32, at: Timestamp) -> AttemptEntry {
    let failed = number == 1;
    AttemptEntry {
        position: position(sequence),
        destination: DestinationId(7),
        number,
        at,
        duration: Duration::from_micros(1_500),
        outcome: if failed {
            OutcomeKind::NotExecuted
        } else {
            OutcomeKind::Delivered
        },
        class: failed.then_some(FailureClass::Connect),
        status: (!failed).then_some(201),
        receipt: (!failed).then(|| Receipt::Http {
            status: 201,
            location: Some("https://wms.example.com/orders/7".into()),
        }),
        replay: (number == 3).then_some(77),
    }
}

struct Record {
    folder: tempfile::TempDir,
    clock: Arc<HandClock>,
    keeper: AttemptLog,
}

impl Record {
    fn open(folder: tempfile::TempDir, options: RecordOptions, seconds: u64) -> Self {
        let clock = Arc::<HandClock>::default();
        clock.at(seconds);
        let handed: Arc<dyn Clock> = clock.clone();
        let keeper = AttemptLog::open(folder.path(), options, handed).unwrap();
        Self {
            folder,
            clock,
            keeper,
        }
    }

    fn add(&self, sequence: u64, number: u32) -> AttemptEntry {
        let entry = entry(sequence, number, self.clock.now());
        self.keeper.add(&mut vec![entry.clone()]);
        entry
    }

    fn files(&self) -> Vec<u64> {
        file::numbers(&SystemDisk, &self.folder.path().join(DIRECTORY)).unwrap()
    }
}

#[test]
fn what_was_recorded_is_found_before_and_after_it_is_written_and_after_a_restart() {
    let record = Record::open(tempfile::tempdir().unwrap(), options(), 1);
    let first = record.add(5, 1);
    record.add(6, 1);
    assert_eq!(record.keeper.of(position(5)), Ok(vec![first.clone()]));
    record.keeper.flush();
    record.clock.at(2);
    let second = record.add(5, 2);
    record.clock.at(3);
    let replayed = record.add(5, 3);
    let both = Ok(vec![first, second, replayed]);
    assert_eq!(record.keeper.of(position(5)), both);
    record.keeper.flush();
    assert_eq!(record.keeper.of(position(5)), both);
    assert_eq!(record.keeper.of(position(7)), Ok(Vec::new()));
    let figures = record.keeper.figures();
    assert_eq!((figures.written, figures.dropped), (4, 0));
    assert!(figures.bytes > 0);
    record.keeper.stop();
    let again = Record::open(record.folder, options(), 3);
    assert_eq!(again.keeper.of(position(5)), both);
    again.keeper.stop();
}

#[test]
fn a_file_from_before_replays_were_recorded_is_read_as_it_is() {
    let record = Record::open(tempfile::tempdir().unwrap(), options(), 1);
    let entry = record.add(5, 2);
    record.keeper.stop();
    let directory = record.folder.path().join(DIRECTORY);
    let path = file::path_of(&directory, record.files()[0]);
    let old = rusqlite::Connection::open(path).unwrap();
    old.execute_batch("ALTER TABLE attempts DROP COLUMN replay; PRAGMA user_version = 1;")
        .unwrap();
    drop(old);
    let again = Record::open(record.folder, options(), 2);
    let newer = again.add(5, 3);
    assert_eq!(again.keeper.of(position(5)), Ok(vec![entry, newer]));
    again.keeper.stop();
}

#[test]
fn a_copy_of_the_files_at_any_moment_holds_whole_entries_that_were_flushed() {
    let record = Record::open(tempfile::tempdir().unwrap(), options(), 1);
    for sequence in 0..50 {
        let entry = record.add(sequence, 2);
        record.keeper.flush();
        // As a kill would leave them: the log beside its file.
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join(DIRECTORY);
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(record.folder.path().join(DIRECTORY)).unwrap() {
            let file = file.unwrap();
            if !file.file_name().to_string_lossy().ends_with("-shm") {
                std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
        let killed = Record::open(folder, options(), 2);
        assert_eq!(killed.keeper.of(position(sequence)), Ok(vec![entry]));
        killed.keeper.stop();
    }
    record.keeper.stop();
}

#[test]
fn what_is_older_than_wanted_goes_file_by_file() {
    let record = Record::open(tempfile::tempdir().unwrap(), options(), 0);
    for round in 0..20 {
        // A file lasts for an eighth of the time.
        record.clock.at(round * 100);
        record.add(round, 1);
        record.keeper.flush();
    }
    assert_eq!(record.files(), (12..=20).collect::<Vec<_>>());
    for round in 0..20 {
        let found = record.keeper.of(position(round)).unwrap();
        assert_eq!(found.len(), usize::from(round >= 11), "{round}");
    }
    let figures = record.keeper.figures();
    assert_eq!(figures.since, Some(Timestamp::from_micros(1_100_000_000)));
    record.keeper.stop();
}

#[test]
fn it_never_grows_beyond_its_bytes() {
    let small = RecordOptions {
        bytes: 256 << 10,
        ..options()
    };
    let record = Record::open(tempfile::tempdir().unwrap(), small, 1);
    for round in 0..60 {
        let mut entries: Vec<_> = (0..200)
            .map(|n| entry(round * 200 + n, 2, record.clock.now()))
            .collect();
        record.keeper.add(&mut entries);
        record.keeper.flush();
        let one_file = (256 << 10) / 8 + (64 << 10);
        assert!(record.keeper.figures().bytes <= small.bytes + one_file);
    }
    assert_eq!(record.keeper.figures().written, 12_000);
    assert!(record.files().len() > 1 && record.files()[0] > 1);
    record.keeper.stop();
}

#[test]
fn what_comes_faster_than_the_disk_takes_it_is_counted_and_no_burden() {
    let record = Record::open(tempfile::tempdir().unwrap(), options(), 1);
    record.keeper.stop();
    let mut entries = vec![entry(1, 1, Timestamp::EPOCH); WAITING_MAX + 5];
    record.keeper.add(&mut entries);
    assert!(entries.is_empty());
    assert_eq!(record.keeper.figures().dropped, 5);
    AttemptLog::off().add(&mut vec![entry(1, 1, Timestamp::EPOCH)]);
}

#[test]
fn the_forecast_follows_what_was_written_up_to_the_bound() {
    let figures = RecordFigures {
        bytes: 1 << 20,
        since: Some(Timestamp::from_micros(1_000_000)),
        ..RecordFigures::default()
    };
    let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
    let bounded = RecordOptions {
        bytes: 3 << 20,
        ..options()
    };
    assert_eq!(figures.expected(options(), at(30)), None);
    assert_eq!(figures.expected(options(), at(201)), Some(4 << 20));
    assert_eq!(figures.expected(bounded, at(201)), Some(3 << 20));
    assert_eq!(figures.expected(options(), at(1_001)), Some(1 << 20));
    assert_eq!(RecordFigures::default().expected(options(), at(999)), None);
}
