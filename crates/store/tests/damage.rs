//! The damage matrix: every kind of file, missing, cut short, with a flipped bit, exchanged for another of its
//! kind, or foreign. The start never deletes silently, never delivers wrong bytes and never fails twice for
//! the same reason without saying what to do; the tools name the file; what survives comes out; and after a
//! repair the server starts and serves the rest.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use support::{HandClock, copy_of, destinations, drain, fill, open, tiny};
use wayhold_model::DestinationId;
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::export::Wanted;
use wayhold_store::rescue::repair::{Names, repair};
use wayhold_store::{Options, Store};

const EVENTS: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Missing,
    Truncated,
    Flipped,
    Swapped,
    OtherNode,
    Bytes,
}

const HARMS: [Harm; 6] = [
    Harm::Missing,
    Harm::Truncated,
    Harm::Flipped,
    Harm::Swapped,
    Harm::OtherNode,
    Harm::Bytes,
];

/// Which file: of the oldest sealed segment or of the newest, which is not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    SealedDatabase,
    SealedLog,
    /// Sealed, and its log was moved into it.
    CheckpointedDatabase,
    Index,
    ActiveDatabase,
    ActiveLog,
    Mark,
    State,
    Catalog,
}

const TARGETS: [Target; 9] = [
    Target::SealedDatabase,
    Target::SealedLog,
    Target::CheckpointedDatabase,
    Target::Index,
    Target::ActiveDatabase,
    Target::ActiveLog,
    Target::Mark,
    Target::State,
    Target::Catalog,
];

fn options() -> Options {
    Options {
        shards: 2,
        // What is harmed lies in logs until the test moves it.
        checkpoint_after: Duration::from_secs(3600),
        ..tiny()
    }
}

/// A killed store of two shards with several sealed segments each and everything pending at one destination.
struct Grown {
    dir: tempfile::TempDir,
    to: DestinationId,
    sent: BTreeMap<String, String>,
    clock: HandClock,
}

async fn grown() -> Grown {
    let clock = HandClock::new();
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &options(), &clock);
    let to = destinations(&store, 1)[0];
    fill(&store, 0, EVENTS, EVENTS, &[to]).await;
    store.lane(to).unwrap().handle().durable().await.unwrap();
    let dir = copy_of(home.path());
    store.stop();
    // Progress, and two of the sealed segments, no longer lie in logs.
    let shard = dir.path().join("g1/s0");
    let indexes = numbers(&shard, ".idx");
    let states = ["g1/s0", "g1/s1"].map(|shard| dir.path().join(shard).join("state-1.db"));
    let sealed = [2, 3].map(|at| shard.join(format!("{}.db", indexes[at])));
    for path in states.iter().chain(&sealed) {
        let database = rusqlite::Connection::open(path).unwrap();
        let moved = database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        assert_eq!(moved, Ok(0));
    }
    let sent = (0..EVENTS).map(|n| (n.to_string(), format!("data {n}")));
    Grown {
        dir,
        to,
        sent: sent.collect(),
        clock,
    }
}

