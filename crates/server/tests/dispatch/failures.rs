//! Failures, and what policy makes of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use wayhold::config::{DeliveryPolicy, OnDeadLetter};
use wayhold::dispatch::LaneState;
use wayhold::redelivery::LettersMeant;
use wayhold::redelivery::RedeliveryError;
use wayhold_model::backoff::{Backoff, Waits};
use wayhold_model::verdict::{Patience, RetryPolicy};
use wayhold_model::{Failure, FailureClass, Outcome};
use wayhold_store::LetterError;

use crate::destination::{Answer, Scripted, number_of};
use crate::hand::Shifted;
use crate::miniature::{Server, keyed, policy, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_dead_at_once_and_a_redrive_goes_before_unsent_ones() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&gate);
    let sink = Scripted::new(
        move |attempt, _| match (number_of(attempt), attempt.number) {
            (1, 1) => Answer::Ends(Outcome::Refused(
                Failure::new(FailureClass::TooLarge, "too large").with_status(413),
            )),
            (2, _) if !open.load(Relaxed) => Answer::Ends(Outcome::Unknown(Failure::new(
                FailureClass::Unavailable,
                "the gate is shut",
            ))),
            _ => Answer::Ends(Outcome::Delivered),
        },
    );
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let positions = server.accept((1..=3).map(|id| keyed(id, 1))).await;
    until("the first is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    let listed = server
        .letters()
        .list(LettersMeant::default(), None, 10)
        .await
        .unwrap()
        .letters;
    let [letter] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (letter.status, letter.event.position),
        (Some(413), positions[0])
    );
    assert_eq!(
        (letter.class.as_str(), letter.reason.as_str()),
        ("too_large", "too large")
    );

    // 2 blocks, 3 waits; the redriven 1 goes before 3.
    let redriven = server.letters().redrive(letter.id, "ada").await.unwrap();
    assert!(redriven.redriving);
    until("the letter is gone", || {
        server.store.totals(server.ids[0]).dead == 0
    })
    .await;
    gate.store(true, Relaxed);
    until("all is delivered", || server.pending() == 0).await;
    let ids = sink.ids();
    let last = |id| ids.iter().rposition(|other| *other == id).unwrap();
    assert!(last(1) < last(3), "{ids:?}");
    let totals = server.store.totals(server.ids[0]);
    assert_eq!((totals.delivered, totals.dead, totals.redriven), (3, 0, 1));
    server.assert_identity();
    assert!(matches!(
        server.letters().redrive(letter.id, "ada").await,
        Err(RedeliveryError::Letter(LetterError::NotFound { .. }))
    ));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_redrives_at_once_one_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match attempt.number {
        1 => Answer::Ends(Outcome::Refused(Failure::new(FailureClass::Invalid, "no"))),
        _ => Answer::Never,
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept([keyed(1, 1)]).await;
    until("it is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    let id = server
        .letters()
        .list(LettersMeant::default(), None, 10)
        .await
        .unwrap()
        .letters[0]
        .id;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let letters = server.letters();
        calls.spawn(async move { letters.redrive(id, "ada").await });
    }
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for answer in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(answer.to_string().contains("already under way"), "{answer}");
    }
    until("it is sent again", || sink.arrivals().len() == 2).await;
    assert_eq!(server.pending(), 1, "a letter under redrive is pending");
    assert!(matches!(
        server.letters().discard(id, "ada", "obsolete").await,
        Err(RedeliveryError::Letter(LetterError::Redriving { .. }))
    ));
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_waits_until_its_letter_is_discarded_also_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let policy = DeliveryPolicy {
        on_dead_letter: OnDeadLetter::Hold,
        ..policy()
    };
    let refuse_first = || {
        Scripted::new(|attempt, _| match number_of(attempt) {
            1 => Answer::Ends(Outcome::Refused(Failure::new(FailureClass::Invalid, "no"))),
            _ => Answer::Ends(Outcome::Delivered),
        })
    };
    let sink = refuse_first();
    let lane = |sink: &Arc<Scripted>| vec![("a", policy.clone(), Arc::clone(sink))];
    let server = Server::start(folder.path(), lane(&sink)).await;
    server
        .accept([1, 2].map(|id| (id, Some("held".to_owned()))))
        .await;
    server.accept([(3, Some("free".to_owned()))]).await;
    until("the free key is through", || sink.ids().contains(&3)).await;
    until("the first is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    server.stop().await;

    let sink = refuse_first();
    let server = Server::start(folder.path(), lane(&sink)).await;
    server.accept([(4, Some("free".to_owned()))]).await;
    until("the free key is through", || sink.ids() == [4]).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert!(snapshot.blocked[0].held);
    let id = server
        .letters()
        .list(LettersMeant::default(), None, 10)
        .await
        .unwrap()
        .letters[0]
        .id;
    assert!(matches!(
        server.letters().discard(id, "ada", " ").await,
        Err(RedeliveryError::NoReason)
    ));
    server
        .letters()
        .discard(id, "ada", "the order was cancelled")
        .await
        .unwrap();
    until("the held key goes on", || server.pending() == 0).await;
    assert_eq!(sink.ids(), [4, 2]);
    assert_eq!(server.store.totals(server.ids[0]).discarded, 1);
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_up_to_their_limit_and_kept_with_the_letter() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|_, _| {
        Answer::Ends(Outcome::NotExecuted(
            Failure::new(FailureClass::Unavailable, "try later").with_status(503),
        ))
    });
    let mut policy = policy();
    policy.retry.patience.attempts_max = Some(3);
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    server.accept([keyed(1, 1)]).await;
    until("it is dead", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    assert_eq!(
        sink.arrivals().iter().map(|a| a.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    let letter = server
        .letters()
        .list(LettersMeant::default(), None, 10)
        .await
        .unwrap()
        .letters
        .remove(0);
    let numbers: Vec<_> = letter
        .attempts
        .iter()
        .map(|attempt| attempt.number)
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(letter.class, "unavailable");

    // A redrive gets the whole policy anew.
    server.letters().redrive(letter.id, "ada").await.unwrap();
    until("it is dead again", || {
        server.store.totals(server.ids[0]).dead == 1
    })
    .await;
    assert_eq!(
        sink.arrivals().iter().map(|a| a.number).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_opens_the_breaker_and_recovery_starts_with_one_probe() {
    let folder = tempfile::tempdir().unwrap();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let sink = Scripted::new(move |_, _| {
        Answer::Ends(if is_up.load(Relaxed) {
            Outcome::Delivered
        } else {
            Outcome::NotExecuted(Failure::new(
                FailureClass::Unavailable,
                "connection refused",
            ))
        })
    });
    let mut policy = policy();
    policy.breaker.failures = 5;
    policy.breaker.open = Duration::from_millis(20);
    policy.breaker.open_max = Duration::from_millis(20);
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    server.accept((0..200).map(|id| keyed(id, 200))).await;
    until("a probe failed", || sink.arrivals().len() > 20).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Waiting);
    assert_eq!(snapshot.reason.as_deref(), Some("connection refused"));
    assert!(snapshot.last_error.unwrap().failing_since.is_some());
    up.store(true, Relaxed);
    until("all is delivered", || server.pending() == 0).await;
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.state, LaneState::Running);
    assert_eq!(snapshot.last_error.unwrap().failing_since, None);
    server.stop().await;
}

/// The times are so short that many end between the lane's look at what may start and its asking when to look
/// again: none of them may pass unnoticed, since nothing else would wake it.
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_ends_its_wait_at_any_moment_lets_its_probe_go() {
    const EVENTS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lanes = names.iter().zip(1..).map(|(name, length)| {
        let refusing = Scripted::new(|_, _| {
            let failure = Failure::new(FailureClass::Unavailable, "connection refused");
            Answer::Ends(Outcome::NotExecuted(failure))
        });
        let mut policy = policy();
        let patience = Patience {
            waits: Waits::Backoff(Backoff::default()),
            attempts_max: Some(1),
            age_max: None,
        };
        policy.retry = RetryPolicy::new(patience);
        policy.breaker.failures = 1;
        policy.breaker.open = Duration::from_micros(20 * length);
        policy.breaker.open_max = policy.breaker.open;
        (*name, policy, refusing)
    });
    let server = Server::start(folder.path(), lanes.collect()).await;
    server.accept((0..EVENTS).map(|id| keyed(id, EVENTS))).await;
    until("each was tried once and given up", || server.pending() == 0).await;
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_costs_an_attempt_and_not_the_lane() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| match (number_of(attempt), attempt.number) {
        (3, 1 | 2) => Answer::Panic,
        _ => Answer::Ends(Outcome::Delivered),
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((1..=9).map(|id| keyed(id, 3))).await;
    until("all is delivered", || server.pending() == 0).await;
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_back_stalls_no_retry() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Shifted::default());
    let shift = Arc::clone(&clock);
    let sink = Scripted::new(move |attempt, _| match attempt.number {
        1 => {
            shift.back.store(2 * 3_600 * 1_000_000, Relaxed);
            Answer::Ends(Outcome::NotExecuted(Failure::new(
                FailureClass::Unavailable,
                "not yet",
            )))
        }
        2 => {
            shift.back.store(0, Relaxed);
            Answer::Ends(Outcome::NotExecuted(Failure::new(
                FailureClass::Unavailable,
                "not yet",
            )))
        }
        _ => Answer::Ends(Outcome::Delivered),
    });
    let lanes = vec![("a", policy(), Arc::clone(&sink))];
    let server = Server::start_with(folder.path(), lanes, clock).await;
    server.accept((0..100).map(|id| keyed(id, 100))).await;
    until("all is delivered", || server.pending() == 0).await;
    server.stop().await;
}
