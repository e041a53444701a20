//! Records, tree, payloads and retention, over the border of a tile and over a start.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use wayhold_model::ledger::examine::Examination;
use wayhold_model::ledger::export::{Keys, commitments};
use wayhold_model::ledger::proof::{Head, check_consistency, check_inclusion};
use wayhold_model::ledger::tile::Tile;
use wayhold_model::ledger::tree::root_of;
use wayhold_model::ledger::{Actor, Draft, Hash, Salt, Trace, canonical};
use wayhold_model::{Clock, Timestamp};

use super::super::tests::MOVE_AFTER;
use super::super::{Change, Commands, CommandsError, CommandsOptions};
use super::*;
use crate::disk::SystemDisk;

struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn open(directory: &Path, time: u64) -> Commands {
    Commands::open(CommandsOptions {
        directory: directory.to_owned(),
        vfs: None,
        disk: Arc::new(SystemDisk),
        move_after: MOVE_AFTER,
        clock: Arc::new(Ticking(AtomicU64::new(time))),
        on_no_space: Arc::new(|| {}),
    })
    .unwrap()
}

fn draft(stream: &str, body: &serde_json::Value) -> Draft {
    let (actor, trace) = (Actor::system("test"), Trace::default());
    Draft::new(stream.to_owned(), "test.record", &actor, &trace, body).unwrap()
}

/// Appends that many records, ten of a stream, several in a change.
async fn fill(commands: &Commands, from: u64, count: u64) {
    let mut next = from;
    while next < from + count {
        let end = (next + 7).min(from + count);
        let drafts: Vec<Draft> = (next..end)
            .map(|n| draft(&format!("cmd:{}", n % 10), &json!({ "n": n })))
            .collect();
        let appended = commands
            .change(move |change| {
                let places = drafts.iter().map(|draft| change.append(draft));
                places.collect::<Result<Vec<u64>, CommandsError>>()
            })
            .await
            .unwrap();
        assert_eq!(appended, (next..end).collect::<Vec<u64>>());
        next = end;
    }
}

fn at(place: u64) -> usize {
    usize::try_from(place).unwrap()
}

fn leaves(commands: &Commands) -> Vec<Hash> {
    let records = commands.read(|view| view.records(0, u32::MAX)).unwrap();
    records.iter().map(|row| row.leaf).collect()
}

#[tokio::test]
async fn records_hold_together_and_are_proven_before_and_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    fill(&commands, 0, 300).await;
    commands.stop();
    let commands = open(folder.path(), 1_000_000);
    fill(&commands, 300, 300).await;
    let leaves = leaves(&commands);
    let head = commands.read(|view| view.ledger_head()).unwrap();
    assert_eq!(
        head,
        Head {
            size: 600,
            root: root_of(&leaves)
        }
    );
    let mut examination = Examination::new(head, Some(leaves.clone()), 0);
    for row in commands.read(|view| view.records(0, u32::MAX)).unwrap() {
        examination.record(&row.record).unwrap();
        assert_eq!(Hash::of_leaf(&row.record), row.leaf);
    }
    examination.end().unwrap();
    let of_stream = commands
        .read(|view| view.records_of("cmd:3", 2, 2))
        .unwrap();
    let places: Vec<u64> = of_stream.iter().map(|row| row.idx).collect();
    assert_eq!(places, [23, 33]);
    for size in [1, 255, 256, 257, 511, 512, 600] {
        let root = root_of(&leaves[..at(size)]);
        for index in [0, size / 3, size / 2, size - 1] {
            let path = commands
                .read(|view| view.inclusion(index, size))
                .unwrap()
                .unwrap();
            let leaf = leaves[at(index)];
            assert_eq!(check_inclusion(leaf, index, size, root, &path), Ok(()));
        }
        let path = commands
            .read(|view| view.consistency(size, 600))
            .unwrap()
            .unwrap();
        assert_eq!(check_consistency(Head { size, root }, head, &path), Ok(()));
    }
    assert_eq!(commands.read(|view| view.inclusion(600, 600)), Ok(None));
    assert_eq!(commands.read(|view| view.inclusion(0, 601)), Ok(None));
    assert_eq!(commands.read(|view| view.consistency(0, 600)), Ok(None));
    for (level, number, hashes) in [(0, 1, 256), (0, 2, 88), (1, 0, 2)] {
        let tile = Tile::in_tree(level, number, 600).unwrap();
        let found = commands.read(|view| view.tile(tile)).unwrap().unwrap();
        assert_eq!(found.len(), hashes);
        if level == 0 {
            let first = at(number) * 256;
            assert_eq!(found, leaves[first..first + hashes]);
        }
    }
}

