//! Deliveries that were set aside without an attempt, and come back all together.

use std::sync::Arc;
use std::time::Duration;

use wayhold_model::{DestinationId, Failure, FailureClass, Outcome};
use wayhold_store::{LetterSelection, PendingFate};

use crate::destination::{Answer, Scripted, number_of};
use crate::miniature::{Server, assert_first_appearances_in_order, keyed, policy, until};

fn selection(destination: DestinationId) -> LetterSelection {
    LetterSelection {
        destination,
        class: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_redriven_goes_before_whatever_of_its_key_was_not_sent_yet() {
    let folder = tempfile::tempdir().unwrap();
    // The first of each key is answered when the test says so; of the others one in seven fails once.
    let mut failed = std::collections::BTreeSet::new();
    let sink = Scripted::new(move |attempt, before| {
        let number = number_of(attempt);
        if before < 6 {
            return Answer::Never;
        }
        let outcome = match number.is_multiple_of(7) && failed.insert(number) {
            true => Outcome::NotExecuted(Failure::new(FailureClass::Unavailable, "not now")),
            false => Outcome::Delivered,
        };
        Answer::EndsAfter(Duration::from_millis(1), outcome)
    });
    let mut policy = policy();
    policy.concurrency = 8;
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    let to = server.ids.clone();
    server.dispatcher.pause("a", "ada", None).await.unwrap();
    server.accept((0..60).map(|id| keyed(id, 6))).await;
    server
        .accept_aside(&to, &to, (60..360).map(|id| keyed(id, 6)))
        .await;
    server.accept((360..420).map(|id| keyed(id, 6))).await;
    assert_eq!(server.pending(), 120);
    server.dispatcher.resume("a", "ada", None).await.unwrap();
    until("one of each key is under way", || {
        sink.arrivals().len() == 6
    })
    .await;

    let letters = server.letters();
    let redriven = letters.redrive_many(selection(server.ids[0]), "ada").await;
    assert_eq!(redriven.unwrap(), 300);
    let again = letters.redrive_many(selection(server.ids[0]), "ada").await;
    assert_eq!(again.unwrap(), 0);
    for attempt in std::mem::take(&mut *sink.unanswered.lock().unwrap()) {
        attempt.finish(Outcome::Delivered);
    }
    until("all is delivered", || server.pending() == 0).await;
    server.assert_identity();
    let totals = server.store.totals(to[0]);
    assert_eq!(
        (totals.delivered, totals.dead, totals.redriven),
        (420, 0, 300)
    );
    let arrivals = sink.arrivals();
    let delivered = arrivals.iter().filter(|arrival| arrival.delivered).count();
    assert_eq!(delivered, 414, "each once, with the first of each key");
    // Nothing was sent out of its turn, although the lane had read beyond what came back.
    assert_first_appearances_in_order(&arrivals);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_set_aside_is_never_sent_and_later_ones_flow() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let to = server.ids.clone();
    for id in 0..200 {
        let full = if id % 2 == 0 { to.as_slice() } else { &[] };
        server.accept_aside(&to, full, [keyed(id, 5)]).await;
    }
    until("the rest is delivered", || server.pending() == 0).await;
    let odd: Vec<u64> = (0..200).filter(|id| id % 2 == 1).collect();
    let mut arrived = sink.ids();
    arrived.sort_unstable();
    assert_eq!(arrived, odd);
    assert_eq!(server.store.totals(to[0]).dead, 100);
    let one = server.store.dead_letters().list(None, None, 1).unwrap();
    server.letters().redrive(one[0].id, "ada").await.unwrap();
    until("one by itself", || sink.ids().contains(&0)).await;
    let rest = server
        .letters()
        .redrive_many(selection(server.ids[0]), "ada")
        .await;
    assert_eq!(rest.unwrap(), 99);
    until("all is delivered", || server.pending() == 0).await;
    assert_eq!(sink.delivered().len(), 200);
    assert_eq!(sink.ids().len(), 200, "nothing twice");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_retired_destination_was_owed_comes_back_with_it_if_an_operator_wants() {
    let folder = tempfile::tempdir().unwrap();
    let silent = Scripted::new(|_, _| Answer::Never);
    let server = Server::start(folder.path(), vec![("a", policy(), silent)]).await;
    server.accept((0..50).map(|id| keyed(id, 5))).await;
    let refused = server.dispatcher.retire("a", PendingFate::Discard, "ada");
    assert!(
        refused
            .await
            .unwrap_err()
            .to_string()
            .contains("configuration")
    );
    server.stop().await;

    let other = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("b", policy(), other)]).await;
    let retired = server
        .dispatcher
        .retire("a", PendingFate::DeadLetter, "ada");
    assert_eq!(retired.await.unwrap().ended, 50);
    let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
    assert_eq!(snapshot.oldest, None, "nothing is held any more");
    assert!(
        snapshot
            .reason
            .unwrap()
            .starts_with("50 pending deliveries")
    );
    server.assert_identity();
    server.stop().await;

    let back = Scripted::delivering();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&back))]).await;
    server
        .accept_for(&server.ids[..1], (50..60).map(|id| keyed(id, 5)))
        .await;
    let redriven = server
        .letters()
        .redrive_many(selection(server.ids[0]), "ada")
        .await;
    assert_eq!(redriven.unwrap(), 50);
    until("all is delivered", || back.delivered().len() == 60).await;
    server.assert_identity();
    server.stop().await;
}
