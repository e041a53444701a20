//! What a store is made to do while its disk is recorded, and what must be true of it afterwards. A seed
//! expands into a script; an actor plays it and keeps a history outside of the store; a judge compares any
//! store that was opened on what is left of the disk with the history up to that moment.

mod actor;
mod commands;
mod history;
mod judge;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wayhold_model::Timestamp;

use crate::disk::Image;

pub(crate) use self::actor::{Actor, Patience};
pub(crate) use self::history::{Expected, History};
pub(crate) use self::judge::{Judge, Seen, Then};
pub(crate) use self::script::Script;

/// Where all events say they come from.
const SOURCE: &str = "/torture";

/// How many destinations there are.
const DESTINATIONS: usize = 3;

/// Names of the destinations.
fn destination_names() -> Vec<String> {
    (1..=DESTINATIONS).map(|n| format!("d{n}")).collect()
}

/// The disk before a script begins: an empty data directory. Backups come to lie beside it.
pub(crate) fn empty_disk() -> Image {
    Image::new(vec![PathBuf::from(DATA)], BTreeMap::new())
}

/// The data directory of a disk.
pub(crate) fn data_below(disk: &Path) -> PathBuf {
    disk.join(DATA)
}

/// Where a disk has the backup with this number.
fn backup_below(disk: &Path, number: usize) -> PathBuf {
    disk.join(format!("backup-{number}"))
}

/// Name of the data directory.
const DATA: &str = "data";

/// A clock that only moves by hand, so that what is due is due in every run.
#[derive(Clone, Debug)]
pub(crate) struct HandClock(Arc<AtomicU64>);

impl HandClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000_000_000)))
    }

    fn forward(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(0);
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl wayhold_model::Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}
