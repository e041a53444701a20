//! Many dead letters redriven together: in order per key, a few at a time, and no others than were counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wayhold::config::{OnDeadLetter, OnFailure};
use wayhold::redelivery::letter_filter::compile;
use wayhold::redelivery::many::Tally;
use wayhold::redelivery::{LettersMeant, RedeliveryError};
use wayhold_model::{DestinationId, Failure, FailureClass, Outcome};
use wayhold_store::LetterQuery;

use crate::destination::{Answer, Scripted, number_of};
use crate::miniature::{Server, assert_first_appearances_in_order, keyed, policy, until};

fn all_of(destination: DestinationId) -> LettersMeant {
    LettersMeant {
        query: LetterQuery {
            destination: Some(destination),
            ..LetterQuery::default()
        },
        filter: None,
    }
}

fn refused() -> Outcome {
    Outcome::Refused(Failure::new(FailureClass::Invalid, "no"))
}

/// Refuses everything until it is mended.
fn mendable() -> (Arc<Scripted>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let sink = Scripted::new(move |_, _| {
        Answer::Ends(match is_mended.load(Ordering::Relaxed) {
            true => Outcome::Delivered,
            false => refused(),
        })
    });
    (sink, mended)
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_redriven_in_the_order_of_their_events_however_they_died() {
    let folder = tempfile::tempdir().unwrap();
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    // The first of each key takes long to be refused; parked letters of its key die before it.
    let sink = Scripted::new(move |attempt, _| {
        match (is_mended.load(Ordering::Relaxed), number_of(attempt)) {
            (true, _) => Answer::Ends(Outcome::Delivered),
            (false, 0..8) if attempt.number == 1 => Answer::Ends(Outcome::NotExecuted(
                Failure::new(FailureClass::Unavailable, "later"),
            )),
            (false, 0..8) => Answer::Never,
            (false, _) => Answer::Ends(refused()),
        }
    });
    let mut policy = policy();
    policy.on_failure = OnFailure::Park;
    policy.in_flight_per_key = 2;
    policy.concurrency = 64;
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    server.accept((0..800).map(|id| keyed(id, 8))).await;
    let dead = |server: &Server| server.store.totals(server.ids[0]).dead;
    until("the others are dead", || dead(&server) == 792).await;
    until("the first are under way", || {
        sink.unanswered.lock().unwrap().len() == 8
    })
    .await;
    for attempt in std::mem::take(&mut *sink.unanswered.lock().unwrap()) {
        attempt.finish(refused());
    }
    until("all are dead", || dead(&server) == 800).await;
    let newest = server
        .store
        .dead_letters()
        .list(None, Some(792), 9)
        .unwrap();
    assert!(
        newest
            .iter()
            .all(|letter| letter.event.event.id().len() == 1)
    );

    mended.store(true, Ordering::Relaxed);
    let before = sink.arrivals().len();
    let letters = server.letters();
    let tally = letters
        .redrive_selected(all_of(server.ids[0]), 800, None, "ada")
        .await
        .unwrap();
    assert_eq!(tally.count, 800);
    until("all is delivered", || {
        server.store.totals(server.ids[0]).delivered == 800
    })
    .await;
    let arrivals = sink.arrivals().split_off(before);
    assert_eq!(arrivals.len(), 800, "each once");
    assert_first_appearances_in_order(&arrivals);
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_number_than_expected_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (sink, mended) = mendable();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    server.accept((0..30).map(|id| keyed(id, 3))).await;
    let totals = || server.store.totals(server.ids[0]);
    until("all are dead", || totals().dead == 30).await;
    mended.store(true, Ordering::Relaxed);
    let letters = server.letters();
    let which = LettersMeant {
        filter: Some(compile("int(id) >= 10 && key != 'k0'").unwrap()),
        ..all_of(server.ids[0])
    };
    let audited = || server.store.catalog().audit_trail(None, 100).unwrap().len();
    let before = (totals(), audited());
    for wrong in [0, 13, 15, 30] {
        let redriven = letters.redrive_selected(which.clone(), wrong, None, "ada");
        let discarded = letters.discard_selected(which.clone(), wrong, "ada", "why");
        for refused in [redriven.await, discarded.await] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, RedeliveryError::Unexpected { expected, found: 14 } if expected == wrong),
                "{wrong}: {error}"
            );
        }
        assert_eq!((totals(), audited()), before);
    }
    let redriven = letters.redrive_selected(which.clone(), 14, None, "ada");
    assert_eq!(redriven.await.unwrap().count, 14);
    until("those are delivered", || totals().delivered == 14).await;
    assert!(sink.delivered().iter().all(|id| *id >= 10 && id % 3 != 0));
    assert_eq!(audited(), before.1 + 1, "one entry for all of them");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_lets_few_begin_and_whoever_stops_it_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let (sink, mended) = mendable();
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let id = server.ids[0];
    server.accept((0..20).map(|id| keyed(id, 3))).await;
    let totals = || server.store.totals(id);
    until("all are dead", || totals().dead == 20).await;
    mended.store(true, Ordering::Relaxed);
    let letters = server.letters();
    let rate = "1/h".parse().unwrap();
    let begun = letters.redrive_selected(all_of(id), 20, Some(rate), "ada");
    begun.await.unwrap();
    until("one is delivered", || totals().delivered == 1).await;
    let running = letters.running().remove(0);
    assert_eq!((running.selected, running.redriven()), (20, 1));
    // How many are left changes while it runs, so that comes first, whatever is expected.
    for expected in [19, 20] {
        let again = letters.redrive_selected(all_of(id), expected, None, "ada");
        let again = again.await;
        assert!(matches!(again, Err(RedeliveryError::Running)), "{again:?}");
    }
    let stopped = letters.stop_running(id, "ada").await.unwrap();
    assert_eq!(stopped.unwrap().redriven(), 1);
    until("it has ended", || letters.running().is_empty()).await;
    assert_eq!(totals().dead, 19);
    assert!(letters.stop_running(id, "ada").await.unwrap().is_none());

    let rest = letters.redrive_selected(all_of(id), 19, None, "ada");
    assert_eq!(rest.await.unwrap().count, 19);
    until("all is delivered", || totals().delivered == 20).await;
    assert_first_appearances_in_order(&sink.arrivals().split_off(20));
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_are_discarded_let_their_keys_go() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Scripted::new(|attempt, _| {
        Answer::Ends(match number_of(attempt) < 10 {
            true => refused(),
            false => Outcome::Delivered,
        })
    });
    let mut policy = policy();
    policy.on_dead_letter = OnDeadLetter::Hold;
    let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
    let id = server.ids[0];
    server.accept((0..30).map(|id| keyed(id, 10))).await;
    let totals = || server.store.totals(id);
    until("each key is held", || totals().dead == 10).await;
    let letters = server.letters();
    let tally = letters.tally(all_of(id)).await.unwrap();
    assert_eq!(
        tally,
        Tally {
            count: 10,
            oldest: tally.oldest,
            newest: tally.newest
        }
    );
    assert!(tally.oldest < tally.newest);
    let ended = letters.discard_selected(all_of(id), 10, "ada", "nobody misses them");
    assert_eq!(ended.await.unwrap().count, 10);
    until("what they held arrives", || totals().delivered == 20).await;
    assert_eq!((totals().dead, totals().discarded), (0, 10));
    server.assert_identity();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_no_redrive_of_many() {
    const LETTERS: u64 = 4;
    let folder = tempfile::tempdir().unwrap();
    let mended = Arc::new(AtomicBool::new(false));
    let refuses_all = Arc::clone(&mended);
    let scripted = move || {
        let is_mended = Arc::clone(&refuses_all);
        Scripted::new(move |attempt, _| {
            let takes = is_mended.load(Ordering::Relaxed) && number_of(attempt) < 100;
            Answer::Ends(match takes {
                true => Outcome::Delivered,
                false => refused(),
            })
        })
    };
    let mut server = Server::start(folder.path(), vec![("a", policy(), scripted())]).await;
    let id = server.ids[0];
    server.accept((0..LETTERS).map(|id| keyed(id, 2))).await;
    let dead = |server: &Server| server.store.totals(id).dead;
    let delivered = |server: &Server| server.store.totals(id).delivered;
    until("all are dead", || dead(&server) == LETTERS).await;
    mended.store(true, Ordering::Relaxed);
    // One begins with each start, and none while it runs, however long that takes.
    let rate = Some("1/h".parse().unwrap());
    let which = LettersMeant {
        filter: Some(compile("class == 'invalid' && age < 86400").unwrap()),
        ..all_of(id)
    };
    let letters = server.letters();
    let begun = letters.redrive_selected(which, LETTERS, rate, "ada");
    assert_eq!(begun.await.unwrap().count, LETTERS);
    drop(letters);
    until("one is delivered", || delivered(&server) == 1).await;
    let recorded = |server: &Server| server.store.catalog().redrives()[0].redriven;
    until("that is on record", || recorded(&server) == 1).await;
    // It died later than that: another redrive may take it.
    server.accept([(100, Some("k0".to_owned()))]).await;
    until("it is dead", || dead(&server) == LETTERS).await;

    for start in 2..=LETTERS {
        server.stop().await;
        let again = scripted();
        server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&again))]).await;
        let letters = server.letters();
        letters.take_up();
        until("the next is delivered", || delivered(&server) == start).await;
        assert_eq!(again.ids(), [start - 1], "in order, and each once");
        if start == LETTERS {
            break;
        }
        until("that is on record", || recorded(&server) == start).await;
        let running = letters.running().remove(0);
        assert_eq!((running.selected, running.by.as_str()), (LETTERS, "ada"));
        assert_eq!((running.redriven(), running.rate), (start, rate));
        for expected in [dead(&server), 1_000] {
            let another = letters.redrive_selected(all_of(id), expected, None, "eve");
            let another = another.await;
            assert!(
                matches!(another, Err(RedeliveryError::Running)),
                "{another:?}"
            );
        }
    }
    let ended = || server.store.catalog().redrives().is_empty();
    until("it has ended", ended).await;
    assert_eq!(dead(&server), 1);
    server.assert_identity();
    server.stop().await;
}
