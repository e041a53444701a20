//! Tests of forwarding over real connections, from the configuration's text to what is stored.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use wayhold_model::{EventParts, FailureClass, Outcome, OutcomeKind, StoredEvent};

use super::centre::{Centre, problem, sink_at};
use crate::sink::contract::{
    Lane, Received, Rig, a_dead_destination_gives_not_executed, event, exercise, stored,
};
use crate::sink::wayhold::ForwardSink;
use crate::sink::{Attempt, BoxFuture, Finished, Known, Sink};

struct ForwardRig {
    sink: ForwardSink,
    centre: Centre,
}

impl Rig for ForwardRig {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn received(&self, _at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
        let stored = self.centre.stored();
        let received = stored.iter().map(|text| Received::of_structured(text));
        Box::pin(std::future::ready(Some(received.collect())))
    }
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let centre = Centre::start().await;
    let sink = centre.sink("auth.bearer = { env = \"TOKEN\" }");
    assert_eq!(sink.probe().await.unwrap(), "127.0.0.1 takes events");
    let rig = ForwardRig { sink, centre };
    exercise(&rig).await;
    let headers = rig.centre.headers();
    assert_eq!(headers["authorization"], "Bearer hunter2");
    assert_eq!(
        headers["content-type"],
        "application/cloudevents-batch+json; charset=utf-8"
    );
}

#[tokio::test]
async fn nobody_listening_is_a_dead_destination() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let sink = sink_at(address, "");
    assert!(sink.probe().await.is_err());
    a_dead_destination_gives_not_executed(&sink).await;
}

/// An event of a key, as the store hands it out.
fn keyed(id: &str, key: u64) -> Arc<StoredEvent> {
    let event = event(id, Some(&key.to_string()), b"{}");
    Arc::new(StoredEvent {
        key_hash: Some(key),
        ..Arc::unwrap_or_clone(event)
    })
}

/// The kinds of outcomes and what class the failures have, in the order of submission.
async fn outcomes(lane: &mut Lane) -> Vec<(OutcomeKind, Option<FailureClass>)> {
    let ended = lane.finish_all().await;
    let of = |(outcome, _): (Outcome, u64)| {
        (
            outcome.kind(),
            outcome.failure().map(|failure| failure.class),
        )
    };
    ended.into_iter().map(of).collect()
}

/// Refuses every batch that holds this id.
fn refuse(
    id: &'static str,
    how: impl Fn(usize) -> (u16, String) + Send + 'static,
) -> impl FnMut(&[Value]) -> super::centre::Said + Send {
    move |events| {
        let index = events.iter().position(|event| event["id"] == id)?;
        let (status, body) = how(index);
        Some((status, None, body))
    }
}

