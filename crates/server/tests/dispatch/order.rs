//! Delivery, order and isolation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use wayhold::clock::Entropy;
use wayhold::config::{DeliveryPolicy, OnFailure};
use wayhold_model::{Failure, FailureClass, Outcome};

use crate::destination::{Answer, Scripted};
use crate::hand::Seeded;
use crate::miniature::{
    Server, assert_failed_ones_block, assert_first_appearances_in_order, keyed, policy, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn everything_accepted_arrives_in_order_per_key_through_failures() {
    for on_failure in [OnFailure::Block, OnFailure::Park] {
        let folder = tempfile::tempdir().unwrap();
        let random = Seeded::new(1);
        let sink = Scripted::new(move |_, _| {
            let wait = Duration::from_micros(random.next() % 2_000);
            let failure = || Failure::new(FailureClass::Unavailable, "by chance");
            match random.next() % 10 {
                0 => Answer::EndsAfter(wait, Outcome::NotExecuted(failure())),
                1 => Answer::EndsAfter(wait, Outcome::Unknown(failure())),
                2 => Answer::Ends(Outcome::Unknown(failure())),
                _ => Answer::EndsAfter(wait, Outcome::Delivered),
            }
        });
        let policy = DeliveryPolicy {
            on_failure,
            ..policy()
        };
        let server = Server::start(folder.path(), vec![("a", policy, Arc::clone(&sink))]).await;
        let random = Seeded::new(2);
        for batch in 0..20 {
            let events = (0..100).map(|n| {
                let key = random.next() % 40;
                (batch * 100 + n, (key < 30).then(|| format!("k{key}")))
            });
            server.accept(events).await;
        }
        until("all is delivered", || server.pending() == 0).await;
        assert_eq!(sink.delivered().len(), 2_000);
        assert_first_appearances_in_order(&sink.arrivals());
        if on_failure == OnFailure::Block {
            assert_failed_ones_block(&sink.arrivals());
        }
        server.assert_identity();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_outgrows_memory_delays_no_other_and_comes_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let sink = Scripted::new(move |attempt, _| {
        let blocked = attempt.event.event.key() == Some("hot") && !gate.load(Relaxed);
        Answer::Ends(if blocked {
            Outcome::Unknown(Failure::new(FailureClass::Unavailable, "the gate is shut"))
        } else {
            Outcome::Delivered
        })
    });
    let server = Server::start(folder.path(), vec![("a", policy(), Arc::clone(&sink))]).await;
    let key = |id: u64| {
        if id.is_multiple_of(10) {
            format!("cold{}", id % 7)
        } else {
            "hot".to_owned()
        }
    };
    for batch in 0..5 {
        server
            .accept((batch * 1_000..(batch + 1) * 1_000).map(|id| (id, Some(key(id)))))
            .await;
    }
    until("the other keys are through", || {
        sink.delivered().len() == 500
    })
    .await;
    // The first event of the key has no name while it is fetched for its next attempt.
    let snapshot = loop {
        let snapshot = server.dispatcher.snapshot(server.ids[0]).await.unwrap();
        assert_eq!(snapshot.blocked_keys, 1);
        if snapshot.blocked[0].key.is_some() {
            break snapshot;
        }
    };
    assert_eq!(snapshot.blocked[0].key.as_deref(), Some("hot"));
    assert_eq!(snapshot.blocked[0].event_id.as_deref(), Some("1"));
    assert_eq!(snapshot.blocked[0].waiting, 4_499);
    open.store(true, Relaxed);
    until("the hot key is through", || server.pending() == 0).await;
    assert_failed_ones_block(&sink.arrivals());
    assert_first_appearances_in_order(&sink.arrivals());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_destination_does_not_delay_another() {
    let folder = tempfile::tempdir().unwrap();
    let dead = Scripted::new(|_, _| Answer::Never);
    let down = Scripted::new(|_, _| {
        Answer::Ends(Outcome::NotExecuted(Failure::new(
            FailureClass::Unavailable,
            "refused",
        )))
    });
    let well = Scripted::delivering();
    let lanes = vec![
        ("dead", policy(), Arc::clone(&dead)),
        ("down", policy(), Arc::clone(&down)),
        ("well", policy(), Arc::clone(&well)),
    ];
    let server = Server::start(folder.path(), lanes).await;
    for batch in 0..20 {
        server
            .accept((batch * 100..(batch + 1) * 100).map(|id| keyed(id, 50)))
            .await;
    }
    until("the healthy one has all", || {
        well.delivered().len() == 2_000
    })
    .await;
    assert_eq!(
        dead.arrivals().len(),
        policy().concurrency,
        "bounded by concurrency"
    );
    assert!(down.delivered().is_empty());
    server.assert_identity();
    server.stop().await;
}
