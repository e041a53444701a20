//! Files of other versions of the format: a newer one is refused with words and left as it is.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use support::{HandClock, destinations, fill, open, tiny};
use wayhold_store::{OpenError, Store};

/// A stopped store with sealed segments and a pending event.
async fn stopped() -> (tempfile::TempDir, HandClock) {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 20, 5, &to).await;
    store.stop();
    (dir, clock)
}

/// What makes a file look as if a newer version had written it.
fn age_into(path: &Path, version: u32) {
    let name = path.file_name().unwrap().to_str().unwrap();
    if name == "mark" {
        let mut bytes = vec![0; 8192];
        bytes[..8].copy_from_slice(format!("WAYMARK{version}").as_bytes());
        return std::fs::write(path, bytes).unwrap();
    }
    if name.ends_with(".idx") {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        return std::fs::write(path, bytes).unwrap();
    }
    let file = rusqlite::Connection::open(path).unwrap();
    match name.starts_with("state") || name.starts_with("catalog") {
        true => file.pragma_update(None, "user_version", version).unwrap(),
        false => {
            let changed = file.execute("UPDATE segment SET format = ?", [version]);
            assert_eq!(changed.unwrap(), 1);
        }
    }
}

fn find(shard: &Path, fits: impl Fn(&str) -> bool) -> PathBuf {
    let mut names: Vec<String> = std::fs::read_dir(shard)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| fits(name))
        .collect();
    names.sort();
    shard.join(names.last().unwrap())
}

/// Sums of every file's bytes, but for the lock, SQLite's shared memory and empty logs, which say nothing.
fn contents(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    for path in [dir, &dir.join("g1/s0")] {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if !path.is_file() || name == "LOCK" || name.ends_with("-shm") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if !bytes.is_empty() || !name.ends_with("-wal") {
                all.insert(path.clone(), wayhold_model::hash::checksum(&bytes, 0));
            }
        }
    }
    all
}

#[tokio::test]
async fn a_newer_file_of_any_kind_is_refused_by_name_and_nothing_is_changed() {
    let is_segment = |name: &str| name.ends_with(".db") && !name.starts_with("state");
    for kind in ["catalog", "state", "mark", "index", "segment"] {
        let (dir, clock) = stopped().await;
        let shard = dir.path().join("g1/s0");
        let file = match kind {
            "catalog" => dir.path().join("catalog.db"),
            "state" => find(&shard, |name| {
                name.starts_with("state") && name.ends_with(".db")
            }),
            "mark" => shard.join("mark"),
            "index" => find(&shard, |name| name.ends_with(".idx")),
            _ => find(&shard, is_segment),
        };
        if kind == "segment" {
            // One that has an index file is read when a lane needs it.
            drop(std::fs::remove_file(file.with_extension("idx")));
        }
        age_into(&file, 9);
        let before = contents(dir.path());
        let refused = Store::open(dir.path(), tiny(), Arc::new(clock.clone()))
            .err()
            .unwrap();
        assert!(
            matches!(&refused, OpenError::Newer { file: named, found: 9, .. } if *named == file),
            "{kind}: {refused}"
        );
        let words = refused.to_string();
        assert!(words.contains("run the newer version"), "{words}");
        assert_eq!(contents(dir.path()), before, "{kind}");
    }
}

/// What an index file says follows from its segment's rows, so an older one is made again from them.
#[tokio::test]
async fn a_store_with_index_files_of_the_first_format_opens_and_makes_them_again() {
    let (dir, clock) = stopped().await;
    let shard = dir.path().join("g1/s0");
    let mut aged = 0;
    for entry in std::fs::read_dir(&shard).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "idx") {
            age_into(&path, 1);
            aged += 1;
        }
    }
    assert!(aged > 1, "{aged}");
    let (store, recovery) = open(dir.path(), &tiny(), &clock);
    let told = recovery.findings.join("\n");
    assert_eq!(told.matches("older than").count(), aged, "{told}");
    let to = destinations(&store, 1);
    let mut lane = store.lane(to[0]).unwrap();
    assert_eq!(
        support::ids(&support::drain(&mut lane, 100)),
        support::names(0..20)
    );
    let again = fill(&store, 0, 20, 5, &to).await;
    assert!(again.iter().all(|receipt| receipt.duplicate));
    store.stop();
}