#[tokio::test]
async fn one_bad_event_is_refused_alone_and_only_its_key_waits() {
    use FailureClass::{Interrupted, Invalid, TooLarge};
    use OutcomeKind::{Delivered, NotExecuted, Refused};
    type How = fn(usize) -> (u16, String);
    let named: How = |index| (422, problem("no-route", Some(index)));
    let unnamed: How = |_| (413, "<html>too large</html>".to_owned());
    for (how, class) in [(named, Invalid), (unnamed, TooLarge)] {
        let centre = Centre::answering(refuse("bad", how)).await;
        let sink = centre.sink("batch.linger = \"200ms\"");
        let mut lane = Lane::new(64);
        let ids = (0..40).map(|n| match n {
            17 => keyed("bad", 3),
            n => keyed(&n.to_string(), n % 7),
        });
        lane.submit(&sink, ids);
        for (n, found) in outcomes(&mut lane).await.into_iter().enumerate() {
            let expected = match n {
                17 => (Refused, Some(class)),
                n if n > 17 && n % 7 == 3 => (NotExecuted, Some(Interrupted)),
                _ => (Delivered, None),
            };
            assert_eq!(found, expected, "event {n}");
        }
        let expected = (0..40).filter(|n| *n < 17 || *n > 17 && n % 7 != 3);
        let expected: Vec<_> = expected.map(|n| n.to_string()).collect();
        assert_eq!(centre.ids(), expected, "stored in order, each once");
        sink.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn what_fails_as_a_whole_gives_back_all_that_waits_and_gives_up_none() {
    let wait = Some(7);
    for (status, wait, body, kind) in [
        (
            503,
            wait,
            problem("no-space", None),
            OutcomeKind::NotExecuted,
        ),
        (
            429,
            wait,
            problem("backlog-full", Some(0)),
            OutcomeKind::NotExecuted,
        ),
        (500, None, problem("internal", None), OutcomeKind::Unknown),
        (404, None, String::new(), OutcomeKind::NotExecuted),
        (
            200,
            None,
            "<html>Please log in</html>".to_owned(),
            OutcomeKind::Unknown,
        ),
    ] {
        let centre = Centre::answering(move |_| Some((status, wait, body.clone()))).await;
        let sink = centre.sink("batch = { events = 4, linger = \"200ms\" }");
        let mut lane = Lane::new(16);
        lane.submit(&sink, (0..10).map(|n| keyed(&n.to_string(), n)));
        let ended = lane.finish_all().await;
        for (n, (outcome, _)) in ended.iter().enumerate() {
            let failure = outcome.failure().unwrap();
            let expected = if n < 4 {
                kind
            } else {
                OutcomeKind::NotExecuted
            };
            assert_eq!(outcome.kind(), expected, "{status}: {outcome:?}");
            assert_eq!(
                failure.retry_after,
                wait.map(Duration::from_secs),
                "{status}"
            );
            assert!(outcome.is_trouble(), "{status}: {outcome:?}");
        }
        assert_eq!(centre.batches(), [4], "{status}");
        sink.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn what_is_handed_over_before_a_failure_is_known_goes_back() {
    let mut first = true;
    let centre = Centre::answering(move |_| {
        let fails = std::mem::take(&mut first);
        fails.then(|| (500, None, String::new()))
    })
    .await;
    let sink = centre.sink("");
    let (finished, mut results) = mpsc::channel::<Finished>(8);
    let mut known = Known::default();
    let submit = |id: &str, known: &Known| {
        let (event, token) = (keyed(id, 1), id.parse().unwrap());
        let attempt = Attempt::new(event, 1, Duration::from_secs(10), token, finished.clone());
        sink.submit(&mut vec![attempt.knowing(known)]);
    };
    submit("1", &known);
    let failed = results.recv().await.unwrap();
    assert_eq!(failed.outcome.kind(), OutcomeKind::Unknown);
    // The lane has not looked yet, and takes the first one for sent.
    submit("2", &known);
    let back = results.recv().await.unwrap();
    assert_eq!(
        (back.token, back.outcome.kind()),
        (2, OutcomeKind::NotExecuted)
    );
    known.take(&failed.outcome);
    submit("2", &known);
    let back = results.recv().await.unwrap();
    assert_eq!(back.outcome.kind(), OutcomeKind::NotExecuted);
    known.take(&back.outcome);
    known.take(&back.outcome);
    for id in ["1", "2"] {
        submit(id, &known);
        assert_eq!(results.recv().await.unwrap().outcome, Outcome::Delivered);
    }
    assert_eq!(centre.ids(), ["1", "2"]);
}

#[tokio::test]
async fn batches_keep_their_bounds_and_one_that_is_larger_goes_alone() {
    let centre = Centre::start().await;
    let sink = centre.sink("batch = { events = 7, bytes = \"4 KiB\", linger = \"200ms\" }");
    let mut lane = Lane::new(64);
    lane.submit(&sink, (0..20).map(|n| keyed(&n.to_string(), n)));
    let large = format!("\"{}\"", "x".repeat(10_000));
    lane.submit(&sink, [event("large", None, large.as_bytes())]);
    lane.submit(&sink, [event("after", None, b"1")]);
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome, Outcome::Delivered);
    }
    assert_eq!(centre.batches(), [7, 7, 6, 1, 1]);
}

#[tokio::test]
async fn an_event_is_sent_as_it_was_accepted_and_its_key_with_it() {
    let centre = Centre::start().await;
    let sink = centre.sink("");
    let parts = |id, key, extensions| {
        stored(&EventParts {
            id,
            source: "/edge/7",
            kind: "com.example.sold",
            subject: "till 3",
            time: "2026-01-31T12:00:00.123456789+01:00",
            key,
            content_type: "application/json",
            dataschema: "https://example.com/sold",
            extensions,
            data: Bytes::from_static(b"{ \"total\" : 10.50 }"),
        })
    };
    let trace = r#"{"floor":2,"gift":true,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
    let mut lane = Lane::new(2);
    lane.submit(&sink, [parts("1", "order 9", trace)]);
    lane.submit(&sink, [parts("2", "other", r#"{"partitionkey":"own"}"#)]);
    lane.finish_all().await;
    let common = r#""source":"/edge/7","type":"com.example.sold","dataschema":"https://example.com/sold","subject":"till 3","time":"2026-01-31T12:00:00.123456789+01:00","datacontenttype":"application/json""#;
    let trace = trace.trim_matches(['{', '}']);
    assert_eq!(
        centre.stored(),
        [
            format!(
                r#"{{"specversion":"1.0","id":"1",{common},{trace},"partitionkey":"order 9","data":{{ "total" : 10.50 }}}}"#
            ),
            format!(
                r#"{{"specversion":"1.0","id":"2",{common},"partitionkey":"own","data":{{ "total" : 10.50 }}}}"#
            ),
        ]
    );
    let preview = sink
        .preview(&parts("1", "order 9", "").event)
        .unwrap()
        .unwrap();
    assert_eq!(
        (preview.method.as_str(), preview.body.first()),
        ("POST", Some(&b'['))
    );
}
