//! Tests of HTTP destinations against a real receiver, from the configuration's text to what arrives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use wayhold_model::webhook_id::webhook_id;
use wayhold_model::{EventParts, FailureClass, Outcome, OutcomeKind, StoredEvent};

use super::receiver::{Receiver, Seen};
use crate::clock::SystemClock;
use crate::config::{Environment, Overrides, SinkConfig, load};
use crate::sink::contract::{
    Lane, Received, Rig, a_dead_destination_gives_not_executed, exercise, stored,
};
use crate::sink::webhook::WebhookSink;
use crate::sink::{BoxFuture, Sink};

/// The sink of a destination with these keys, `HOST` standing for the receiver.
pub(crate) fn sink_of(keys: &str, receiver: std::net::SocketAddr) -> WebhookSink {
    let keys = keys.replace("HOST", &receiver.to_string());
    let text = format!(
        "[destinations.erp]\nkind = \"http\"\nallow_networks = [\"127.0.0.0/8\"]\n{keys}\n[[routes]]\nto = [\"erp\"]\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wayhold.toml");
    std::fs::write(&path, text).unwrap();
    let environment = Environment::new([("TOKEN", "hunter2"), ("OTHER", "hunter3")]);
    let loaded = load(Some(&path), &Overrides::default(), &environment)
        .unwrap_or_else(|problems| panic!("{problems}"));
    let SinkConfig::Http(config) = &loaded.config.destinations[0].sink else {
        panic!("expected an http destination");
    };
    WebhookSink::start(config, 128, Arc::new(SystemClock)).unwrap()
}

/// How one attempt of this event ended.
pub(crate) async fn attempt(sink: &WebhookSink, event: Arc<StoredEvent>) -> Outcome {
    let mut lane = Lane::new(1);
    lane.attempt_timeout = Duration::from_secs(10);
    lane.submit(sink, [event]);
    lane.next().await.0
}

fn order() -> Arc<StoredEvent> {
    stored(&EventParts {
        id: "42",
        source: "/shop",
        kind: "com.example.order.created",
        subject: "A/7",
        key: "customer 9",
        content_type: "application/json",
        extensions: r#"{"priority":3}"#,
        data: Bytes::from_static(
            br#"{"order":{"id":"A/7","total":10.50,"lines":[{"sku":"S-1","qty":2}]},"name":"Z\u00fcrich \"Nord\""}"#,
        ),
        ..EventParts::default()
    })
}

/// What a destination with these keys sent for the order.
async fn sent(keys: &str) -> Seen {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let sink = sink_of(keys, receiver.address);
    assert_eq!(attempt(&sink, order()).await, Outcome::Delivered);
    let [seen] = <[Seen; 1]>::try_from(receiver.seen()).unwrap();
    seen
}

#[tokio::test]
async fn an_event_becomes_the_request_that_the_api_asks_for() {
    let id = webhook_id(&order().event);
    let seen = sent(
        r#"
        method = "PUT"
        url = "http://HOST/v2/orders/{/data/order/id}?notify={priority}&who={/data/name}"
        headers = { X-Tenant = "acme", X-Customer = "{key}", X-Name = "<{/data/name}>", authorization = { env = "TOKEN" } }
        body = '''
        { "externalId": "{source}#{id}", "total": {/data/order/total}, "lines": {/data/order/lines},
          "city": "{/data/name}", "type": {type} }'''
        "#,
    )
    .await;
    assert_eq!(seen.method, "PUT");
    assert_eq!(
        seen.uri.to_string(),
        "/v2/orders/A%2F7?notify=3&who=Z%C3%BCrich%20%22Nord%22"
    );
    for (name, value) in [
        ("x-tenant", "acme"),
        ("x-customer", "customer 9"),
        ("x-name", "<Z%C3%BCrich \"Nord\">"),
        ("authorization", "hunter2"),
        ("content-type", "application/json"),
        ("idempotency-key", id.as_str()),
        ("ce-id", ""),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    let text = std::str::from_utf8(&seen.body).unwrap();
    // The amount is the one that was accepted, to the digit.
    assert!(text.contains("\"total\": 10.50,"), "{text}");
    let body: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "externalId": "/shop#42", "total": 10.5, "lines": [{"sku": "S-1", "qty": 2}],
            "city": "Zürich \"Nord\"", "type": "com.example.order.created",
        })
    );
}

