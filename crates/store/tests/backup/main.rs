//! Backups of running and stopped stores, and what is made of them.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/disk.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod disk;
mod mortal;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

mod commands;
mod crashes;
mod damage;
mod locks;
mod running;
mod stopped;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use support::{HandClock, drain, tiny};
use wayhold_model::{Clock, DestinationId};
use wayhold_store::backup::{Manifest, Progress, RestoreError, Restored, restore};
use wayhold_store::{Options, RunState, Store};

fn back_up(store: &Store, to: &Path) -> Manifest {
    store.back_up(to, &Progress::default()).unwrap()
}

fn restored(from: &Path, data: &Path, clock: &HandClock) -> Result<Restored, RestoreError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    restore(from, data, "ada", &clock)
}

fn sharded(shards: u16) -> Options {
    Options { shards, ..tiny() }
}

/// What a lane still has to deliver, in the order of each key; settles nothing.
fn pending(store: &Store, destination: DestinationId) -> BTreeMap<String, Vec<u64>> {
    let mut lane = store.lane(destination).unwrap();
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for delivery in drain(&mut lane, 64) {
        let event = &delivery.event.event;
        assert_eq!(
            event.data().as_ref(),
            format!("data {}", event.id()).as_bytes()
        );
        let of_key = keys
            .entry(event.key().unwrap_or_default().to_owned())
            .or_default();
        of_key.push(event.id().parse().unwrap());
    }
    keys
}

/// What every restored store is: whole, another node, and with nothing that runs.
fn assert_restored(store: &Store, restored: &Restored, original: &str) {
    assert_eq!(store.health().degraded, Vec::<String>::new());
    assert_eq!(store.catalog().node_id(), restored.node_id);
    assert_ne!(restored.node_id, original);
    for destination in store.catalog().destinations() {
        assert_eq!(destination.state, RunState::Paused, "{}", destination.name);
        let reason = destination.reason.unwrap();
        assert!(
            reason.contains("restored") && reason.contains(original),
            "{reason}"
        );
        assert_eq!(destination.by.as_deref(), Some("ada"));
    }
}
