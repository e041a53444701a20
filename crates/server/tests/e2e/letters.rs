//! Deliveries that fail: what waits behind what, and dead letters shown, redriven and discarded.

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::Server;
use crate::support::wait_until;

/// A configuration with one webhook.
fn write_configuration(dir: &std::path::Path, receiver: &Receiver) {
    let text = format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]

        [[routes]]
        to = ["wms"]
        "#,
        receiver.authority
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

#[test]
fn a_refused_event_is_kept_with_its_reason_until_an_operator_decides() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    server.send("order.created", "a", "7");
    server.send("order.created", "b", "8");
    server.wait_for_destination("wms", "2 dead letters", |one| one["dead_letters"] == 2);

    let page = server.get("/v1/dead-letters?limit=1");
    let first = &page["items"][0];
    assert_eq!(
        (&first["destination"], &first["class"]),
        (&json!("wms"), &json!("refused"))
    );
    assert_eq!(
        (&first["status"], &first["attempts"][0]["number"]),
        (&json!(400), &json!(1))
    );
    let next = page["next"].as_str().unwrap();
    let rest = server.get(&format!("/v1/dead-letters?after={next}&destination=wms"));
    let second = &rest["items"][0];
    assert_eq!(
        (rest["items"].as_array().unwrap().len(), &rest["next"]),
        (1, &json!(null))
    );

    receiver.answer(204);
    let (first, second) = (
        first["id"].as_u64().unwrap(),
        second["id"].as_u64().unwrap(),
    );
    let before = receiver.received().len();
    server.post(&format!("/v1/dead-letters/{first}/redrive"), "");
    wait_until("the redriven event", || {
        receiver.received().len() == before + 1
    });
    server.wait_for_destination("wms", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });

    let json_body = [("content-type", "application/json")];
    let discard = format!("/v1/dead-letters/{second}/discard");
    assert_eq!(server.ask("POST", &discard, &json_body, b"{}").status, 400);
    assert_eq!(
        server
            .ask("POST", &discard, &json_body, br#"{"reason":" "}"#)
            .status,
        400
    );
    server.post(&discard, r#"{"reason":"sent by hand"}"#);
    let status = server.wait_for_destination("wms", "none dead", |one| one["dead_letters"] == 0);
    let accounting = &status["accounting"];
    assert_eq!(
        (
            &accounting["discarded"],
            &accounting["redriven"],
            &accounting["holds"]
        ),
        (&json!(1), &json!(1), &json!(true))
    );
    assert_eq!(server.get("/v1/dead-letters")["items"], json!([]));
    for path in [
        format!("/v1/dead-letters/{first}"),
        "/v1/dead-letters/nonsense".to_owned(),
    ] {
        assert_eq!(server.ask("GET", &path, &[], b"").status, 404);
    }
}

#[test]
fn an_event_that_waits_says_behind_which_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let first = server.send("order.created", "a", "7");
    let second = server.send("order.paid", "b", "7");
    let status = server.wait_for_destination("wms", "a blocked key", |one| {
        one["blocked_keys"]["top"][0]["event_id"] == "a"
    });
    assert_eq!(status["blocked_keys"]["top"][0]["key"], "7");
    assert_eq!(status["last_error"]["status"], 503);
    assert!(
        status["last_error"]["failing_since"].is_string(),
        "{status}"
    );

    let of = |receipt: &Value| {
        let position = receipt["position"].as_str().unwrap();
        server.get(&format!("/v1/events/{position}"))["deliveries"][0].clone()
    };
    assert_eq!(of(&first)["state"], "retrying");
    let waiting = of(&second);
    assert_eq!(
        (&waiting["state"], &waiting["behind"]),
        (&json!("pending"), &first["position"])
    );
    receiver.answer(200);
    server.wait_for_destination("wms", "2 delivered", |one| {
        one["accounting"]["delivered"] == 2
    });
    let bodies: Vec<_> = receiver
        .received()
        .into_iter()
        .map(|one| one.body)
        .collect();
    assert!(bodies.ends_with(&[br#"{"id":"a"}"#.to_vec(), br#"{"id":"b"}"#.to_vec()]));
}
