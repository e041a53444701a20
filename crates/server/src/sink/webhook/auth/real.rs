//! Tests of credentials against a real receiver and a real authorization server, both on loopback.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wayhold_model::{FailureClass, Outcome, OutcomeKind};

use crate::sink::Sink as _;
use crate::sink::contract::{Lane, event};
use crate::sink::http::real::{attempt, sink_of};
use crate::sink::http::receiver::{Receiver, Seen};
use crate::sink::webhook::WebhookSink;

/// A sink that asks `server` for tokens.
fn with_oauth2(receiver: SocketAddr, server: SocketAddr, more: &str) -> WebhookSink {
    let keys = format!(
        r#"
        url = "http://HOST/orders"
        [destinations.erp.auth.oauth2]
        token_url = "http://{server}/token"
        client_id = "way:hold"
        client_secret = {{ env = "TOKEN" }}
        {more}
        "#
    );
    sink_of(&keys, receiver)
}

/// An authorization server whose tokens are numbered.
async fn numbered(expires_in: u64) -> Receiver {
    let given = Arc::new(AtomicUsize::new(0));
    Receiver::start(move |_| {
        let number = given.fetch_add(1, Ordering::SeqCst) + 1;
        let token = serde_json::json!({
            "access_token": format!("t{number}"), "token_type": "Bearer", "expires_in": expires_in,
        });
        (200, token.to_string())
    })
    .await
}

fn form_of(seen: &Seen) -> HashMap<String, String> {
    url::form_urlencoded::parse(&seen.body)
        .into_owned()
        .collect()
}

#[tokio::test]
async fn fixed_credentials_are_sent_as_their_kind_says() {
    for (keys, name, value) in [
        (
            "auth = { bearer = { env = \"TOKEN\" } }",
            "authorization",
            "Bearer hunter2",
        ),
        (
            "auth = { basic = { user = \"way\", password = { env = \"TOKEN\" } } }",
            "authorization",
            "Basic d2F5Omh1bnRlcjI=",
        ),
        (
            "auth = { header = { name = \"X-Api-Key\", value = { env = \"TOKEN\" } } }",
            "x-api-key",
            "hunter2",
        ),
    ] {
        let receiver = Receiver::start(|_| (200, String::new())).await;
        let sink = sink_of(&format!("url = \"http://HOST/\"\n{keys}"), receiver.address);
        assert_eq!(
            attempt(&sink, event("1", None, b"{}")).await,
            Outcome::Delivered
        );
        assert!(sink.probe().await.is_ok());
        for seen in receiver.seen() {
            assert_eq!(seen.header(name), value, "{keys}");
        }
        assert_eq!(receiver.seen().len(), 2);
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_used_until_its_end() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let server = numbered(3600).await;
    let sink = with_oauth2(
        receiver.address,
        server.address,
        "scope = \"orders write\"\nparameters = { audience = \"erp\" }",
    );
    let mut lane = Lane::new(64);
    lane.submit(&sink, (0..64).map(|n| event(&n.to_string(), None, b"{}")));
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome, Outcome::Delivered);
    }
    assert_eq!(receiver.seen().len(), 64);
    for seen in receiver.seen() {
        assert_eq!(seen.header("authorization"), "Bearer t1");
    }
    let [asked] = <[Seen; 1]>::try_from(server.seen()).unwrap();
    // base64 of way%3Ahold:hunter2
    assert_eq!(
        asked.header("authorization"),
        "Basic d2F5JTNBaG9sZDpodW50ZXIy"
    );
    let form = form_of(&asked);
    for (name, value) in [
        ("grant_type", "client_credentials"),
        ("scope", "orders write"),
        ("audience", "erp"),
    ] {
        assert_eq!(form[name], value);
    }
    assert!(!form.contains_key("client_secret"));
}

