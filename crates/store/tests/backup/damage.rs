//! A backup that is not as it was made is refused with the names of what is wrong, before anything is written.

use std::path::Path;

use wayhold_store::backup::RestoreError;

use crate::support::{HandClock, destinations, fill, open};
use crate::{back_up, restored, sharded};

/// A way to spoil a file.
type Spoil = fn(&Path);

const WAYS: [(&str, Spoil, &str); 5] = [
    (
        "missing",
        |path| std::fs::remove_file(path).unwrap(),
        "missing",
    ),
    (
        "cut",
        |path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        },
        "bytes; expected",
    ),
    (
        "longer",
        |path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes.push(0);
            std::fs::write(path, bytes).unwrap();
        },
        "bytes; expected",
    ),
    (
        "flipped",
        |path| {
            let mut bytes = std::fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(path, bytes).unwrap();
        },
        "damaged",
    ),
    (
        "foreign",
        |path| {
            let length = std::fs::metadata(path).unwrap().len();
            std::fs::write(path, vec![7; usize::try_from(length).unwrap()]).unwrap();
        },
        "damaged",
    ),
];

#[tokio::test]
async fn every_damaged_missing_or_foreign_file_is_named_before_anything_is_written() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &sharded(2), &clock);
    let to = destinations(&store, 1);
    fill(&store, 0, 30, 5, &to).await;
    let made = tempfile::tempdir().unwrap();
    let backup = made.path().join("backup");
    let manifest = back_up(&store, &backup);
    store.stop();
    let data = made.path().join("data");
    let problems = || match restored(&backup, &data, &clock) {
        Err(RestoreError::Backup { problems, .. }) => problems,
        other => unreachable!("{other:?}"),
    };
    assert!(manifest.files.len() > 8, "{:?}", manifest.files);
    for file in &manifest.files {
        let path = backup.join(&file.name);
        let whole = std::fs::read(&path).unwrap();
        for (way, spoil, words) in WAYS {
            spoil(&path);
            let problems = problems();
            assert_eq!(problems.len(), 1, "{way} {}: {problems:?}", file.name);
            assert!(
                problems[0].starts_with(&file.name) && problems[0].contains(words),
                "{way} {}: {problems:?}",
                file.name
            );
            std::fs::write(&path, &whole).unwrap();
        }
    }
    let sealed = std::fs::read(backup.join("manifest.json")).unwrap();
    for (way, spoil, _) in WAYS {
        if way == "longer" {
            continue;
        }
        spoil(&backup.join("manifest.json"));
        assert!(problems()[0].contains("manifest.json"), "{way}");
        std::fs::write(backup.join("manifest.json"), &sealed).unwrap();
    }
    // All at once, and what was never part of it.
    std::fs::write(backup.join("g1/s0/99.db"), "stray").unwrap();
    std::fs::remove_file(backup.join("catalog.db")).unwrap();
    let problems = problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("catalog.db: ") && problems[1].starts_with("g1/s0/99.db: "));
    assert!(!data.exists(), "nothing was written");
}

#[tokio::test]
async fn only_an_empty_directory_is_restored_into() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &sharded(1), &clock);
    let backup = tempfile::tempdir().unwrap();
    back_up(&store, backup.path());
    let refused = restored(backup.path(), dir.path(), &clock).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    store.stop();
    let refused = restored(backup.path(), dir.path(), &clock).unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
    let absent = restored(dir.path(), &backup.path().join("data"), &clock).unwrap_err();
    assert!(absent.to_string().contains("no manifest.json"), "{absent}");
}
