//! Operators, stops and kills.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use wayhold::dispatch::LaneState;
use wayhold_model::{Failure, FailureClass, Outcome};
use wayhold_store::{DeliveryState, RunState};

use crate::destination::{Answer, Scripted, number_of};
use crate::miniature::{Server, assert_first_appearances_in_order, keyed, policy, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_lane_holds_everything_over_a_restart_and_resumes_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::delivering();
    let lane = |sink: &Arc<Scripted>| vec![("a", policy(), Arc::clone(sink))];
    let server = Server::start(folder.path(), lane(&sink)).await;
    let record = server
        .dispatcher
        .pause("a", "ada", Some("stock-taking"))
        .await
        .unwrap();
    assert_eq!(record.state, RunState::Paused);
    let positions = server.accept((0..50).map(|id| keyed(id, 2))).await;
    server.stop().await;
    assert!(sink.arrivals().is_empty());

    let sink = Scripted::delivering();
    let server = Server::start(folder.path(), lane(&sink)).await;
    // What lies first is read from disk, beside the loop.
    let snapshot = loop {
        let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
        if snapshot.oldest.is_some() {
            break snapshot;
        }
        sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(snapshot.state, LaneState::Paused);
    assert_eq!(snapshot.reason.as_deref(), Some("stock-taking"));
    assert_eq!(snapshot.oldest, Some(positions[0]));
    assert_eq!(server.pending(), 50);
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("all is delivered", || server.pending() == 0).await;
    assert_eq!(sink.ids().len(), 50);
    assert_first_appearances_in_order(&sink.arrivals());
    assert!(server.dispatcher.pause("b", "ada", None).await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_at_a_stop_stays_pending_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 2 {
        0 => Answer::Never,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((0..10).map(|id| keyed(id, 10))).await;
    until("half is delivered", || server.pending() == 5).await;
    server.dispatcher.stop(Duration::from_millis(50)).await;
    assert_eq!(server.pending(), 5);
    server.stop().await;

    let again = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&again))]).await;
    until("the rest is delivered", || server.pending() == 0).await;
    assert_eq!(again.delivered(), BTreeSet::from([0, 2, 4, 6, 8]));
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.repeats_possible, 0, "the stop was clean");
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_destination_holds_what_it_is_owed() {
    let folder = tempfile::tempdir().unwrap();
    let silent = Scripted::new(|_, _| Answer::Never);
    let server = Server::start(folder.path(), vec![("a", policy(), silent)]).await;
    server.accept([keyed(1, 1)]).await;
    server.stop().await;

    let other = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("b", policy(), other)]).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(
        (snapshot.name.as_str(), snapshot.state),
        ("a", LaneState::Retired)
    );
    assert_eq!(server.store.totals(server.ids[0]).pending, 1);
    assert!(server.dispatcher.resume("a", "ada", None).await.is_err());
    server.stop().await;

    let back = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&back))]).await;
    until("it is delivered", || {
        back.delivered() == BTreeSet::from([1])
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_can_say_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|_, _| Answer::Never);
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let positions = server.accept((1..=3).map(|id| keyed(id, 1))).await;
    until("the first is sent", || sink.arrivals().len() == 1).await;
    let last = server
        .store
        .event(positions[2])
        .unwrap()
        .unwrap()
        .event
        .unwrap();
    let behind = server.dispatcher.behind(&last, server.ids[0]).await;
    assert_eq!(behind, Some(positions[0]));
    let first = server
        .store
        .event(positions[0])
        .unwrap()
        .unwrap()
        .event
        .unwrap();
    assert_eq!(server.dispatcher.behind(&first, server.ids[0]).await, None);
    assert_eq!(
        server
            .store
            .delivery_state(positions[2], server.ids[0])
            .unwrap(),
        DeliveryState::Pending
    );
    server.stop().await;
}