fn numbers(shard: &Path, ending: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = std::fs::read_dir(shard)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(ending)?.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The file within a data directory, and another of its kind that it may be exchanged for.
fn files_of(dir: &Path, target: Target) -> (PathBuf, PathBuf) {
    let shards = ["g1/s0", "g1/s1"].map(|shard| dir.join(shard));
    let sealed = |ending: &str, first: usize| {
        let indexes = numbers(&shards[0], ".idx");
        let name = |number: u64| shards[0].join(format!("{number}{ending}"));
        (name(indexes[first]), name(indexes[first + 1]))
    };
    // The newest segment that holds rows: not sealed.
    let active = |ending: &str| {
        let name = |shard: &Path| {
            let indexes = numbers(shard, ".idx");
            let open = numbers(shard, ".db");
            let open = open.iter().find(|number| !indexes.contains(number));
            shard.join(format!("{}{ending}", open.unwrap()))
        };
        (name(&shards[0]), name(&shards[1]))
    };
    match target {
        Target::SealedDatabase => sealed(".db", 0),
        Target::SealedLog => sealed(".db-wal", 0),
        Target::CheckpointedDatabase => sealed(".db", 2),
        Target::Index => sealed(".idx", 0),
        Target::ActiveDatabase => active(".db"),
        Target::ActiveLog => active(".db-wal"),
        Target::Mark => (shards[0].join("mark"), shards[1].join("mark")),
        Target::State => (shards[0].join("state-1.db"), shards[1].join("state-1.db")),
        Target::Catalog => (dir.join("catalog.db"), dir.join("catalog.db")),
    }
}

/// Does the harm; `false` where this file cannot be harmed so.
fn harm(dir: &Path, other_node: &Path, target: Target, harm: Harm) -> bool {
    let (file, twin) = files_of(dir, target);
    let Ok(bytes) = std::fs::read(&file) else {
        return false;
    };
    match harm {
        Harm::Missing => std::fs::remove_file(&file).unwrap(),
        _ if bytes.is_empty() && harm != Harm::OtherNode => return false,
        Harm::Truncated => std::fs::write(&file, &bytes[..bytes.len() / 3]).unwrap(),
        Harm::Flipped => {
            let mut bytes = bytes;
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            std::fs::write(&file, bytes).unwrap();
        }
        Harm::Swapped if twin == file => return false,
        Harm::Swapped => {
            let theirs = std::fs::read(&twin).unwrap();
            std::fs::write(&file, theirs).unwrap();
            std::fs::write(&twin, bytes).unwrap();
        }
        Harm::OtherNode => {
            let (theirs, _) = files_of(other_node, target);
            std::fs::copy(theirs, &file).unwrap();
        }
        Harm::Bytes => std::fs::write(&file, vec![0xa5; 8192]).unwrap(),
    }
    true
}

/// Every event that a lane gives, held against what was sent.
fn served(store: &Store, grown: &Grown, what: &str) -> BTreeSet<String> {
    let mut lane = store.lane(grown.to).unwrap();
    let mut ids = BTreeSet::new();
    for delivery in drain(&mut lane, 100) {
        let event = &delivery.event.event;
        let expected = grown.sent.get(event.id());
        // Also that it was sent at all.
        let expected = expected.map(String::as_bytes);
        assert_eq!(Some(event.data().as_ref()), expected, "{what}");
        ids.insert(event.id().to_owned());
    }
    ids
}

fn surviving(dir: &Path) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    StoppedStore::open(dir)
        .unwrap()
        .export(Wanted::default(), &mut |one| {
            ids.insert(one.event.event.id().to_owned());
            Ok(())
        })
        .unwrap();
    ids
}

/// How many bytes lie below a directory in files that are kept for a person.
fn kept(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.path().is_dir() {
            true => kept(&entry.path()),
            false => usize::from(
                entry
                    .file_name()
                    .to_string_lossy()
                    .contains(".quarantined."),
            ),
        })
        .sum()
}

fn names() -> Names {
    Names::from([(DestinationId(1), "d1".to_owned())])
}

#[tokio::test]
async fn whatever_is_harmed_is_named_kept_and_survived() {
    let grown = grown().await;
    let other = self::grown().await;
    let everything: BTreeSet<String> = grown.sent.keys().cloned().collect();
    for target in TARGETS {
        for one in HARMS {
            let what = format!("{target:?} {one:?}");
            let dir = copy_of(grown.dir.path());
            if !harm(dir.path(), other.dir.path(), target, one) {
                continue;
            }
            let (file, _) = files_of(grown.dir.path(), target);
            let stem = file.file_name().unwrap().to_string_lossy().into_owned();
            let stem = stem.split(['.', '-']).next().unwrap().to_owned();

            // The tools name it and change nothing.
            let stopped = StoppedStore::open(dir.path()).unwrap();
            let verified = stopped.verify(&mut |_, _, _| {}).unwrap();
            drop(stopped);
            let survivors = surviving(dir.path());
            assert!(survivors.is_subset(&everything), "{what}");
            if survivors.len() < everything.len() {
                assert!(
                    verified.is_damaged(),
                    "{what}: events are gone and nothing is named"
                );
            }
            let named = verified.findings.iter();
            let named = named
                .filter(|one| one.file.to_string_lossy().contains(&stem))
                .count();

            // The start serves the rest, or refuses with words that say what to do.
            let started = copy_of(dir.path());
            match Store::open(started.path(), options(), Arc::new(grown.clock.clone())) {
                Ok((store, recovery)) => {
                    let served = served(&store, &grown, &what);
                    let findings = store.health().degraded.join("\n");
                    store.stop();
                    assert!(served.is_subset(&everything), "{what}");
                    if served.len() < everything.len() {
                        assert!(findings.contains(&stem), "{what}: not named: {findings}");
                        assert!(named > 0, "{what}: {:?}", verified.findings);
                    }
                    let proves = matches!(target, Target::Mark | Target::State);
                    if proves && one != Harm::Flipped {
                        let told = recovery.findings.join("\n");
                        assert!(told.contains(&stem), "{what}: not named: {told}");
                    }
                    println!(
                        "{what}: {} served, {} survive",
                        served.len(),
                        survivors.len()
                    );
                    // And again: nothing gets worse.
                    let (store, _) = open(started.path(), &options(), &grown.clock);
                    assert_eq!(self::served(&store, &grown, &what), served, "{what}");
                    store.stop();
                }
                Err(error) => {
                    let words = error.to_string();
                    assert!(words.contains("store repair"), "{what}: {words}");
                    println!("{what}: refused: {words}");
                }
            }

            // After a repair it starts and gives everything that survived.
            let repaired = copy_of(dir.path());
            let clock = Arc::new(grown.clock.clone());
            repair(repaired.path(), &names(), clock, &mut |_| {}).unwrap();
            let (store, _) = open(repaired.path(), &options(), &grown.clock);
            let served = served(&store, &grown, &what);
            store.stop();
            assert_eq!(served, survivors, "{what}: after the repair");
            if survivors.len() < everything.len() {
                assert!(
                    kept(repaired.path()) > 0 || one == Harm::Missing,
                    "{what}: nothing was kept"
                );
            }
        }
    }
}

