//! What becomes of compacted events that dead letters refer to, and of those of a destination that is retired.

use std::sync::Arc;

use wayhold_model::{DestinationSet, FailureClass, OutcomeKind, Timestamp};
use wayhold_store::{
    AttemptRecord, LetterSelection, NewEvent, PendingFate, Resolution, RunState, Store,
};

use crate::disk::HookedDisk;
use crate::support::{HandClock, copy_of, destinations, drain, eventually, ids, open};
use crate::{
    OF, ROWS, account, compacted, data, databases, deliver, eager, mostly, owed, pending,
    until_compacted,
};

#[tokio::test]
async fn events_that_letters_refer_to_are_kept_and_sent_again() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &eager(), &clock);
    let to = destinations(&store, 2);
    for first in (0..96).step_by(8) {
        let events = (first..first + ROWS).map(|n| NewEvent {
            set_aside: (n % OF == 5).then(|| Arc::new(DestinationSet::new([to[1]]))),
            ..mostly(n, &to)
        });
        store.append(events.collect()).await.unwrap();
    }
    deliver(&store, to[0]);
    until_compacted(&store, dir.path(), &to);
    let letters = || {
        let listed = store.dead_letters().list(None, None, 100).unwrap();
        let letters = listed.iter().map(|one| one.event.event.id().to_owned());
        letters.collect::<Vec<_>>()
    };
    assert_eq!(letters(), owed(96));
    assert_eq!(account(&store, to[1]), (6, 0));
    store.stop();
    drop(store);

    // One letter alone, from where its event lies; it fails once more before it is delivered.
    let (store, recovery) = open(dir.path(), &eager(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    let handle = store.lane(to[1]).unwrap().handle();
    let letter = store.dead_letters().list(None, None, 1).unwrap().remove(0);
    store.dead_letters().redrive(letter.id, "ada").unwrap();
    handle.settle_letter(letter.id, Resolution::DeadLettered(refused()));
    let redriven = store.dead_letters().redrive(letter.id, "ada").unwrap();
    let n: u64 = redriven.event.event.id().parse().unwrap();
    assert_eq!(redriven.event.event.data(), data(n).as_bytes());
    assert_eq!(account(&store, to[1]), (6, 1));
    handle.settle_letter(letter.id, Resolution::Delivered);
    assert_eq!(account(&store, to[1]), (6, 0));
    let mut rest = owed(96);
    rest.retain(|id| *id != n.to_string());

    // The others all together, in order and each once; half of them in a later run.
    let which = LetterSelection {
        destination: to[1],
        class: Some("backlog_limit".to_owned()),
    };
    assert_eq!(store.dead_letters().revive(&which, "ada").unwrap(), 5);
    assert_eq!(account(&store, to[1]), (6, 5));
    assert_eq!(pending(&store, to[1]), rest);
    let all = drain(&mut store.lane(to[1]).unwrap(), 50);
    let positions: Vec<_> = all[..2].iter().map(|one| one.event.position).collect();
    handle.settle_delivered(&positions);
    handle.durable().await.unwrap();
    store.stop();
    drop((handle, store));
    let (store, recovery) = open(dir.path(), &eager(), &clock);
    assert_eq!(recovery.findings, Vec::<String>::new());
    assert_eq!(account(&store, to[1]), (6, 3));
    assert_eq!(ids(&deliver(&store, to[1])), rest.split_off(2));
    eventually("its segments can go", || {
        store.figures().segments_closed == 0
    });
    assert_eq!(account(&store, to[0]), (96, 0));
    assert_eq!(account(&store, to[1]), (6, 0));
    assert_eq!(store.totals(to[1]).delivered, 6);
    assert_eq!(pending(&store, to[1]), Vec::<String>::new());
    assert_eq!(store.health().degraded, Vec::<String>::new());
    store.stop();
}

fn refused() -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number: 1,
        at: Timestamp::from_micros(7),
        outcome: OutcomeKind::Refused,
        class: FailureClass::Invalid,
        status: Some(400),
        reason: "no".to_owned(),
    }
}

#[tokio::test]
async fn what_a_retired_destination_was_owed_in_compacted_segments_is_ended_and_they_go() {
    for fate in [PendingFate::DeadLetter, PendingFate::Discard] {
        let (dir, clock) = (tempfile::tempdir().unwrap(), HandClock::new());
        let (store, _) = compacted(dir.path(), &eager(), &clock, 256).await;
        store.stop();
        drop(store);
        let disk = HookedDisk::new(|_, _| Ok(()));
        let as_disk = Arc::new(disk.clone());
        let opened = Store::open_on(dir.path(), eager(), Arc::new(clock.clone()), as_disk);
        let (store, _) = opened.unwrap();
        let to = destinations(&store, 2);
        let only_the_first = ["d1".to_owned()];
        store.catalog().sync_destinations(&only_the_first).unwrap();
        let retired = store.retire(to[1], fate, "ada").unwrap();
        assert_eq!(
            (retired.ended, retired.record.state),
            (16, RunState::Retired)
        );
        assert_eq!(store.retire(to[1], fate, "ada").unwrap().ended, 0);
        let killed = disk.still(|| copy_of(dir.path()));
        store.stop();
        drop(store);

        let (store, _) = open(killed.path(), &eager(), &clock);
        assert_eq!(account(&store, to[0]), (256, 0));
        assert_eq!(account(&store, to[1]), (16, 0), "durable when it returned");
        assert_eq!(pending(&store, to[1]), Vec::<String>::new());
        let totals = store.totals(to[1]);
        let letters = store.dead_letters().list(Some(to[1]), None, 100).unwrap();
        if fate == PendingFate::DeadLetter {
            assert_eq!((totals.dead, totals.discarded), (16, 0));
            let told = letters.iter().map(|one| one.event.event.id().to_owned());
            assert_eq!(told.collect::<Vec<_>>(), owed(256));
            for letter in &letters {
                let event = &letter.event.event;
                assert_eq!(event.data(), data(event.id().parse().unwrap()).as_bytes());
            }
            let every = LetterSelection {
                destination: to[1],
                class: None,
            };
            let ended = store.dead_letters().discard_all(&every, "ada", "gone");
            assert_eq!(ended.unwrap(), 16);
        } else {
            assert!(letters.is_empty());
        }
        eventually("its segments go", || {
            assert_eq!(account(&store, to[1]), (16, 0));
            let figures = store.figures();
            figures.segments_closed == 0 && databases(killed.path()).len() == 2
        });
        assert_eq!(store.totals(to[1]).discarded, 16);
        assert_eq!(account(&store, to[0]), (256, 0));
        assert_eq!(store.health().degraded, Vec::<String>::new());
        store.stop();
    }
}