#[tokio::test]
async fn bodies_by_word_and_by_method() {
    let data = order().event.data().clone();
    for (keys, method, content_type, body) in [
        ("", "POST", "application/json", Some(data.clone())),
        (
            "method = \"PATCH\"\nheaders = { content-type = \"application/merge-patch+json\" }",
            "PATCH",
            "application/merge-patch+json",
            Some(data.clone()),
        ),
        ("method = \"DELETE\"", "DELETE", "", Some(Bytes::new())),
        ("method = \"GET\"", "GET", "", Some(Bytes::new())),
        ("body = \"none\"", "POST", "", Some(Bytes::new())),
        (
            "body = \"cloudevent\"",
            "POST",
            "application/cloudevents+json; charset=utf-8",
            None,
        ),
        (
            "body = '{/data/order}'",
            "POST",
            "application/json",
            Some(Bytes::from_static(
                br#"{"id":"A/7","total":10.50,"lines":[{"sku":"S-1","qty":2}]}"#,
            )),
        ),
    ] {
        let seen = sent(&format!("url = \"http://HOST/x\"\n{keys}")).await;
        assert_eq!(seen.method, method, "{keys}");
        assert_eq!(seen.header("content-type"), content_type, "{keys}");
        match body {
            Some(body) => assert_eq!(seen.body, body, "{keys}"),
            None => {
                let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
                assert_eq!(
                    (&body["id"], &body["data"]["order"]["id"]),
                    (&"42".into(), &"A/7".into())
                );
            }
        }
    }
}

#[tokio::test]
async fn the_events_identity_goes_along_unless_switched_off() {
    let id = webhook_id(&order().event);
    for (keys, name, value) in [
        ("", "idempotency-key", id.as_str()),
        (
            "idempotency_header = \"X-Request-Id\"",
            "x-request-id",
            id.as_str(),
        ),
        (
            "idempotency_header = \"X-Request-Id\"",
            "idempotency-key",
            "",
        ),
        ("idempotency_header = \"off\"", "idempotency-key", ""),
        (
            "headers = { Idempotency-Key = \"{subject}\" }",
            "idempotency-key",
            "A/7",
        ),
    ] {
        let seen = sent(&format!("url = \"http://HOST/x\"\n{keys}")).await;
        assert_eq!(seen.header(name), value, "{keys}");
    }
}

#[tokio::test]
async fn a_field_that_the_event_lacks_is_refused_by_name_and_nothing_is_sent() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    for (keys, reason) in [
        (
            "url = \"http://HOST/{/data/order/number}\"",
            "url: expected a value for {/data/order/number}, but the event has none",
        ),
        (
            "url = \"http://HOST/\"\nheaders = { x-a = \"{tenant}\" }",
            "headers.x-a: expected a value for {tenant}, but the event has none",
        ),
        (
            "url = \"http://HOST/\"\nbody = '[{/data/order/lines/1}]'",
            "body: expected a value for {/data/order/lines/1}, but the event has none",
        ),
    ] {
        let outcome = attempt(&sink_of(keys, receiver.address), order()).await;
        assert_eq!(outcome.kind(), OutcomeKind::Refused);
        let failure = outcome.failure().unwrap();
        assert_eq!(failure.class, FailureClass::Mapping);
        assert_eq!(failure.reason, reason);
    }
    assert!(receiver.seen().is_empty());
}

