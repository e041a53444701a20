//! A store in a temporary folder, with events that are cheap to make and a clock that is set by hand.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wayhold_model::{Clock, DestinationId, DestinationSet, Event, EventParts, Timestamp};
use wayhold_store::{Delivery, Lane, NewEvent, Options, Receipt, Recovery, Store};

/// A clock that only moves by hand.
#[derive(Clone, Debug)]
pub struct HandClock(Arc<AtomicU64>);

impl HandClock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000_000_000)))
    }

    pub fn forward(&self, by: Duration) {
        self.0
            .fetch_add(u64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// Limits that a few events reach.
pub fn tiny() -> Options {
    Options {
        segment_rows: 8,
        segment_bytes: 256 * 1024,
        group_bytes: 4 * 1024,
        queue_bytes: 64 * 1024,
        tail_bytes: 4 * 1024,
        window_ids: 1_000,
        min_free: Some(0),
        reserve_bytes: 4096,
        checkpoint_after: Duration::ZERO,
        // Suites about compaction say what it has to give back.
        compaction_gain: u64::MAX,
        // Resolved segments go at once; suites about retention say how long they stay.
        retention: Duration::ZERO,
        ..Options::default()
    }
}

pub fn open(dir: &Path, options: &Options, clock: &HandClock) -> (Store, Recovery) {
    Store::open(dir, options.clone(), Arc::new(clock.clone())).unwrap()
}

/// Names `count` destinations `d1`... and returns their numbers.
pub fn destinations(store: &Store, count: usize) -> Vec<DestinationId> {
    let names: Vec<String> = (1..=count).map(|n| format!("d{n}")).collect();
    store.catalog().sync_destinations(&names).unwrap();
    names
        .iter()
        .map(|name| {
            store
                .catalog()
                .destinations()
                .iter()
                .find(|d| d.name == *name)
                .unwrap()
                .id
        })
        .collect()
}

pub fn event(id: &str, key: &str, data: &str, to: &[DestinationId]) -> NewEvent {
    let parts = EventParts {
        id,
        source: "/test",
        kind: "com.example.test",
        key,
        content_type: "text/plain",
        data: Bytes::copy_from_slice(data.as_bytes()),
        ..EventParts::default()
    };
    NewEvent {
        event: Arc::new(Event::new(&parts).unwrap()),
        destinations: Arc::new(DestinationSet::new(to.iter().copied())),
        identified: true,
        set_aside: None,
    }
}

/// Stores events one request each, ids `first..first + count`, the key being the id modulo `keys`.
pub async fn fill(
    store: &Store,
    first: u64,
    count: u64,
    keys: u64,
    to: &[DestinationId],
) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for n in first..first + count {
        let new = event(
            &n.to_string(),
            &format!("k{}", n % keys),
            &format!("data {n}"),
            to,
        );
        receipts.extend(store.append(vec![new]).await.unwrap());
    }
    receipts
}

/// Reads all that a lane has, in steps of `max`.
pub fn drain(lane: &mut Lane, max: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    loop {
        let more = lane.read(max).unwrap();
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

pub fn ids(deliveries: &[Delivery]) -> Vec<String> {
    deliveries
        .iter()
        .map(|delivery| delivery.event.event.id().to_owned())
        .collect()
}

pub fn names(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// Waits until `holds`, and fails after a bound that only a fault reaches, also on a disk that is slow and busy with
/// other things: one that holds is seen within milliseconds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(200),
            "never came true: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Files of the one shard whose names end so. Which shard a key lies in differs from directory to directory:
/// with several shards ask [`files_of_shards`].
pub fn files(dir: &Path, ending: &str) -> Vec<String> {
    names_in(&dir.join("g1/s0"), ending)
}

/// The same of each shard of the first generation.
pub fn files_of_shards(dir: &Path, ending: &str) -> Vec<Vec<String>> {
    (0..)
        .map(|shard| dir.join(format!("g1/s{shard}")))
        .take_while(|shard| shard.exists())
        .map(|shard| names_in(&shard, ending))
        .collect()
}

fn names_in(shard: &Path, ending: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(shard)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(ending))
        .collect();
    names.sort();
    names
}

/// Copies a data directory as a kill would leave it: whatever the files hold at this moment.
pub fn copy_of(dir: &Path) -> tempfile::TempDir {
    // A file, or a whole directory, may be removed while it is walked.
    fn unless_gone<T>(done: std::io::Result<T>) -> Option<T> {
        let is_gone = matches!(&done, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        (!is_gone).then(|| done.unwrap())
    }
    fn copy(from: &Path, to: &Path) {
        let Some(entries) = unless_gone(std::fs::read_dir(from)) else {
            return;
        };
        std::fs::create_dir_all(to).unwrap();
        let mut entries: Vec<_> = entries.filter_map(unless_gone).collect();
        // Logs first: a checkpoint between the two copies moves a log's content into its database, and
        // the other way round the copy would have it in neither, which no kill does.
        entries.sort_by_key(|entry| !entry.file_name().to_string_lossy().ends_with("-wal"));
        for entry in entries {
            let target = to.join(entry.file_name());
            match unless_gone(entry.file_type()) {
                Some(kind) if kind.is_dir() => copy(&entry.path(), &target),
                Some(_) => drop(unless_gone(std::fs::copy(entry.path(), &target))),
                None => {}
            }
        }
    }
    let target = tempfile::tempdir().unwrap();
    copy(dir, target.path());
    target
}
