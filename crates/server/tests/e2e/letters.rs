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

/// The query parameter that asks for a filter.
fn filter(text: &str) -> String {
    let quoted = text.bytes().map(|byte| format!("%{byte:02x}"));
    format!("filter={}", quoted.collect::<String>())
}

#[test]
fn letters_are_found_by_filter_and_counted_by_cause() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    for n in 0..10 {
        receiver.say(&format!(r#"{{"error":"unknown_sku","sku":"A-{n}"}}"#));
        server.send("order.created", &n.to_string(), "7");
        let dead = n + 1;
        server.wait_for_destination("wms", "one more", |one| one["dead_letters"] == dead);
    }
    receiver.say(r#"{"error":"blocked"}"#);
    for n in 10..13 {
        server.send("order.paid", &n.to_string(), "8");
    }
    server.wait_for_destination("wms", "13 dead letters", |one| one["dead_letters"] == 13);

    let groups = server.get("/v1/dead-letters/groups?destination=wms");
    let [first, second] = groups["items"].as_array().unwrap().as_slice() else {
        panic!("expected two causes: {groups}");
    };
    assert_eq!((&first["count"], &second["count"]), (&json!(10), &json!(3)));
    assert_eq!(
        (&first["class"], &first["fault"], &groups["groups"]),
        (&json!("invalid"), &json!("ours"), &json!(2))
    );
    assert_eq!(first["example"]["event_id"], "9");
    let attempt = &first["example"]["attempts"][0];
    assert_eq!(attempt["answer"], r#"{"error":"unknown_sku","sku":"A-9"}"#);
    assert!(attempt["duration_seconds"].as_f64().unwrap() > 0.0);
    assert!(first["oldest"].as_str().unwrap() <= first["newest"].as_str().unwrap());

    let found = |query: &str| {
        let page = server.get(&format!("/v1/dead-letters?{query}"));
        let items = page["items"].as_array().unwrap().clone();
        let ids = items
            .iter()
            .map(|one| one["event_id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>().join(" ")
    };
    let print = second["fingerprint"].as_str().unwrap();
    for (query, expected) in [
        (format!("fingerprint={print}"), "10 11 12"),
        ("class=conflict".to_owned(), ""),
        (filter("type == 'order.paid' && int(id) > 10"), "11 12"),
        (filter("data.id == '3'"), "3"),
        (
            filter(&format!("fingerprint == '{print}' && attempts == 1")),
            "10 11 12",
        ),
        (filter("status == 400 && answer.contains('A-7')"), "7"),
        (filter("age > 86400"), ""),
        (filter("data.nothing.at.all == 1"), ""),
    ] {
        assert_eq!(found(&query), expected, "{query}");
    }
    let refused = server.ask(
        "GET",
        &format!("/v1/dead-letters?{}", filter("Type == 'x'")),
        &[],
        b"",
    );
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (400, &json!("filter"))
    );

    let id = &first["example"]["id"];
    let shown = server.get(&format!("/v1/dead-letters/{id}"));
    assert_eq!(shown["event"]["data"], json!({"id": "9"}));
    assert_eq!(shown["fingerprint"], first["fingerprint"]);
}

/// Of twelve dead letters of `wms`: nothing is acted on that was not counted, or is not said well.
fn wrong_wishes_are_refused(ask: &dyn Fn(&str, Value) -> (u16, Value)) {
    for (body, expected, field) in [
        (json!({"destination": "wms"}), 400, "expect"),
        (json!({"expect": 12, "filter": "data ="}), 400, "filter"),
        (json!({"expect": 12, "rate": "fast"}), 400, "rate"),
        (json!({"expect": 12, "id": 7}), 400, "id"),
        (json!({"expect": 11, "destination": "wms"}), 409, ""),
        (json!({"expect": 1, "destination": "nowhere"}), 404, ""),
    ] {
        let (status, answer) = ask("redrive", body.clone());
        let named = answer["field"].as_str().unwrap_or("");
        assert_eq!((status, named), (expected, field), "{body}: {answer}");
    }
    let (status, refused) = ask("redrive", json!({"expect": 11, "filter": "id != ''"}));
    assert_eq!(
        (status, &refused["expected"], &refused["found"]),
        (409, &json!(11), &json!(12))
    );
    let (status, _) = ask("discard", json!({"expect": 12, "reason": " "}));
    assert_eq!(status, 400);
}

#[test]
fn many_are_acted_on_once_they_are_counted_and_a_kill_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    for n in 0..12 {
        server.send("order.created", &n.to_string(), "7");
    }
    server.wait_for_destination("wms", "12 dead letters", |one| one["dead_letters"] == 12);
    let json_body = [("content-type", "application/json")];
    let ask = |action: &str, body: Value| {
        let path = format!("/v1/dead-letters/{action}");
        let answer = server.ask("POST", &path, &json_body, body.to_string().as_bytes());
        (answer.status, answer.json())
    };
    let (status, counted) = ask("redrive", json!({"destination": "wms", "dry_run": true}));
    assert_eq!((status, &counted["selected"]), (200, &json!(12)));
    assert_eq!(
        (
            &counted["oldest"]["event_id"],
            &counted["newest"]["event_id"]
        ),
        (&json!("0"), &json!("11"))
    );
    wrong_wishes_are_refused(&ask);

    receiver.answer(204);
    let before = receiver.received().len();
    let (status, begun) = ask("redrive", json!({"expect": 12, "rate": "1/h"}));
    assert_eq!(
        (status, &begun["redriven"], &begun["rate"]),
        (202, &json!(12), &json!("1/h"))
    );
    wait_until("the first", || receiver.received().len() == before + 1);
    let running = server.get("/v1/dead-letters/redrives");
    let one = &running["items"][0];
    assert_eq!(
        (&one["destination"], &one["selected"], &one["redriven"]),
        (&json!("wms"), &json!(12), &json!(1))
    );
    server.wait_for_destination("wms", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    server.kill();

    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    // The kill may have come before it was recorded that the first one had arrived. The hour begins anew with another.
    server.wait_for_destination("wms", "it goes on", |one| {
        one["pending"] == 0 && one["dead_letters"] == 10
    });
    let running = server.get("/v1/dead-letters/redrives");
    let one = &running["items"][0];
    assert_eq!(
        (&one["destination"], &one["selected"], &one["rate"]),
        (&json!("wms"), &json!(12), &json!("1/h"))
    );
    server.post("/v1/dead-letters/redrives/wms/stop", "");
    wait_until("it is stopped", || {
        server.get("/v1/dead-letters/redrives")["items"] == json!([])
    });
    let redrive = r#"{"destination":"wms","expect":10}"#;
    assert_eq!(
        server.post("/v1/dead-letters/redrive", redrive)["redriven"],
        10
    );
    let status = server.wait_for_destination("wms", "all delivered", |one| {
        one["accounting"]["delivered"] == 12
    });
    assert_eq!(status["accounting"]["holds"], true);
    let bodies: Vec<_> = receiver
        .received()
        .into_iter()
        .rev()
        .take(11)
        .map(|one| String::from_utf8(one.body).unwrap())
        .collect();
    let expected: Vec<_> = (1..12)
        .rev()
        .map(|n| format!(r#"{{"id":"{n}"}}"#))
        .collect();
    assert_eq!(bodies, expected, "in the order of their key");
    let trail = server.get("/v1/audit").to_string();
    assert!(trail.contains("12 of every class at 1/h"), "{trail}");
}

/// Edits that change what stays as it is, or make no event, are refused by the name of the field.
fn refuses_edits(ask: &impl Fn(Value) -> (u16, Value)) {
    for (body, field) in [
        (json!({"edit": {"id": "b"}, "reason": "x"}), "edit.id"),
        (
            json!({"edit": {"source": "/b"}, "reason": "x"}),
            "edit.source",
        ),
        (
            json!({"edit": {"partitionkey": "8"}, "reason": "x"}),
            "edit.partitionkey",
        ),
        (json!({"edit": {}, "reason": "x"}), "edit"),
        (
            json!({"edit": {"data": 1, "data_base64": ""}, "reason": "x"}),
            "edit",
        ),
        (json!({"edit": {"type": null}, "reason": "x"}), "type"),
        (json!({"edit": {"time": "now"}, "reason": "x"}), "time"),
        (json!({"edits": {}}), "edits"),
    ] {
        let (status, answer) = ask(body.clone());
        assert_eq!(
            (status, &answer["field"]),
            (400, &json!(field)),
            "{body}: {answer}"
        );
    }
}

#[test]
fn an_edited_event_goes_in_the_place_of_its_letter_and_the_original_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    server.send("order.created", "a", "7");
    server.wait_for_destination("wms", "1 dead letter", |one| one["dead_letters"] == 1);
    let letter = server.get("/v1/dead-letters")["items"][0]["id"]
        .as_u64()
        .unwrap();
    let path = format!("/v1/dead-letters/{letter}/redrive");
    let json_body = [("content-type", "application/json")];
    let ask = |body: Value| {
        let answer = server.ask("POST", &path, &json_body, body.to_string().as_bytes());
        (answer.status, answer.json())
    };
    refuses_edits(&ask);
    let edit =
        json!({"data": {"id": "a", "sku": "B-2"}, "type": "order.changed", "reviewed": true});
    assert_eq!(ask(json!({"edit": edit, "reason": " "})).0, 400);
    assert_eq!(server.get("/v1/destinations/wms")["dead_letters"], 1);

    // It is refused once more: the letter is dead again, and keeps both.
    let first = receiver.received().remove(0);
    let (status, _) = ask(json!({"edit": edit, "reason": "the SKU was renamed"}));
    assert_eq!(status, 202);
    server.wait_for_destination("wms", "dead again", |one| {
        one["dead_letters"] == 1 && one["accounting"]["redriven"] == 1
    });
    let shown = server.get(&format!("/v1/dead-letters/{letter}"));
    assert_eq!(shown["event"]["data"], json!({"id": "a"}));
    assert_eq!(shown["edited"]["event"]["data"]["sku"], "B-2");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 2);
    server.send("order.paid", "b", "7");
    server.wait_for_destination("wms", "2 dead letters", |one| one["dead_letters"] == 2);
    server.kill();

    // What was edited goes out, also after a kill, with the identity that the receiver knows.
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    receiver.answer(204);
    assert_eq!(server.ask("POST", &path, &[], b"").status, 202);
    let status = server.wait_for_destination("wms", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    assert_eq!(status["accounting"]["holds"], true, "{status}");
    let last = receiver.received().pop().unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&last.body).unwrap(),
        json!({"id": "a", "sku": "B-2"})
    );
    assert_eq!(last.headers["webhook-id"], first.headers["webhook-id"]);
    let told = |name: &str| last.headers[name].as_str();
    assert_eq!(
        (told("ce-id"), told("ce-type"), told("ce-reviewed")),
        ("a", "order.changed", "true")
    );
    let ended = server.get(&format!("/v1/dead-letters/{letter}"));
    assert_eq!(
        (
            &ended["ended"],
            &ended["event"]["type"],
            &ended["edited"]["event"]["type"]
        ),
        (
            &json!(true),
            &json!("order.created"),
            &json!("order.changed")
        )
    );
    assert_eq!(ended["edited"]["reason"], "the SKU was renamed");
    let trail = server.get("/v1/audit").to_string();
    for words in [
        "dead_letter.edited",
        "the SKU was renamed",
        "dead_letter.redriven",
    ] {
        assert!(trail.contains(words), "{words}: {trail}");
    }
}

#[test]
fn letters_that_are_kept_for_a_time_end_as_discarded_and_let_their_keys_go() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(400);
    write_configuration(dir.path(), &receiver);
    let file = dir.path().join("wayhold.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (wms, routes) = text.split_once("[[routes]]").unwrap();
    let with = |keep: &str| {
        format!(
            "{wms}on_dead_letter = \"hold\"\ndead_letters.keep = \"{keep}\"\n[[routes]]{routes}"
        )
    };
    std::fs::write(&file, with("1d")).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    server.send("order.created", "a", "7");
    server.wait_for_destination("wms", "1 dead letter", |one| one["dead_letters"] == 1);
    receiver.answer(204);
    server.send("order.paid", "b", "7");
    server.wait_for_destination("wms", "one waits", |one| one["pending"] == 1);

    std::fs::write(&file, with("1s")).unwrap();
    server.post("/v1/config/reload", "");
    let status = server.wait_for_destination("wms", "the next one delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    let accounting = &status["accounting"];
    assert_eq!(
        (
            &accounting["discarded"],
            &status["dead_letters"],
            &accounting["holds"]
        ),
        (&json!(1), &json!(0), &json!(true))
    );
    let trail = server.get("/v1/audit");
    let entry = trail["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["action"] == "dead_letters.discarded")
        .unwrap();
    assert_eq!(
        (&entry["by"], &entry["subject"], &entry["reason"]),
        (
            &json!("wayhold"),
            &json!("wms"),
            &json!("1 of every class: kept for 1s")
        )
    );
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
        r#"{"destination":"wms","class":"retired","reason":"nobody misses them","expect":20}"#,
    );
    assert_eq!(ended["discarded"], 20);
    let status = server.wait_for_destination("wms", "all discarded", |one| {
        one["accounting"]["discarded"] == 20
    });
    assert_eq!(status["accounting"]["holds"], true);
}
