//! What surrounds the store of a history: its folder, its clock, and what a kill leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wayhold_model::{Clock, Timestamp};
use wayhold_store::{Options, Store};

use super::steps::{History, Limits};
use crate::black_box::ending::broken;
use crate::disk::{Fate, Image, Model, Recorded};
use crate::workplace::folder;

/// Time that may pass in a history: less than the window, within which every id is remembered.
const PASSES_MAX: Duration = Duration::from_secs(20 * 3600);

/// What a history is played in.
pub(super) struct World {
    folder: tempfile::TempDir,
    recorded: Recorded,
    options: Options,
    clock: HandClock,
    passed: Duration,
    /// Whether ends take away more than they may.
    damaged: bool,
}

/// How a process ends that nobody asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What it wrote is there.
    Kill,
    /// Only what it synced is there.
    PowerCut,
}

impl World {
    pub(super) fn new(history: &History, damaged: bool) -> Self {
        let options = match history.limits {
            Limits::Tiny => tiny(),
            Limits::Production => Options {
                min_free: Some(0),
                ..Options::default()
            },
        };
        let folder = folder().unwrap_or_else(|error| panic!("{error}"));
        Self {
            recorded: Recorded::new(&folder.path().join("data"), Image::default()),
            folder,
            options: Options {
                shards: history.shards,
                ..options
            },
            clock: HandClock(Arc::new(AtomicU64::new(1_800_000_000_000_000))),
            passed: Duration::ZERO,
            damaged,
        }
    }

    /// Opens the store; the one before has stopped.
    pub(super) fn open(&self) -> Store {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let options = Options {
            vfs: Some(self.recorded.vfs()),
            ..self.options.clone()
        };
        match Store::open_on(&self.root(), options, clock, self.recorded.disk()) {
            Ok((store, _)) => store,
            Err(error) => broken(&format!("the store does not open: {error}")),
        }
    }

    /// Ends a store at this moment: goes on with what the disk holds after all calls that it has made.
    pub(super) fn end(&mut self, store: &Store, how: End) -> Store {
        let recording = self.recorded.recorder.recording();
        let mut disk = Model::new(&recording);
        for call in &recording.calls {
            disk.apply(call);
        }
        let left = disk.after(match how {
            End::Kill => Fate::Kept,
            End::PowerCut => Fate::Lost,
        });
        store.stop();
        self.folder = folder().unwrap_or_else(|error| panic!("{error}"));
        if let Err(error) = left.write_to(&self.root()) {
            panic!("what was left cannot be written: {error}");
        }
        if self.damaged {
            lose_last_group(&self.root());
        }
        self.recorded = Recorded::new(&self.root(), left);
        self.open()
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Lets time pass, and whoever waits for it act.
    pub(super) async fn pass(&mut self, minutes: u64) {
        const ACT: Duration = Duration::from_millis(30);
        let by = Duration::from_secs(60 * minutes);
        if self.passed + by < PASSES_MAX {
            self.passed += by;
            let micros = u64::try_from(by.as_micros()).unwrap_or(0);
            self.clock.0.fetch_add(micros, Ordering::SeqCst);
            tokio::time::sleep(ACT).await;
        }
    }
}

/// A clock that only moves by hand.
#[derive(Clone, Debug)]
struct HandClock(Arc<AtomicU64>);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// Limits that a few events reach.
fn tiny() -> Options {
    Options {
        segment_rows: 8,
        segment_bytes: 256 * 1024,
        group_bytes: 4 * 1024,
        queue_bytes: 64 * 1024,
        tail_bytes: 4 * 1024,
        // More than a history accepts: the reference forgets nothing.
        window_ids: 20_000,
        min_free: Some(0),
        reserve_bytes: 4096,
        checkpoint_after: Duration::ZERO,
        compaction_gain: 1,
        compaction_every: Duration::from_millis(5),
        retention: Duration::from_secs(15 * 60),
        retention_bytes: 1024 * 1024,
        ..Options::default()
    }
}

/// The planted fault: cuts the tail off the WAL that was written last in every shard.
fn lose_last_group(folder: &Path) {
    for entry in std::fs::read_dir(folder)
        .expect("the folder can be read")
        .flatten()
    {
        let path = entry.path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            lose_last_group(&path);
        } else if name.ends_with(".db-wal") && !name.contains("state") && !name.contains("catalog")
        {
            let file = std::fs::File::options().write(true).open(&path);
            let file = file.expect("a log can be opened");
            let length = file.metadata().map_or(0, |data| data.len());
            file.set_len(length / 2).expect("a log can be cut");
        }
    }
}
