//! Backups of a store that does not run, also of one that ended by a kill.

use std::sync::Arc;

use wayhold_model::Clock;
use wayhold_store::Store;
use wayhold_store::backup::{BackupError, Progress};

use crate::support::{HandClock, copy_of, destinations, fill, open};
use crate::{assert_restored, pending, restored, sharded};

#[tokio::test]
async fn a_stopped_or_killed_store_is_copied_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 50, 5, &to).await;
    let backup = tempfile::tempdir().unwrap();
    let progress = Progress::default();
    let running = Store::back_up_stopped(dir.path(), backup.path(), &as_clock, &progress);
    let told = running.unwrap_err();
    assert!(matches!(&told, BackupError::Source { .. }), "{told}");
    assert!(told.to_string().contains("in use"), "{told}");
    let node = store.catalog().node_id().to_owned();
    let killed = copy_of(dir.path());
    store.stop();
    for data in [dir.path(), killed.path()] {
        let place = tempfile::tempdir().unwrap();
        let (backup, copy) = (place.path().join("backup"), place.path().join("copy"));
        let progress = Progress::default();
        let manifest = Store::back_up_stopped(data, &backup, &as_clock, &progress).unwrap();
        assert!(!manifest.online);
        assert_eq!(progress.copied(), manifest.bytes());
        let last: u64 = manifest
            .shards
            .iter()
            .map(|shard| shard.last_sequence)
            .sum();
        assert_eq!(last, 50, "every sequence of both shards");
        let told = restored(&backup, &copy, &clock).unwrap();
        let (restored, _) = open(&copy, &sharded(2), &clock);
        assert_restored(&restored, &told, &node);
        let all = pending(&restored, to[0]);
        assert_eq!(all.values().map(Vec::len).sum::<usize>(), 50);
        assert!(all.values().all(|of| of.is_sorted()));
        let again = fill(&restored, 0, 50, 5, &to).await;
        assert!(again.iter().all(|receipt| receipt.duplicate));
        restored.stop();
    }
    let absent = dir.path().join("absent");
    let progress = Progress::default();
    let refused = Store::back_up_stopped(&absent, backup.path(), &as_clock, &progress);
    assert!(refused.unwrap_err().to_string().contains("catalog.db"));
    assert!(!absent.exists(), "nothing is made");
}
