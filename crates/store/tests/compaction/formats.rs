//! Compaction across versions: a store of before compaction is compacted once it is opened, and a compacted segment
//! of a newer version is refused by name.

use std::path::Path;
use std::sync::Arc;

use wayhold_store::rescue::StoppedStore;
use wayhold_store::{OpenError, Store};

use crate::support::{HandClock, copy_of, destinations, files, ids, open};
use crate::{
    account, compacted, compacted_segments, deliver, eager, exported, owed, pending, uncompacted,
    until_compacted,
};

/// What SQLite calls the version of a state file.
fn version(state: &Path) -> u32 {
    let file = rusqlite::Connection::open(state).unwrap();
    file.pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap()
}

#[tokio::test]
async fn a_state_file_of_before_compaction_is_brought_to_it_and_the_accounts_hold() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let store = uncompacted(dir.path(), &clock, 64).await;
    store.stop();
    drop(store);
    let state = dir.path().join("g1/s0/state-1.db");
    let file = rusqlite::Connection::open(&state).unwrap();
    file.execute_batch(
        "DROP TABLE compacted; DROP TABLE edits; DROP INDEX dead_letters_by_cause;
         ALTER TABLE dead_letters DROP COLUMN fingerprint; PRAGMA user_version = 3",
    )
    .unwrap();
    drop(file);
    let stopped = StoppedStore::open(dir.path()).unwrap();
    let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
    assert!(!verified.is_damaged(), "{:?}", verified.findings);
    assert_eq!(exported(&stopped), owed(64));
    drop(stopped);
    assert_eq!(version(&state), 3, "who looks changes nothing");
    for round in 0..2 {
        let (store, recovery) = open(dir.path(), &eager(), &clock);
        assert_eq!(recovery.findings, Vec::<String>::new());
        let to = destinations(&store, 2);
        until_compacted(&store, dir.path(), &to);
        assert_eq!(account(&store, to[0]), (64, 0), "{round}");
        assert_eq!(account(&store, to[1]), (4, 4), "{round}");
        assert_eq!(pending(&store, to[0]), Vec::<String>::new(), "{round}");
        assert_eq!(pending(&store, to[1]), owed(64), "{round}");
        if round == 1 {
            assert_eq!(ids(&deliver(&store, to[1])), owed(64));
            assert_eq!(account(&store, to[1]), (4, 0));
        }
        store.stop();
        drop(store);
        assert_eq!(version(&state), 6, "{round}");
    }
}

#[tokio::test]
async fn a_compacted_segment_of_a_newer_version_is_refused_by_name_and_left_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = compacted(dir.path(), &eager(), &clock, 64).await;
    store.stop();
    drop(store);
    let number = compacted_segments(dir.path())[0];
    for ending in ["idx", "db"] {
        let copy = copy_of(dir.path());
        let shard = copy.path().join("g1/s0");
        let file = shard.join(format!("{number}.{ending}"));
        if ending == "idx" {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
            std::fs::write(&file, bytes).unwrap();
        } else {
            // One that has an index file is read when a lane needs it.
            std::fs::remove_file(file.with_extension("idx")).unwrap();
            let database = rusqlite::Connection::open(&file).unwrap();
            let changed = database.execute("UPDATE segment SET format = 9", []);
            assert_eq!(changed.unwrap(), 1);
        }
        let before = std::fs::read(&file).unwrap();
        let opened = Store::open(copy.path(), eager(), Arc::new(clock.clone()));
        let verified = StoppedStore::open(copy.path())
            .unwrap()
            .verify(&mut |_, _, _| {});
        for refused in [opened.err().unwrap(), verified.err().unwrap()] {
            assert!(
                matches!(&refused, OpenError::Newer { file: named, found: 9, .. } if *named == file),
                "{ending}: {refused}"
            );
            assert!(
                refused.to_string().contains("run the newer version"),
                "{refused}"
            );
        }
        assert!(std::fs::read(&file).unwrap() == before, "{ending}");
        assert_eq!(files(copy.path(), ".quarantined.1"), Vec::<String>::new());
    }
}