/// What a kill leaves at a quiet moment: the files as they are, without a stop.
async fn copy_of(folder: &Path) -> tempfile::TempDir {
    // Longer than any flush of the store, so that nothing is being written.
    sleep(Duration::from_millis(300)).await;
    let copy = tempfile::tempdir().unwrap();
    copy_into(folder, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else if let Err(error) = std::fs::copy(entry.path(), target) {
            // A file may be unlinked or renamed while its directory is walked.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_attempts_holds_though_every_attempt_is_followed_by_a_kill() {
    let mut policy = policy();
    policy.retry.patience.attempts_max = Some(3);
    let mut folder = tempfile::tempdir().unwrap();
    let mut numbers = Vec::new();
    for round in 0..5 {
        let sink = Scripted::new(|_, _| Answer::Never);
        let lanes = vec![("a", policy.clone(), Arc::clone(&sink))];
        let server = Server::start(folder.path(), lanes).await;
        if round == 0 {
            server.accept([keyed(1, 1)]).await;
        }
        if round == 4 {
            until("it is dead", || {
                server.store.totals(server.ids[0]).dead == 1
            })
            .await;
        } else {
            until("it is sent", || sink.arrivals().len() == 1).await;
        }
        numbers.extend(sink.arrivals().iter().map(|arrival| arrival.number));
        let copy = copy_of(folder.path()).await;
        server.assert_identity();
        server.stop().await;
        folder = copy;
    }
    // The first was cut off before it could be recorded.
    assert_eq!(numbers, [1, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_only_what_was_under_way_comes_again_and_the_bound_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 10 {
        0 => Answer::Never,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((0..100).map(|id| keyed(id, 100))).await;
    until("nine in ten are delivered", || server.pending() == 10).await;
    let copy = copy_of(folder.path()).await;

    let again = Scripted::delivering();
    let lanes = vec![("a", policy(), Arc::clone(&again))];
    let successor = Server::start(copy.path(), lanes).await;
    until("the rest is delivered", || successor.pending() == 0).await;
    assert_eq!(again.delivered(), (0..10).map(|n| n * 10).collect());
    let snapshot = successor
        .dispatcher
        .snapshot(successor.ids[0])
        .await
        .unwrap();
    assert_eq!(snapshot.repeats_possible, 10);
    successor.assert_identity();
    successor.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_resume_stops_nothing_after_it() {
    for class in [FailureClass::Auth, FailureClass::Gone] {
        let folder = tempfile::tempdir().unwrap();
        let sink = Scripted::new(|_, _| Answer::Never);
        let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
        server.accept((0..4).map(|id| keyed(id, 4))).await;
        until("all are in flight", || sink.arrivals().len() == 4).await;
        server.dispatcher.pause("a", "ada", None).await.unwrap();
        server.dispatcher.resume("a", "ada", None).await.unwrap();
        // What comes from now on is delivered; what was in flight before still meets the old refusal.
        *sink.script.lock().unwrap() = Box::new(|_, _| Answer::Ends(Outcome::Delivered));
        for attempt in sink.unanswered.lock().unwrap().drain(..) {
            attempt.finish(Outcome::Refused(Failure::new(
                class,
                "with what was there before",
            )));
        }
        until("all is delivered", || server.pending() == 0).await;
        let totals = server.store.totals(server.ids[0]);
        assert_eq!((totals.delivered, totals.dead), (4, 0), "{class:?}");
        let record = server.store.catalog().destination(server.ids[0]).unwrap();
        assert_eq!(record.state, RunState::Running, "{class:?}");
        server.assert_identity();
        server.stop().await;
    }
}

/// Whichever of the two is on record first: a resume that an operator was told of is not undone by a stop from
/// before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_crosses_the_lanes_own_pause_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let forbidden = Arc::new(AtomicBool::new(true));
    let answers = Arc::clone(&forbidden);
    let sink = Scripted::new(move |_, _| match answers.load(Ordering::SeqCst) {
        true => Answer::Ends(Outcome::Refused(Failure::new(FailureClass::Auth, "no"))),
        false => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let id = server.ids[0];
    for round in 0..200 {
        forbidden.store(true, Ordering::SeqCst);
        server.accept((0..3).map(|n| keyed(round * 3 + n, 3))).await;
        // The lane stops at once, and is resumed before or after that is on record.
        while server.dispatcher.snapshot(id).await.unwrap().state != LaneState::Paused {
            tokio::task::yield_now().await;
        }
        forbidden.store(false, Ordering::SeqCst);
        let record = server.dispatcher.resume("a", "ada", None).await.unwrap();
        assert_eq!(record.state, RunState::Running);
        until("all is delivered", || server.pending() == 0).await;
        let record = server.store.catalog().destination(id).unwrap();
        assert_eq!(record.state, RunState::Running, "round {round}");
    }
    server.assert_identity();
    server.stop().await;
}