#[tokio::test]
async fn records_of_streams_that_take_turns_within_a_change_follow_each_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    for round in 0..3 {
        let streams = match round {
            0 => ["cmd:a", "cmd:a", "cmd:b", "cmd:a"],
            1 => ["cmd:b", "cmd:b", "cmd:a", "cmd:b"],
            _ => ["cmd:a", "cmd:c", "cmd:c", "cmd:a"],
        };
        let appended = commands.change(move |change| {
            if round == 0 {
                change.append_first(&draft("cmd:first", &json!({})), &[])?;
            }
            for stream in streams {
                change.append(&draft(stream, &json!({ "round": round })))?;
            }
            Ok::<_, CommandsError>(())
        });
        appended.await.unwrap();
    }
    let head = commands.read(|view| view.ledger_head()).unwrap();
    let mut examination = Examination::new(head, Some(leaves(&commands)), 0);
    for row in commands.read(|view| view.records(0, u32::MAX)).unwrap() {
        examination.record(&row.record).unwrap();
    }
    examination.end().unwrap();
    // A stream begins once, whatever whoever says so believes.
    let again = commands
        .change(|change| change.append_first(&draft("cmd:first", &json!({ "again": true })), &[]));
    assert!(matches!(again.await, Err(CommandsError::Unfit { .. })));
    assert_eq!(commands.read(|view| view.ledger_head()), Ok(head));
}