/// Whatever a repair had done when it was killed, the same command completes it.
#[tokio::test]
async fn a_repair_that_is_killed_after_any_step_is_completed_by_the_next() {
    let grown = grown().await;
    let other = self::grown().await;
    for (target, one) in [
        (Target::SealedLog, Harm::Swapped),
        (Target::ActiveLog, Harm::Swapped),
        (Target::SealedLog, Harm::Bytes),
        (Target::Index, Harm::OtherNode),
        (Target::CheckpointedDatabase, Harm::Swapped),
        (Target::Catalog, Harm::Bytes),
        (Target::Catalog, Harm::Missing),
    ] {
        let dir = copy_of(grown.dir.path());
        assert!(harm(dir.path(), other.dir.path(), target, one));
        let survivors = surviving(dir.path());
        let mut killed = Vec::new();
        let clock = Arc::new(grown.clock.clone());
        repair(dir.path(), &names(), clock.clone(), &mut |_| {
            killed.push(copy_of(dir.path()));
        })
        .unwrap();
        assert!(killed.len() > 1, "{target:?} {one:?}: {}", killed.len());
        for (step, copy) in killed.iter().enumerate() {
            let what = format!("{target:?} {one:?} after step {step}");
            repair(copy.path(), &names(), clock.clone(), &mut |_| {}).unwrap();
            let (store, _) = open(copy.path(), &options(), &grown.clock);
            assert_eq!(served(&store, &grown, &what), survivors, "{what}");
            store.stop();
        }
    }
}

/// Without its catalogue nobody knows whom a number means: a person has to say it, and to resume.
#[tokio::test]
async fn a_new_catalogue_needs_every_name_and_pauses_everything() {
    let grown = grown().await;
    let dir = copy_of(grown.dir.path());
    std::fs::remove_file(dir.path().join("catalog.db")).unwrap();
    let clock = Arc::new(grown.clock.clone());
    let refused = repair(dir.path(), &Names::new(), clock.clone(), &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("--destination"), "{refused}");
    assert!(!dir.path().join("catalog.db").exists());
    assert_eq!(surviving(dir.path()).len(), grown.sent.len());
    repair(dir.path(), &names(), clock, &mut |_| {}).unwrap();
    let (store, _) = open(dir.path(), &options(), &grown.clock);
    let one = store.catalog().destinations().remove(0);
    assert_eq!((one.id, one.name.as_str()), (grown.to, "d1"));
    assert_eq!(one.state, wayhold_store::RunState::Paused);
    store.stop();
}

/// The state file of another shard would say of deliveries that they are resolved when they are not.
#[tokio::test]
async fn state_files_that_changed_places_resolve_nothing_of_each_other() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &options(), &clock);
    let to = destinations(&store, 1)[0];
    fill(&store, 0, EVENTS, EVENTS, &[to]).await;
    let mut lane = store.lane(to).unwrap();
    let handle = lane.handle();
    let mut owed = BTreeSet::new();
    for delivery in drain(&mut lane, 100) {
        match delivery.event.position.shard.0 {
            0 => drop(owed.insert(delivery.event.event.id().to_owned())),
            _ => handle.settle(&delivery.event, wayhold_store::Resolution::Delivered),
        }
    }
    handle.durable().await.unwrap();
    store.stop();
    let states = ["g1/s0", "g1/s1"].map(|shard| dir.path().join(shard).join("state-1.db"));
    let [first, second] = states.each_ref().map(|path| std::fs::read(path).unwrap());
    std::fs::write(&states[0], second).unwrap();
    std::fs::write(&states[1], first).unwrap();
    assert!(surviving(dir.path()).is_superset(&owed));
    let (store, recovery) = open(dir.path(), &options(), &clock);
    let mut lane = store.lane(to).unwrap();
    let given: BTreeSet<String> = support::ids(&drain(&mut lane, 100)).into_iter().collect();
    assert!(
        given.is_superset(&owed),
        "{} of {}",
        given.len(),
        owed.len()
    );
    let told = recovery.findings.join("\n");
    assert!(told.contains("belongs to another shard"), "{told}");
    store.stop();
}
