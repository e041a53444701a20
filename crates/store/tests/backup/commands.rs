//! Commands beside the shards: they are in every backup, and what is wrong with their file is named.

use std::path::Path;
use std::sync::Arc;

use wayhold_model::command::{CommandId, Reversibility, Risk, State};
use wayhold_model::{Clock, Timestamp};
use wayhold_store::backup::Progress;
use wayhold_store::commands::{CommandsError, NewCommand};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::{OpenError, Store};

use crate::restored;
use crate::support::{HandClock, destinations, fill, open, tiny};

async fn propose(store: &Store, n: u8) -> CommandId {
    let id = CommandId::at(Timestamp::from_micros(1_000_000), [n; 10]);
    let new = NewCommand {
        id,
        kind: "po_create".to_owned(),
        kind_version: "1".to_owned(),
        destination: "d1".to_owned(),
        principal: "ada".to_owned(),
        risk: Risk::Low,
        reversibility: Reversibility::Reversible,
        order_key: None,
        digest: [n; 32],
        arguments: "{}".to_owned(),
        detail: "{}".to_owned(),
        expires_at: None,
        needs: Vec::new(),
        compensates: None,
        replays: None,
    };
    let commands = store.commands().unwrap();
    let kept = commands.change(move |change| {
        change.add_command(&new, State::Ready, (None, None))?;
        Ok::<_, CommandsError>(id)
    });
    kept.await.unwrap()
}

fn state(store: &Store, id: CommandId) -> Option<State> {
    let commands = store.commands().unwrap();
    commands.read(|view| view.state(id)).unwrap()
}

#[tokio::test]
async fn commands_are_in_every_backup_and_in_its_copy() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let as_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    fill(&store, 0, 5, 1, &destinations(&store, 1)).await;
    assert!(!store.has_commands(), "nobody asked for them");
    let id = propose(&store, 1).await;
    let place = tempfile::tempdir().unwrap();
    let to = |name: &str| place.path().join(name);
    store.back_up(&to("online"), &Progress::default()).unwrap();
    let later = propose(&store, 2).await;
    store.stop();
    Store::back_up_stopped(dir.path(), &to("stopped"), &as_clock, &Progress::default()).unwrap();
    for (backup, has_later) in [("online", false), ("stopped", true)] {
        let copy = to(&format!("copy of {backup}"));
        restored(&to(backup), &copy, &clock).unwrap();
        let (store, _) = open(&copy, &tiny(), &clock);
        assert!(store.has_commands());
        assert_eq!(state(&store, id), Some(State::Ready), "{backup}");
        assert_eq!(state(&store, later).is_some(), has_later, "{backup}");
        store.stop();
    }
}

fn alter(data: &Path, sql: &str) {
    let file = rusqlite::Connection::open(data.join("commands.db")).unwrap();
    file.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_file_of_commands_is_named_and_a_newer_one_is_left_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    propose(&store, 1).await;
    store.stop();
    let look = || StoppedStore::open(dir.path()).unwrap();
    assert!(
        look()
            .verify(&mut |_, _, _| ())
            .unwrap()
            .findings
            .is_empty()
    );
    let inventory = look().inspect().unwrap().commands.unwrap().unwrap();
    assert_eq!(
        (inventory.format, inventory.counts.of(State::Ready)),
        (1, 1)
    );
    alter(dir.path(), "UPDATE counts SET commands = 7");
    let found = look().verify(&mut |_, _, _| ()).unwrap().findings;
    assert!(
        found
            .iter()
            .any(|one| one.file.ends_with("commands.db") && one.what.contains("7 are counted")),
        "{found:?}"
    );
    alter(dir.path(), "PRAGMA user_version = 9");
    let refused = Store::open(dir.path(), tiny(), Arc::new(clock.clone()))
        .err()
        .unwrap();
    assert!(
        matches!(&refused, OpenError::Newer { file, found: 9, .. } if file.ends_with("commands.db")),
        "{refused}"
    );
    assert!(matches!(
        StoppedStore::open(dir.path()),
        Err(OpenError::Newer { found: 9, .. })
    ));
}
