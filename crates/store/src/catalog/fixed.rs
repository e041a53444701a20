//! A catalogue for tests of what it holds, at a time that stands still.

use std::path::Path;
use std::sync::Arc;

use wayhold_model::{Clock, Timestamp};

use super::Catalog;
use crate::disk::SystemDisk;

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(7)
    }
}

/// The catalogue of a directory, which is made for one shard.
pub(super) fn open(directory: &Path) -> Catalog {
    open_of(directory, 1)
}

/// The same, made for so many shards.
pub(super) fn open_of(directory: &Path, shards: u16) -> Catalog {
    Catalog::open(directory, &SystemDisk, Arc::new(Fixed), shards).unwrap()
}