#[tokio::test]
async fn a_change_that_is_refused_leaves_no_record_and_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    fill(&commands, 0, 250).await;
    // It would complete a tile before it is refused.
    let refused = commands.change(|change| {
        for n in 0..20 {
            change.append(&draft("cmd:refused", &json!({ "n": n })))?;
        }
        Err::<(), _>(CommandsError::Busy)
    });
    assert_eq!(refused.await, Err(CommandsError::Busy));
    fill(&commands, 250, 20).await;
    let head = commands.read(|view| view.ledger_head()).unwrap();
    assert_eq!(
        head,
        Head {
            size: 270,
            root: root_of(&leaves(&commands))
        }
    );
    assert!(
        commands
            .read(|view| view.records_of("cmd:refused", 0, 1))
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn an_erased_payload_is_gone_from_the_file_and_the_root_stays() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    let secret = "a telephone number: 0151-2223344".repeat(10);
    let payload = Payload::new(Salt([7; 32]), secret.clone().into_bytes());
    let record = draft("cmd:1", &json!({ "input": payload.reference() }));
    let held = payload.clone();
    let idx = commands
        .change(move |change| change.append_with(&record, &[held]))
        .await
        .unwrap();
    let root = commands.read(|view| view.ledger_head()).unwrap().root;
    let row = &commands.read(|view| view.records(idx, 1)).unwrap()[0];
    let body = canonical::read(&row.record).unwrap()["body"].clone();
    let mut named = Vec::new();
    commitments(&body, &mut |commitment| named.push(commitment));
    assert_eq!(named, [payload.commitment]);
    assert_eq!(
        commands.read(|view| view.payloads(idx)),
        Ok(vec![payload.clone()])
    );
    let erase =
        |commitment| commands.change(move |change: &mut Change<'_>| change.erase(idx, commitment));
    assert_eq!(erase(payload.commitment).await, Ok(Erasing::Erased));
    assert_eq!(erase(payload.commitment).await, Ok(Erasing::NotHeld));
    assert_eq!(commands.read(|view| view.payloads(idx)), Ok(Vec::new()));
    assert_eq!(commands.read(|view| view.ledger_head()).unwrap().root, root);
    let holds_it = |name: &str| {
        let file = std::fs::read(folder.path().join(name)).unwrap();
        file.windows(16)
            .any(|bytes| bytes == &secret.as_bytes()[..16])
    };
    // The log is cut off after the group that erased it, however little is in it.
    while holds_it("commands.db-wal") {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    commands.stop();
    assert!(
        !holds_it("commands.db"),
        "the file still holds what was erased"
    );
}

#[tokio::test]
async fn what_is_older_than_the_retention_goes_in_whole_tiles_and_streams_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    fill(&commands, 0, 300).await;
    commands.stop();
    let commands = open(folder.path(), 1_000_000);
    fill(&commands, 300, 300).await;
    let before = leaves(&commands);
    assert_eq!(
        commands.read(|view| view.removable(Timestamp::from_micros(900))),
        Ok(0)
    );
    let end = commands.read(|view| view.removable(Timestamp::from_micros(1_000_000)));
    assert_eq!(end, Ok(256));
    // However late it is, the newest records stay.
    let end = commands
        .read(|view| view.removable(Timestamp::from_micros(9_000_000)))
        .unwrap();
    assert_eq!(end, 512);
    let mut first = 0;
    loop {
        let step = commands.change(move |change| {
            let step = change.remove_records(end)?;
            if let Some(step) = step {
                let body = json!({ "first": step.first, "keys": [] });
                let (actor, trace) = (Actor::system("retention"), Trace::default());
                let stream = "ledger:retention".to_owned();
                let draft = Draft::new(stream, "retention.applied", &actor, &trace, &body);
                change.append(&draft.unwrap())?;
            }
            Ok::<_, CommandsError>(step)
        });
        match step.await.unwrap() {
            Some(step) => first = step.first,
            None => break,
        }
    }
    assert_eq!(first, 512);
    assert_eq!(commands.read(|view| view.first_record()), Ok(512));
    fill(&commands, 602, 20).await;
    commands.stop();
    let commands = open(folder.path(), 2_000_000);
    let head = commands.read(|view| view.ledger_head()).unwrap();
    assert_eq!(head.size, 622);
    let mut all = before[..512].to_vec();
    all.extend(leaves(&commands));
    assert_eq!(head.root, root_of(&all));
    let path = commands
        .read(|view| view.inclusion(3, 622))
        .unwrap()
        .unwrap();
    assert_eq!(check_inclusion(all[3], 3, 622, head.root, &path), Ok(()));
    let keys = Keys {
        first,
        keys: Vec::new(),
    };
    let mut examination = Examination::new(head, Some(all), keys.first);
    for row in commands.read(|view| view.records(0, u32::MAX)).unwrap() {
        examination.record(&row.record).unwrap();
    }
    assert_eq!(examination.end().unwrap().first(), 512);
}

#[tokio::test]
async fn keys_and_the_newest_checkpoint_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    assert_eq!(commands.read(|view| view.checkpoint()), Ok(None));
    let changed = commands.change(|change| {
        change.add_ledger_key("one")?;
        change.add_ledger_key("two")?;
        change.retire_ledger_key("one")?;
        change.keep_checkpoint(1, "first")?;
        change.keep_checkpoint(2, "second")
    });
    changed.await.unwrap();
    let keys = commands.read(|view| view.ledger_keys()).unwrap();
    let keys: Vec<_> = keys
        .iter()
        .map(|key| (key.verifier.as_str(), key.is_retired))
        .collect();
    assert_eq!(keys, [("one", true), ("two", false)]);
    let (size, _, note) = commands.read(|view| view.checkpoint()).unwrap().unwrap();
    assert_eq!((size, note.as_str()), (2, "second"));
}

#[tokio::test]
async fn a_record_or_a_hash_that_was_changed_in_the_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let commands = open(folder.path(), 1_000);
    fill(&commands, 0, 300).await;
    commands.stop();
    let unsound = || {
        super::super::examine(folder.path())
            .unwrap()
            .unwrap()
            .unsound
    };
    assert_eq!(unsound(), Vec::<String>::new());
    let file = rusqlite::Connection::open(folder.path().join("commands.db")).unwrap();
    let change = |statement: &str| assert_eq!(file.execute(statement, []).unwrap(), 1);
    change("UPDATE ledger SET record = CAST(record || ' ' AS BLOB) WHERE idx = 7");
    change("DELETE FROM ledger WHERE idx = 290");
    change("UPDATE ledger_tiles SET hashes = zeroblob(8192) WHERE level = 0");
    drop(file);
    let found = unsound();
    for (found, words) in
        found
            .iter()
            .zip(["record 7 ", "before record 291 ", "hashes 0 of level 0 "])
    {
        assert!(found.contains(words), "{found}");
    }
    assert_eq!(found.len(), 3);
}
