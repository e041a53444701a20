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
        (&json!("wms"), &json!("invalid"))
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

/// Two webhooks, or only the first of them.
fn write_two(dir: &std::path::Path, receiver: &Receiver, both: bool) {
    let webhook = |name: &str| {
        format!(
            "[destinations.{name}]\nkind = \"webhook\"\nurl = \"http://{}/{name}\"\n\
             allow_networks = [\"127.0.0.0/8\"]\n",
            receiver.authority
        )
    };
    let text = match both {
        true => format!(
            "{}{}[[routes]]\nto = [\"erp\", \"wms\"]\n",
            webhook("erp"),
            webhook("wms")
        ),
        false => format!("{}[[routes]]\nto = [\"erp\"]\n", webhook("erp")),
    };
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

#[test]
fn a_destination_that_left_is_ended_in_one_audited_step_that_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(204);
    write_two(dir.path(), &receiver, true);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    server.post("/v1/destinations/wms/pause", "");
    for n in 0..20 {
        server.send("order.created", &n.to_string(), "7");
    }
    let retire = "/v1/destinations/wms/retire";
    let json_body = [("content-type", "application/json")];
    let ask = |server: &Server, path: &str, body: &str| {
        server.ask("POST", path, &json_body, body.as_bytes()).status
    };
    let discard = r#"{"pending":"discard"}"#;
    assert_eq!(ask(&server, retire, discard), 409, "it is still configured");
    assert_eq!(ask(&server, retire, r#"{"pending":"keep"}"#), 400);
    assert_eq!(ask(&server, "/v1/destinations/x/retire", discard), 404);
    server.wait_for_destination("wms", "20 pending", |one| one["pending"] == 20);
    server.terminate();

    write_two(dir.path(), &receiver, false);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    server.send("order.created", "20", "7");
    let retired = server.post(retire, r#"{"pending":"dead-letter"}"#);
    assert_eq!(
        (&retired["state"], &retired["ended"], &retired["pending"]),
        (&json!("retired"), &json!(20), &json!(0))
    );
    server.kill();

    // Durable before the answer, and repeated without a difference.
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let again = server.post(retire, r#"{"pending":"dead-letter"}"#);
    assert_eq!(
        (&again["ended"], &again["dead_letters"]),
        (&json!(0), &json!(20))
    );
    let shown = server.get("/v1/destinations/wms");
    assert_eq!(shown["by"], "local");
    assert_eq!(shown["reason"], "20 pending deliveries became dead letters");
    let letters = server.get("/v1/dead-letters?destination=wms");
    let first = &letters["items"][0];
    assert_eq!(
        (&first["class"], &first["by_reference"], &first["event_id"]),
        (&json!("retired"), &json!(true), &json!("0"))
    );
    let metrics = server.ask("GET", "/metrics", &[], b"").text();
    let gauge = "wayhold_dead_letters{destination=\"wms\",class=\"retired\"} 20";
    assert!(metrics.contains(gauge), "{metrics}");
    let ended = server.post(
        "/v1/dead-letters/discard",
        r#"{"destination":"wms","class":"retired","reason":"nobody misses them"}"#,
    );
    assert_eq!(ended["discarded"], 20);
    let status = server.wait_for_destination("wms", "all discarded", |one| {
        one["accounting"]["discarded"] == 20
    });
    assert_eq!(status["accounting"]["holds"], true);
}
