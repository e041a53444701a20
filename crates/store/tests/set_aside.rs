//! Deliveries that become dead letters without an attempt: set aside when their event is accepted, or when
//! their destination is retired. The letters refer to their events, which stay where they are until the
//! letters end.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use tempfile::tempdir;
use wayhold_model::{DestinationId, DestinationSet};
use wayhold_store::{
    AttemptRecord, DeliveryState, LetterSelection, NewEvent, Options, PendingFate, Resolution,
    RetireError, RunState, Store,
};

use support::{HandClock, copy_of, destinations, drain, event, eventually, fill, ids, open, tiny};

/// An event for these, of whom some are over their limit.
fn over(n: u64, to: &[DestinationId], full: &[DestinationId]) -> NewEvent {
    NewEvent {
        set_aside: Some(Arc::new(DestinationSet::new(full.iter().copied()))),
        ..event(
            &n.to_string(),
            &format!("k{}", n % 3),
            &format!("data {n}"),
            to,
        )
    }
}

fn balanced(store: &Store, destination: DestinationId) -> (u64, u64, u64) {
    let totals = store.totals(destination);
    assert_eq!(
        totals.accepted,
        totals.delivered + totals.pending + totals.dead + totals.expired + totals.discarded,
        "{totals:?}"
    );
    (totals.pending, totals.dead, totals.delivered)
}

fn selection(destination: DestinationId, class: Option<&str>) -> LetterSelection {
    LetterSelection {
        destination,
        class: class.map(str::to_owned),
    }
}

/// Delivers everything that a lane has; what it was, in order.
fn deliver(store: &Store, destination: DestinationId) -> Vec<String> {
    let mut lane = store.lane(destination).unwrap();
    let all = drain(&mut lane, 7);
    for delivery in &all {
        lane.handle().settle_delivered(&[delivery.event.position]);
    }
    ids(&all)
}

#[tokio::test]
async fn what_is_set_aside_is_accepted_for_the_others_and_a_letter_that_refers_to_its_event() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 2);
    // Open before anything comes: what it reads is new to it.
    let mut full = store.lane(all[1]).unwrap();
    store
        .append((0..6).map(|n| over(n, &all, &all[1..])).collect())
        .await
        .unwrap();
    store
        .append(vec![event("6", "k0", "data", &all)])
        .await
        .unwrap();
    let read = full.read_cached(100).unwrap();
    assert_eq!(ids(&read), ["6"]);
    assert_eq!(deliver(&store, all[0]).len(), 7);
    assert_eq!(balanced(&store, all[0]), (0, 0, 7));
    assert_eq!(balanced(&store, all[1]), (1, 6, 0));

    let letters = store.dead_letters().list(Some(all[1]), None, 10).unwrap();
    let told: Vec<_> = letters
        .iter()
        .map(|one| (one.event.event.id(), one.class.as_str(), one.attempts.len()))
        .collect();
    let expected: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|id| (id.as_str(), "backlog_limit", 0))
        .collect();
    assert_eq!(told, expected);
    assert!(letters.iter().all(|one| one.referred && !one.redriving));
    assert_eq!(
        store.dead_letters().counts().unwrap(),
        [(all[1], "backlog_limit".to_owned(), 6)]
    );
    let position = letters[0].event.position;
    assert_eq!(
        store.delivery_state(position, all[1]).unwrap(),
        DeliveryState::Dead {
            letter: letters[0].id,
            redriving: false
        }
    );
    store.stop();
}

#[tokio::test]
async fn a_segment_stays_until_no_letter_refers_to_it_and_then_goes() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 2);
    store
        .append((0..8).map(|n| over(n, &all, &all[1..])).collect())
        .await
        .unwrap();
    // A second segment and one more, of which nothing is held.
    fill(&store, 8, 16, 3, &all[..1]).await;
    deliver(&store, all[0]);
    eventually("what is not held goes", || {
        store.figures().segments_closed == 1
    });
    store.stop();
    drop(store);

    let (store, _) = open(dir.path(), &tiny(), &clock);
    let letters = store.dead_letters().list(None, None, 20).unwrap();
    assert_eq!(letters.len(), 8, "they outlive a restart with their events");
    let body = letters[3].event.event.data().to_vec();
    assert_eq!(body, b"data 3");
    for letter in &letters[1..] {
        store
            .dead_letters()
            .discard(letter.id, "ada", "old")
            .unwrap();
    }
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(store.figures().segments_closed, 1, "one still refers to it");
    store
        .dead_letters()
        .discard(letters[0].id, "ada", "old")
        .unwrap();
    eventually("the last letter lets go", || {
        store.figures().segments_closed == 0
    });
    let totals = store.totals(all[1]);
    assert_eq!((totals.discarded, totals.accepted), (8, 8));
    store.stop();
}

