//! Progress against its rules, against every fault it promises to survive, and against a simple model.
//! Here is what all of them use.

mod faults;
mod rules;
mod runs;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wayhold_model::event::EventParts;
use wayhold_model::{
    Clock, DestinationId, DestinationSet, Event, Generation, LaneId, OutcomeKind, Position,
    Sequence, ShardId, StoredEvent, Timestamp,
};

use super::handle::{Opened, Progress, ProgressOptions};
use super::{DeadLetters, ProgressSource};
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
        letters: Arc::default(),
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
        let catalog = Catalog::open(self.folder.path(), &SystemDisk, Arc::new(Fixed), 1).unwrap();
        DeadLetters::new(
            progress_of(&self.progress),
            Arc::new(catalog),
            Arc::new(|position| Some(event(position.sequence.0))),
        )
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

fn progress_of(progress: &Progress) -> Arc<ProgressSource> {
    let progress = progress.clone();
    Arc::new(move || vec![progress.clone()])
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
        answer: None,
        duration: None,
        number,
        at: Timestamp::from_micros(u64::from(number) * 10),
        outcome: OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
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
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}
