use super::*;
use crate::catalog::RunState;
use crate::disk::SystemDisk;

#[derive(Debug)]
struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_000)
    }
}

fn open(directory: &Path) -> Result<Catalog, CatalogError> {
    Catalog::open(directory, &SystemDisk, Arc::new(Fixed), 1)
}

#[test]
fn a_node_keeps_its_identity() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();
    let identity = (
        first.node_id().to_owned(),
        first.hash_seed(),
        *first.token_key(),
    );
    drop(first);
    let again = open(folder.path()).unwrap();
    assert_eq!(
        (
            again.node_id().to_owned(),
            again.hash_seed(),
            *again.token_key()
        ),
        identity
    );
    assert_eq!(again.generations().len(), 1);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(open(other.path()).unwrap().node_id(), identity.0);
}

#[test]
fn the_number_of_shards_is_kept_from_the_first_shard_on() {
    let folder = tempfile::tempdir().unwrap();
    let count = |shards| {
        let catalog = Catalog::open(folder.path(), &SystemDisk, Arc::new(Fixed), shards).unwrap();
        catalog.generations()[0].shards
    };
    assert_eq!([1, 3, 0, u16::MAX, 3].map(count), [1, 3, 1, SHARDS_MAX, 3]);
    std::fs::create_dir(folder.path().join("g1")).unwrap();
    assert_eq!([1, 3, 4].map(count), [3, 3, 3]);
}

#[test]
fn a_catalogue_of_format_1_is_brought_to_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    std::fs::create_dir(folder.path().join("g1")).unwrap();
    let mut old = connection::open(&path, Access::Create, PROFILE, None).unwrap();
    initialise(&mut old, Timestamp::from_micros(5)).unwrap();
    old.execute_batch(
        "DROP TABLE generations; DROP TABLE retired_totals;
         CREATE TABLE generations(
             generation INTEGER PRIMARY KEY, shards INTEGER NOT NULL, since INTEGER NOT NULL
         ) STRICT;
         INSERT INTO generations VALUES (1, 3, 5);
         ALTER TABLE tokens DROP COLUMN admit_until;
         DROP TABLE redrives; DROP TABLE replays;
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    for _ in 0..2 {
        let catalog = open(folder.path()).unwrap();
        let [first] = catalog.generations()[..] else {
            panic!("one generation");
        };
        assert_eq!((first.generation.0, first.shards, first.made), (1, 3, true));
    }
}

#[test]
fn a_crash_while_it_was_made_leaves_nothing_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), []).unwrap();
    open(folder.path()).unwrap();
}

#[test]
fn a_lost_or_foreign_catalogue_is_named_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("g1")).unwrap();
    assert!(matches!(
        open(folder.path()),
        Err(CatalogError::Lost { .. })
    ));
    std::fs::write(folder.path().join(FILE), [1; 8192]).unwrap();
    assert!(matches!(
        open(folder.path()),
        Err(CatalogError::Unusable { .. })
    ));
    let foreign = tempfile::tempdir().unwrap();
    let other =
        connection::open(&foreign.path().join(FILE), Access::Create, PROFILE, None).unwrap();
    other.execute_batch("CREATE TABLE t(x)").unwrap();
    drop(other);
    assert!(matches!(
        open(foreign.path()),
        Err(CatalogError::Unusable { .. })
    ));
}

#[test]
fn what_returned_is_in_a_copy_of_the_files_taken_at_that_moment() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path()).unwrap();
    let names = ["orders".to_owned()];
    let orders = catalog.sync_destinations(&names).unwrap().remove(0);
    catalog
        .set_run_state(orders.id, RunState::Paused, "ada", Some("stock-taking"))
        .unwrap();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    let restored = open(copy.path()).unwrap();
    assert_eq!(restored.destinations(), catalog.destinations());
    assert_eq!(restored.destinations()[0].state, RunState::Paused);
}

#[test]
fn a_full_volume_refuses_a_change_and_the_next_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path()).unwrap();
    let limit = |pages: u32| {
        catalog
            .read(|c| c.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())))
            .unwrap();
    };
    limit(1);
    let long = "x".repeat(100_000);
    let full = catalog.audit("ada", "test", &long, None);
    assert!(matches!(full, Err(CatalogError::NoSpace)), "{full:?}");
    limit(100_000);
    catalog.audit("ada", "test", &long, None).unwrap();
}

#[test]
fn counters_never_return_a_number_twice() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path()).unwrap();
    assert_eq!(catalog.count_up("a").unwrap(), 1);
    assert_eq!(catalog.count_up("a").unwrap(), 2);
    drop(catalog);
    let catalog = open(folder.path()).unwrap();
    assert_eq!(catalog.count_up("a").unwrap(), 3);
    assert_eq!(catalog.count_up("b").unwrap(), 1);
}