#[tokio::test]
async fn a_token_that_has_ended_is_fetched_anew_and_secrets_may_stand_in_the_form() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let server = numbered(0).await;
    let sink = with_oauth2(
        receiver.address,
        server.address,
        "authentication = \"body\"",
    );
    for number in 1..=3 {
        assert_eq!(
            attempt(&sink, event("1", None, b"{}")).await,
            Outcome::Delivered
        );
        let seen = receiver.seen();
        let last = seen.last().unwrap().header("authorization").to_owned();
        assert_eq!(last, format!("Bearer t{number}"));
    }
    let form = form_of(&server.seen()[0]);
    assert_eq!(
        (&*form["client_id"], &*form["client_secret"]),
        ("way:hold", "hunter2")
    );
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_refreshed_once_before_the_answer_counts() {
    // The first token was revoked; the second is good.
    let receiver = Receiver::start(|seen| {
        let good = seen.header("authorization") != "Bearer t1";
        (if good { 200 } else { 401 }, String::new())
    })
    .await;
    let server = numbered(3600).await;
    let sink = with_oauth2(receiver.address, server.address, "");
    let mut lane = Lane::new(16);
    lane.submit(&sink, (0..16).map(|n| event(&n.to_string(), None, b"{}")));
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome, Outcome::Delivered);
    }
    assert_eq!(server.seen().len(), 2, "sixteen refusals are one refresh");

    // No token is good: two requests, then the answer counts.
    let receiver = Receiver::start(|_| (401, String::new())).await;
    let server = numbered(3600).await;
    let sink = with_oauth2(receiver.address, server.address, "");
    let outcome = attempt(&sink, event("1", None, b"{}")).await;
    assert_eq!(outcome.kind(), OutcomeKind::Refused);
    assert_eq!(outcome.failure().unwrap().status, Some(401));
    assert_eq!((receiver.seen().len(), server.seen().len()), (2, 2));

    // A credential that cannot change is not tried again.
    let receiver = Receiver::start(|_| (401, String::new())).await;
    let keys = "url = \"http://HOST/\"\nauth = { bearer = { env = \"TOKEN\" } }";
    let outcome = attempt(&sink_of(keys, receiver.address), event("1", None, b"{}")).await;
    assert_eq!(outcome.kind(), OutcomeKind::Refused);
    assert_eq!(receiver.seen().len(), 1);
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_the_reason_holds_no_secret() {
    for (status, answer, class, why) in [
        (
            401,
            r#"{"error":"invalid_client","error_description":"hunter2"}"#,
            FailureClass::Auth,
            "it answered 401 invalid_client",
        ),
        (503, "hunter2", FailureClass::Unavailable, "it answered 503"),
        (302, "", FailureClass::Redirected, "it answered 302"),
        (
            200,
            "<html>hunter2",
            FailureClass::Protocol,
            "expected a JSON object with access_token",
        ),
    ] {
        let receiver = Receiver::start(|_| (200, String::new())).await;
        let server = Receiver::start(move |_| (status, answer.to_owned())).await;
        let sink = with_oauth2(receiver.address, server.address, "");
        let outcome = attempt(&sink, event("1", None, b"{}")).await;
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted);
        let reason = format!("no token from 127.0.0.1: {why}");
        let failure = outcome.failure().unwrap();
        assert_eq!((failure.class, &*failure.reason), (class, &*reason));
        assert_eq!(sink.probe().await.unwrap_err().reason, reason);
        assert!(receiver.seen().is_empty());
    }
}

#[tokio::test]
async fn those_that_wait_share_a_failure_and_the_next_asks_anew() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let server = Receiver::start(|_| (503, String::new())).await;
    let sink = with_oauth2(receiver.address, server.address, "");
    let mut lane = Lane::new(32);
    lane.submit(&sink, (0..32).map(|n| event(&n.to_string(), None, b"{}")));
    for (outcome, _) in lane.finish_all().await {
        assert_eq!(outcome.kind(), OutcomeKind::NotExecuted);
    }
    let asked = server.seen().len();
    assert!(
        (1..32).contains(&asked),
        "{asked} fetches for 32 attempts at once"
    );
    drop(attempt(&sink, event("x", None, b"{}")).await);
    assert_eq!(server.seen().len(), asked + 1);
}

#[tokio::test]
async fn a_server_that_keeps_silent_costs_one_attempt_its_time() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = with_oauth2(receiver.address, silent.local_addr().unwrap(), "");
    let mut lane = Lane::new(1);
    lane.attempt_timeout = Duration::from_millis(300);
    lane.submit(&sink, [event("1", None, b"{}")]);
    let (outcome, _) = lane.next().await;
    assert_eq!(outcome.kind(), OutcomeKind::NotExecuted);
    let reason = &outcome.failure().unwrap().reason;
    assert_eq!(
        reason,
        "no token from 127.0.0.1: no answer in the attempt's time"
    );
    assert!(receiver.seen().is_empty());
}
