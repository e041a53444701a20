//! What follows a failure of each kind, for the delivery and for the whole destination.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use wayhold::dispatch::LaneState;
use wayhold::sink::{Attempt, BoxFuture, Sink};
use wayhold_model::endurance::NOT_FOUND_MAX;
use wayhold_model::quota::{Quota, Stands};
use wayhold_model::verdict::CRASHES_MAX;
use wayhold_model::{DestinationSet, Event, EventParts, Failure, FailureClass, Outcome};
use wayhold_store::{DeadLetter, NewEvent, RunState};

use crate::destination::{Answer, Scripted, number_of};
use crate::miniature::{Server, assert_first_appearances_in_order, keyed, policy, until};

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, format!("says {}", class.name()))
}

fn letters_of(server: &Server) -> Vec<DeadLetter> {
    server.store.dead_letters().list(None, None, 10).unwrap()
}

/// A destination that answers so until it is mended.
fn broken(outcome: Outcome) -> (Arc<Scripted>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let sink = Scripted::new(move |_, _| {
        Answer::Ends(match is_mended.load(Ordering::SeqCst) {
            true => Outcome::Delivered,
            false => outcome.clone(),
        })
    });
    (sink, mended)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_does_not_know_us_is_paused_and_no_attempt_is_burned() {
    for class in [
        FailureClass::Auth,
        FailureClass::Certificate,
        FailureClass::BlockedAddress,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (sink, mended) = broken(Outcome::Refused(failure(class)));
        let mut policy = policy();
        policy.retry.patience.attempts_max = Some(1);
        let lane = vec![("a", policy, Arc::clone(&sink))];
        let server = Server::start(folder.path(), lane).await;
        server.accept((0..50).map(|id| keyed(id, 10))).await;
        let record = || server.store.catalog().destination(server.ids[0]).unwrap();
        until("that is on record", || record().state == RunState::Paused).await;
        assert_eq!(record().by.as_deref(), Some("wayhold"));
        let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
        assert_eq!(snapshot.state, LaneState::Paused);
        let reason = snapshot.reason.unwrap();
        assert!(reason.starts_with(class.name()), "{reason}");
        assert_eq!((server.pending(), letters_of(&server).len()), (50, 0));

        mended.store(true, Ordering::SeqCst);
        server.dispatcher.resume("a", "ada", None).await.unwrap();
        until("all is delivered", || server.pending() == 0).await;
        let arrivals = sink.arrivals();
        assert!(arrivals.iter().all(|arrival| arrival.number == 1));
        assert_first_appearances_in_order(&arrivals);
        server.assert_identity();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_gone_is_disabled_over_a_restart_and_holds_what_it_is_owed() {
    let folder = tempfile::tempdir().unwrap();
    let gone = failure(FailureClass::Gone).with_status(410);
    let (sink, _) = broken(Outcome::Refused(gone));
    let mut one_at_a_time = policy();
    one_at_a_time.concurrency = 1;
    let lane = vec![("a", one_at_a_time, sink)];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..20).map(|id| keyed(id, 1))).await;
    let id = server.ids[0];
    let state = || server.store.catalog().destination(id).unwrap().state;
    until("that is on record", || state() == RunState::Disabled).await;
    let letters = letters_of(&server);
    let [letter] = &letters[..] else {
        panic!("expected the event that met it, not {letters:?}");
    };
    assert_eq!((letter.class.as_str(), letter.status), ("gone", Some(410)));
    assert_eq!(server.pending(), 19);
    server.stop().await;

    let back = Scripted::delivering();
    let lane = vec![("a", policy(), Arc::clone(&back))];
    let server = Server::start(folder.path(), lane).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Disabled);
    assert!(back.arrivals().is_empty());
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("the rest is delivered", || server.pending() == 0).await;
    assert_eq!(back.ids(), (1..20).collect::<Vec<_>>());
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_too_large_goes_to_the_dead_letters_alone() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) {
        7 => Answer::Ends(Outcome::Refused(failure(FailureClass::TooLarge))),
        _ => Answer::Ends(Outcome::Delivered),
    });
    let lane = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..50).map(|id| keyed(id, 5))).await;
    until("all is resolved", || server.pending() == 0).await;
    let letters = letters_of(&server);
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].class, "too_large");
    assert_eq!(sink.delivered().len(), 49);
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Running);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_part_that_forbids_us_stops_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 5 {
        0 => Answer::Ends(Outcome::NotExecuted(failure(FailureClass::Auth).of_part())),
        _ => Answer::Ends(Outcome::Delivered),
    });
    let lane = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..50).map(|id| keyed(id, 5))).await;
    until("the other keys are delivered", || server.pending() == 10).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Running);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn being_put_off_costs_no_attempt_over_a_restart_either() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = policy();
    policy.retry.patience.attempts_max = Some(2);
    let (busy, _) = broken(Outcome::NotExecuted(failure(FailureClass::Throttled)));
    let lane = vec![("a", policy.clone(), Arc::clone(&busy))];
    let server = Server::start(folder.path(), lane).await;
    server.accept([keyed(1, 1)]).await;
    until("it was put off some times", || busy.arrivals().len() >= 5).await;
    server.stop().await;
    assert!(busy.arrivals().iter().all(|arrival| arrival.number == 1));

    let down = failure(FailureClass::Unavailable);
    let (down, _) = broken(Outcome::Unknown(down));
    let lane = vec![("a", policy, Arc::clone(&down))];
    let server = Server::start(folder.path(), lane).await;
    until("it is given up", || server.pending() == 0).await;
    let numbers: Vec<_> = down.arrivals().iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2], "both attempts were left");
    let letters = letters_of(&server);
    assert_eq!(letters[0].class, "unavailable");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_crashes_its_sink_is_given_up_and_its_neighbours_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) {
        7 => Answer::Panic,
        _ => Answer::Ends(Outcome::Delivered),
    });
    // A panic poisons nothing that the lane or its neighbours need.
    let lane = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..50).map(|id| keyed(id, 50))).await;
    until("all is resolved", || server.pending() == 0).await;
    let letters = letters_of(&server);
    let [letter] = &letters[..] else {
        panic!("expected one letter, not {letters:?}");
    };
    assert_eq!(letter.event.event.id(), "7");
    assert_eq!(letter.class, "crashed");
    assert_eq!(letter.attempts.len(), CRASHES_MAX as usize);
    let others: BTreeSet<u64> = (0..50).filter(|id| *id != 7).collect();
    assert_eq!(sink.delivered(), others);
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_tried_beyond_the_age_that_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = policy();
    policy.retry.patience.age_max = Some(Duration::from_millis(1));
    let (down, _) = broken(Outcome::Unknown(failure(FailureClass::Timeout)));
    let lane = vec![("a", policy, Arc::clone(&down))];
    let server = Server::start(folder.path(), lane).await;
    server.accept([keyed(1, 1)]).await;
    until("it is given up", || server.pending() == 0).await;
    assert_eq!(letters_of(&server)[0].class, "timeout");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_nobody_wants_any_more_expires_and_the_next_of_its_key_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::delivering();
    let lane = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    let past = r#"{"expirytime":"2001-01-01T00:00:00Z"}"#;
    let future = r#"{"expirytime":"2999-01-01T00:00:00Z"}"#;
    for (id, extensions) in [("1", past), ("2", future), ("3", "")] {
        let event = Event::new(&EventParts {
            id,
            source: "/test",
            kind: "t",
            key: "k",
            extensions,
            data: b"{}".as_slice().into(),
            ..EventParts::default()
        });
        let event = NewEvent {
            event: Arc::new(event.unwrap()),
            destinations: Arc::new(DestinationSet::new(server.ids.iter().copied())),
            identified: true,
            set_aside: None,
        };
        server.store.append(vec![event]).await.unwrap();
    }
    until("all is resolved", || server.pending() == 0).await;
    assert_eq!(sink.ids(), [2, 3]);
    let totals = server.store.totals(server.ids[0]);
    assert_eq!((totals.expired, totals.delivered, totals.dead), (1, 2, 0));
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_gathered_goes_out_no_faster_than_its_rate() {
    let folder = tempfile::tempdir().unwrap();
    let mut policy = policy();
    policy.rate = Some("200/s".parse().unwrap());
    let sink = Scripted::delivering();
    let lane = vec![("a", policy, Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    let began = std::time::Instant::now();
    server.accept((0..60).map(|id| keyed(id, 60))).await;
    until("all is delivered", || server.pending() == 0).await;
    // Seven at once, then one every five milliseconds: more time than that is always right.
    let least = Duration::from_millis(5 * (60 - 7));
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_knows_nothing_pauses_before_it_uses_up_what_it_is_owed() {
    let folder = tempfile::tempdir().unwrap();
    let (sink, mended) = broken(Outcome::Refused(failure(FailureClass::NotFound)));
    let mut one_at_a_time = policy();
    one_at_a_time.concurrency = 1;
    let lane = vec![("a", one_at_a_time, Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..100).map(|id| keyed(id, 100))).await;
    let id = server.ids[0];
    let state = || server.store.catalog().destination(id).unwrap().state;
    until("it is paused", || state() == RunState::Paused).await;
    let lost = u64::from(NOT_FOUND_MAX) - 1;
    let dead = || server.store.totals(id).dead;
    assert_eq!((dead(), server.pending()), (lost, 100 - lost));
    // A resume begins to count anew.
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("it is paused again", || dead() == 2 * lost).await;
    until("on record", || state() == RunState::Paused).await;
    mended.store(true, Ordering::SeqCst);
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("the rest is delivered", || server.pending() == 0).await;
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn some_events_that_are_not_found_pause_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match number_of(attempt) % 4 {
        0 => Answer::Ends(Outcome::Delivered),
        _ => Answer::Ends(Outcome::Refused(failure(FailureClass::NotFound))),
    });
    let mut one_at_a_time = policy();
    one_at_a_time.concurrency = 1;
    let lane = vec![("a", one_at_a_time, Arc::clone(&sink))];
    let server = Server::start(folder.path(), lane).await;
    server.accept((0..100).map(|id| keyed(id, 1))).await;
    until("all is resolved", || server.pending() == 0).await;
    let totals = server.store.totals(server.ids[0]);
    assert_eq!((totals.dead, totals.delivered), (75, 25));
    server.stop().await;
}

/// A receiver that says with every success how many more it takes within the hour, and refuses the rest.
struct Quoted {
    left: AtomicI64,
    refused: AtomicUsize,
}

impl Sink for Quoted {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        for attempt in attempts.drain(..) {
            let left = self.left.fetch_sub(1, Ordering::SeqCst) - 1;
            let Ok(requests) = u64::try_from(left) else {
                self.refused.fetch_add(1, Ordering::SeqCst);
                attempt.finish(Outcome::NotExecuted(failure(FailureClass::Throttled)));
                continue;
            };
            let filled_in = Duration::from_secs(3_600);
            let quota = Quota {
                name: "hourly".to_owned(),
                stands: Stands::Left {
                    requests,
                    filled_in,
                },
            };
            let said = wayhold::sink::Said {
                quotas: vec![quota],
                receipt: None,
                ..wayhold::sink::Said::default()
            };
            attempt.finish_with(Outcome::Delivered, said);
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async { Ok("quoted".to_owned()) })
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_sent_than_the_receiver_says_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Arc::new(Quoted {
        left: AtomicI64::new(20),
        refused: AtomicUsize::new(0),
    });
    let same: Arc<dyn Sink> = sink.clone();
    let server = Server::start_sinks(folder.path(), vec![("a", policy(), same)]).await;
    server.accept((0..50).map(|id| keyed(id, 50))).await;
    until("its quota is used up", || server.pending() == 30).await;
    let snapshot = loop {
        let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
        if snapshot.in_flight == 0 {
            break snapshot;
        }
        sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(snapshot.state, LaneState::Waiting);
    assert!(snapshot.next_attempt.is_some());
    assert_eq!(
        (
            sink.left.load(Ordering::SeqCst),
            sink.refused.load(Ordering::SeqCst)
        ),
        (0, 0)
    );
    server.assert_identity();
    server.stop().await;
}