#[tokio::test]
async fn revived_letters_are_read_in_order_before_what_came_later() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 1);
    fill(&store, 0, 5, 3, &all).await;
    for n in 5..45 {
        store.append(vec![over(n, &all, &all)]).await.unwrap();
    }
    fill(&store, 45, 5, 3, &all).await;
    assert_eq!(balanced(&store, all[0]), (10, 40, 0));
    let other = selection(all[0], Some("retired"));
    assert_eq!(store.dead_letters().revive(&other, "ada").unwrap(), 0);
    let which = selection(all[0], Some("backlog_limit"));
    assert_eq!(store.dead_letters().revive(&which, "ada").unwrap(), 40);
    assert_eq!(store.dead_letters().revive(&which, "ada").unwrap(), 0);
    assert_eq!(balanced(&store, all[0]), (50, 0, 0));
    let expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(deliver(&store, all[0]), expected);
    assert_eq!(store.totals(all[0]).redriven, 40);
    store.stop();
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_each_delivery_pending_or_a_letter_and_never_both() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let options = Options {
        segment_rows: 64,
        ..tiny()
    };
    let (store, _) = open(dir.path(), &options, &clock);
    let all = destinations(&store, 1);
    let mut seen = 0;
    for n in 0..16 {
        store.append(vec![over(n, &all, &all)]).await.unwrap();
        // Progress follows within 25 ms, so some copies have the event and not its letter.
        let killed = copy_of(dir.path());
        let (copy, _) = open(killed.path(), &options, &clock);
        let (pending, dead, _) = balanced(&copy, all[0]);
        assert_eq!(pending + dead, n + 1, "nothing is lost");
        let letters = copy.dead_letters().list(None, None, 100).unwrap();
        let mut everywhere: Vec<String> = deliver(&copy, all[0]);
        assert_eq!(everywhere.len() as u64, pending);
        everywhere.extend(letters.iter().map(|one| one.event.event.id().to_owned()));
        everywhere.sort_by_key(|id| id.parse::<u64>().unwrap());
        let expected: Vec<String> = (0..=n).map(|n| n.to_string()).collect();
        assert_eq!(everywhere, expected, "each in one place");
        seen += dead;
        copy.stop();
    }
    assert!(seen > 0, "letters were met");
    store.stop();
}

#[tokio::test]
async fn one_letter_is_redriven_from_where_its_event_lies_and_keeps_it_while_it_fails() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 1);
    store.append(vec![over(0, &all, &all)]).await.unwrap();
    fill(&store, 1, 20, 3, &[]).await;
    let letter = store.dead_letters().list(None, None, 1).unwrap().remove(0);
    let redriven = store.dead_letters().redrive(letter.id, "ada").unwrap();
    assert_eq!(redriven.event.event.data(), "data 0".as_bytes());
    store.stop();
    drop(store);

    let (store, _) = open(dir.path(), &tiny(), &clock);
    let handle = store.lane(all[0]).unwrap().handle();
    assert_eq!(
        handle.redriving().unwrap().len(),
        1,
        "taken up after a restart"
    );
    handle.settle_letter(letter.id, Resolution::DeadLettered(refused()));
    let again = store.dead_letters().get(letter.id).unwrap();
    assert_eq!((again.class.as_str(), again.status), ("invalid", Some(400)));
    assert_eq!(again.event.event.id(), "0");
    store.dead_letters().redrive(letter.id, "ada").unwrap();
    handle.settle_letter(letter.id, Resolution::Delivered);
    assert_eq!(balanced(&store, all[0]), (0, 0, 1));
    eventually("nothing is held", || store.figures().segments_closed == 0);
    store.stop();
}