#[tokio::test]
async fn only_listed_answers_are_a_success() {
    for (success, status, expected) in [
        ("", 202, OutcomeKind::Delivered),
        ("", 409, OutcomeKind::Refused),
        ("success = [200, 201, 409]", 201, OutcomeKind::Delivered),
        ("success = [200, 201, 409]", 409, OutcomeKind::Delivered),
        ("success = [200, 201, 409]", 202, OutcomeKind::Refused),
        ("success = [200, 201, 409]", 503, OutcomeKind::Unknown),
        ("success = [200, 201, 409]", 429, OutcomeKind::NotExecuted),
    ] {
        let receiver = Receiver::start(move |_| (status, String::new())).await;
        let keys = format!("url = \"http://HOST/\"\n{success}");
        let outcome = attempt(&sink_of(&keys, receiver.address), order()).await;
        assert_eq!(outcome.kind(), expected, "{success} {status}");
    }
}

#[tokio::test]
async fn no_value_adds_a_header_or_leaves_its_host() {
    let receiver = Receiver::start(|_| (200, String::new())).await;
    let sink = sink_of(
        "url = \"http://HOST/{/data/v}?q={/data/v}\"\nheaders = { x-v = \"{/data/v}\" }\nbody = '{\"v\":\"{/data/v}\"}'",
        receiver.address,
    );
    let hostile = [
        "a\r\nx-evil: 1",
        "a\nx-evil: 1",
        "\r\n\r\nGET /evil HTTP/1.1",
        "\0",
        "a\u{2028}b",
        "//evil.example/",
        "@evil.example/",
        "\\\\evil.example\\",
        "?x=1#y",
        "%0d%0ax-evil: 1",
        "\",\"evil\":\"1",
        "é\u{85}",
        "a\tb",
        " a ",
    ];
    for value in hostile {
        let data = serde_json::json!({ "v": value }).to_string();
        let event = stored(&EventParts {
            id: "1",
            source: "/s",
            kind: "t",
            content_type: "application/json",
            data: Bytes::from(data),
            ..EventParts::default()
        });
        assert_eq!(attempt(&sink, event).await, Outcome::Delivered, "{value:?}");
    }
    let seen = receiver.seen();
    assert_eq!(seen.len(), hostile.len());
    for (request, value) in seen.iter().zip(hostile) {
        let names: Vec<_> = request.headers.keys().map(|name| name.as_str()).collect();
        assert!(!names.contains(&"x-evil"), "{value:?}: {names:?}");
        let decoded = |text: &str| {
            let text = percent_encoding::percent_decode_str(text);
            text.decode_utf8().unwrap().into_owned()
        };
        assert_eq!(decoded(request.header("x-v")), value);
        assert_eq!(
            decoded(request.uri.path().strip_prefix('/').unwrap()),
            value
        );
        let query = request.uri.query().unwrap().strip_prefix("q=").unwrap();
        assert_eq!(decoded(query), value);
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, serde_json::json!({ "v": value }));
    }
}

struct ApiRig {
    sink: WebhookSink,
    receiver: Receiver,
}

impl Rig for ApiRig {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn received(&self, _at_least: usize) -> BoxFuture<'_, Option<Vec<Received>>> {
        let seen = self.receiver.seen();
        let posted = seen.iter().filter(|request| request.method == Method::POST);
        let received: Vec<_> = posted
            .map(|request| Received::of_structured(std::str::from_utf8(&request.body).unwrap()))
            .collect();
        Box::pin(std::future::ready(Some(received)))
    }
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let receiver = Receiver::start(|_| (201, String::new())).await;
    let keys = "url = \"http://HOST/{id}\"\nbody = \"cloudevent\"";
    let rig = ApiRig {
        sink: sink_of(keys, receiver.address),
        receiver,
    };
    assert!(rig.sink.probe().await.is_ok());
    exercise(&rig).await;
}

#[tokio::test]
async fn nobody_listening_is_a_dead_destination() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = nobody.local_addr().unwrap();
    drop(nobody);
    a_dead_destination_gives_not_executed(&sink_of("url = \"http://HOST/\"", port)).await;
}
