//! The record of attempts: what a destination asks for is on it, with the receiver's own id, over a kill.

use serde_json::json;

use crate::support::receiver::Receiver;
use crate::support::server::Server;
use crate::support::wait_until;

#[test]
fn attempts_are_on_record_as_each_destination_asks_and_stay_over_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let webhook = |name: &str, record: &str| {
        format!(
            "[destinations.{name}]\nkind = \"webhook\"\nurl = \"http://{}/{name}\"\n{record}\
             retry.base = \"10ms\"\nretry.cap = \"10ms\"\nallow_networks = [\"127.0.0.0/8\"]\n",
            receiver.authority
        )
    };
    let text = format!(
        "{}{}[[routes]]\nto = [\"erp\", \"wms\"]\n",
        webhook("erp", ""),
        webhook("wms", "record = \"all\"\n")
    );
    std::fs::write(dir.path().join("wayhold.toml"), text).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let receipt = server.send("order.created", "a", "7");
    let path = format!(
        "/v1/events/{}/attempts",
        receipt["position"].as_str().unwrap()
    );
    let of = |server: &Server, name: &str| {
        let items = server.get(&path)["items"].as_array().unwrap().clone();
        let mine = items.into_iter().filter(|one| one["destination"] == name);
        mine.collect::<Vec<_>>()
    };
    wait_until("both have failed", || {
        !of(&server, "erp").is_empty() && !of(&server, "wms").is_empty()
    });
    receiver.locate("/orders/7");
    receiver.answer(201);
    for name in ["erp", "wms"] {
        server.wait_for_destination(name, "1 delivered", |one| {
            one["accounting"]["delivered"] == 1
        });
    }
    let (erp, wms) = (of(&server, "erp"), of(&server, "wms"));
    let first = &wms[0];
    assert_eq!(
        (
            &first["number"],
            &first["outcome"],
            &first["class"],
            &first["status"]
        ),
        (
            &json!(1),
            &json!("unknown"),
            &json!("unavailable"),
            &json!(503)
        )
    );
    assert!(first["duration_seconds"].as_f64().unwrap() > 0.0);
    let last = wms.last().unwrap();
    assert_eq!(
        (
            &last["outcome"],
            &last["class"],
            &last["status"],
            &last["location"]
        ),
        (
            &json!("delivered"),
            &json!(null),
            &json!(201),
            &json!("/orders/7")
        )
    );
    assert!(erp.iter().all(|one| one["outcome"] == "unknown"), "{erp:?}");

    let all = erp.len() + wms.len();
    wait_until("everything is written", || {
        server.get("/v1/status")["attempts"]["written"] == all
    });
    let [dropped, bytes, most] = kept(&server);
    assert!(dropped == Some(0) && bytes > Some(0));
    assert_eq!(most, Some(1 << 30));
    server.kill();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    assert_eq!((of(&server, "erp"), of(&server, "wms")), (erp, wms));
    let none = server.ask("GET", "/v1/events/g1.s0.4000/attempts", &[], b"");
    assert_eq!(
        (none.status, none.json()["items"].clone()),
        (200, json!([]))
    );
    assert_eq!(
        server.ask("GET", "/v1/events/x/attempts", &[], b"").status,
        400
    );
}

/// What the server says of its record: attempts that were dropped, its bytes and the most that it may have.
fn kept(server: &Server) -> [Option<u64>; 3] {
    let status = server.get("/v1/status");
    ["dropped", "bytes", "bytes_max"].map(|name| status["attempts"][name].as_u64())
}