#[tokio::test]
async fn many_letters_are_discarded_in_steps_by_class() {
    let (dir, clock) = (tempdir().unwrap(), HandClock::new());
    let (store, _) = open(dir.path(), &tiny(), &clock);
    let all = destinations(&store, 2);
    store
        .append((0..30).map(|n| over(n, &all, &all)).collect())
        .await
        .unwrap();
    let letters = store.dead_letters();
    assert_eq!(
        letters
            .discard_all(&selection(all[0], Some("refused")), "ada", "x")
            .unwrap(),
        0
    );
    assert_eq!(
        letters
            .discard_all(&selection(all[0], None), "ada", "too old")
            .unwrap(),
        30
    );
    assert_eq!(balanced(&store, all[0]), (0, 0, 0));
    assert_eq!(balanced(&store, all[1]), (0, 30, 0));
    let trail = store.catalog().audit_trail(None, 1).unwrap();
    assert_eq!(trail[0].action, "dead_letters.discarded");
    assert_eq!(trail[0].reason.as_deref(), Some("every class: too old"));
    store.stop();
}

#[tokio::test]
async fn retiring_ends_a_thousand_pending_in_one_step_while_others_go_on() {
    for fate in [PendingFate::DeadLetter, PendingFate::Discard] {
        let (dir, clock) = (tempdir().unwrap(), HandClock::new());
        let options = Options {
            segment_rows: 256,
            segment_bytes: 4 << 20,
            ..tiny()
        };
        let (store, _) = open(dir.path(), &options, &clock);
        let all = destinations(&store, 2);
        let batch = |n: u64| (n..n + 100).map(|n| event(&n.to_string(), "k", "data", &all));
        for n in (0..1_000).step_by(100) {
            store.append(batch(n).collect()).await.unwrap();
        }
        // Some of it was delivered, some is a dead letter, some of that is being sent again.
        let mut lane = store.lane(all[1]).unwrap();
        let read = lane.read(40).unwrap();
        for (n, delivery) in read.iter().enumerate() {
            let handle = lane.handle();
            match n {
                0..30 => handle.settle_delivered(&[delivery.event.position]),
                _ => handle.settle(&delivery.event, Resolution::DeadLettered(refused())),
            }
        }
        let letters = store.dead_letters().list(Some(all[1]), None, 10).unwrap();
        store.dead_letters().redrive(letters[0].id, "ada").unwrap();
        let configured = store.retire(all[1], fate, "ada");
        assert!(matches!(configured, Err(RetireError::Configured { .. })));
        assert_eq!(balanced(&store, all[1]), (961, 9, 30));

        // It leaves the configuration; the other one goes on.
        store
            .catalog()
            .sync_destinations(&["d1".to_owned()])
            .unwrap();
        fill(&store, 1_000, 10, 3, &all[..1]).await;
        let retired = store.retire(all[1], fate, "ada").unwrap();
        assert_eq!(retired.ended, 961);
        assert_eq!(retired.record.state, RunState::Retired);
        assert_eq!(retired.record.by.as_deref(), Some("ada"));
        assert!(
            retired
                .record
                .reason
                .unwrap()
                .starts_with("961 pending deliveries")
        );
        let again = store.retire(all[1], fate, "bob").unwrap();
        assert_eq!((again.ended, again.record.by.as_deref()), (0, Some("ada")));
        let killed = copy_of(dir.path());
        deliver(&store, all[0]);
        store.stop();
        drop((lane, store));

        let (store, _) = open(killed.path(), &options, &clock);
        assert_eq!(balanced(&store, all[1]).0, 0, "durable when it returned");
        let totals = store.totals(all[1]);
        match fate {
            PendingFate::DeadLetter => assert_eq!((totals.dead, totals.discarded), (970, 0)),
            PendingFate::Discard => assert_eq!((totals.dead, totals.discarded), (9, 961)),
        }
        assert_eq!(store.lane(all[1]).unwrap().read(10).unwrap().len(), 0);
        assert_eq!(deliver(&store, all[0]).len(), 1_010);
        let held = usize::from(fate == PendingFate::DeadLetter);
        eventually("what nobody holds goes", || {
            usize::from(store.figures().segments_closed > 0) == held
        });
        let all_of_it = selection(all[1], None);
        store
            .dead_letters()
            .discard_all(&all_of_it, "ada", "gone")
            .unwrap();
        eventually("its segments can go", || {
            store.figures().segments_closed == 0
        });
        store.stop();
    }
}

fn refused() -> AttemptRecord {
    AttemptRecord {
        answer: None,
        duration: None,
        number: 1,
        at: wayhold_model::Timestamp::from_micros(7),
        outcome: wayhold_model::OutcomeKind::Refused,
        class: wayhold_model::FailureClass::Invalid,
        status: Some(400),
        reason: "no".to_owned(),
    }
}
