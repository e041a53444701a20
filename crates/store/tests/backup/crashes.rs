//! Backup and restore cut off at every single call that changes something: what is left is never taken for
//! whole, and doing it again completes it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wayhold_model::{Clock, DestinationId};
use wayhold_store::backup::{Progress, RestoreError, restore_on};
use wayhold_store::disk::SystemDisk;
use wayhold_store::{OpenError, Store};

use crate::mortal::MortalDisk;
use crate::support::{HandClock, destinations, fill, open};
use crate::{assert_restored, back_up, pending, restored, sharded};

/// A stopped store of two shards with sealed and active segments; 40 events are pending.
async fn filled(dir: &Path, clock: &HandClock) -> DestinationId {
    let (store, _) = open(dir, &sharded(2), clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 40, 5, &to).await;
    store.stop();
    to[0]
}

fn assert_whole(data: &Path, clock: &HandClock, to: DestinationId) {
    let (store, _) = open(data, &sharded(2), clock);
    let all = pending(&store, to);
    assert_eq!(all.values().map(Vec::len).sum::<usize>(), 40, "{all:?}");
    store.stop();
}

#[tokio::test]
async fn a_backup_that_is_cut_off_anywhere_is_none_and_the_next_one_replaces_it() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let to = filled(dir.path(), &clock).await;
    let mut died = 0;
    for last in 0.. {
        let place = tempfile::tempdir().unwrap();
        let backup = place.path().join("backup");
        let disk = MortalDisk::new(&backup, last);
        let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
        let (store, _) =
            Store::open_on(dir.path(), sharded(2), as_clock, Arc::new(disk.clone())).unwrap();
        let made = store.back_up(&backup, &Progress::default());
        store.stop();
        let copy = tempfile::tempdir().unwrap();
        if !disk.has_died() {
            made.unwrap();
            restored(&backup, copy.path(), &clock).unwrap();
            assert_whole(copy.path(), &clock, to);
            break;
        }
        died += 1;
        made.unwrap_err();
        if backup.join("manifest.json").exists() {
            // All that was missing is that the marker goes.
            restored(&backup, copy.path(), &clock).unwrap();
            assert_whole(copy.path(), &clock, to);
            continue;
        }
        let refused = restored(&backup, copy.path(), &clock);
        assert!(
            matches!(refused, Err(RestoreError::Backup { .. })),
            "call {last}: {refused:?}"
        );
        let (store, _) = open(dir.path(), &sharded(2), &clock);
        back_up(&store, &backup);
        store.stop();
        restored(&backup, copy.path(), &clock).unwrap();
        assert_whole(copy.path(), &clock, to);
    }
    assert!(died > 30, "only {died} calls");
}

#[tokio::test]
async fn a_restore_that_is_cut_off_anywhere_opens_as_nothing_and_can_be_repeated() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let to = filled(dir.path(), &clock).await;
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    let original = store.catalog().node_id().to_owned();
    let (backup, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    back_up(&store, backup.path());
    clock.forward(Duration::from_secs(1));
    back_up(&store, other.path());
    store.stop();
    let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let mut died = 0;
    for last in 0.. {
        let data = tempfile::tempdir().unwrap();
        let disk = MortalDisk::new(data.path(), last);
        let done = restore_on(&disk, (backup.path(), data.path()), "ada", &as_clock);
        if !disk.has_died() {
            done.unwrap();
            break;
        }
        died += 1;
        done.unwrap_err();
        if data.path().join("restoring").exists() {
            let refused = Store::open(data.path(), sharded(2), Arc::clone(&as_clock)).err();
            assert!(
                matches!(&refused, Some(OpenError::Unusable { reason, .. }) if reason.contains("not complete")),
                "call {last}: {refused:?}"
            );
            // Another backup has nothing to do with what is there.
            let refused = restored(other.path(), data.path(), &clock).unwrap_err();
            assert!(refused.to_string().contains("another backup"), "{refused}");
        }
        let told = restore_on(&SystemDisk, (backup.path(), data.path()), "ada", &as_clock);
        let told = match told {
            Ok(told) => told,
            // It was complete but for the word of it.
            Err(RestoreError::Destination { .. }) if !data.path().join("restoring").exists() => {
                assert_whole(data.path(), &clock, to);
                continue;
            }
            Err(error) => unreachable!("call {last}: {error}"),
        };
        let (store, _) = open(data.path(), &sharded(2), &clock);
        assert_restored(&store, &told, &original);
        store.stop();
        assert_whole(data.path(), &clock, to);
        assert!(!data.path().join("restoring").exists());
    }
    assert!(died > 30, "only {died} calls");
}
