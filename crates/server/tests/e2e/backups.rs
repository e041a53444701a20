//! A backup over HTTP while events come, and a server that is made of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::support::receiver::{Received, Receiver};
use crate::support::server::{Server, run, stderr, stdout};
use crate::support::{http, wait_for, wait_until};

/// A configuration with one webhook and small segments.
fn write_configuration(dir: &Path, receiver: &Receiver) {
    let text = format!(
        r#"
        [store]
        shards = 2
        segment_rows = 16

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

/// Sends events with numbers as ids until told to stop; the count of those that were acknowledged.
fn keep_sending(authority: &str) -> (Arc<AtomicU64>, Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let (sent, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, until, authority) = (Arc::clone(&sent), Arc::clone(&stop), authority.to_owned());
    let sending = std::thread::spawn(move || {
        while !until.load(Ordering::SeqCst) {
            let id = count.load(Ordering::SeqCst);
            let path = format!("/v1/events?type=order.created&id={id}&key={}", id % 5);
            let headers = [("content-type", "application/json")];
            let body = format!(r#"{{"id":"{id}"}}"#);
            let answer = http::ask(&authority, "POST", &path, &headers, body.as_bytes()).unwrap();
            assert_eq!(answer.status, 202, "{}", answer.text());
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (sent, stop, sending)
}

/// The id in the body of what arrived.
fn id_of(received: &Received) -> String {
    let body: Value = serde_json::from_slice(&received.body).unwrap();
    body["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_backup_is_made_while_events_come_and_its_copy_sends_nothing_before_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    // The receiver is away, so that everything is pending.
    let receiver = Receiver::start(503);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let (sent, stop, sending) = keep_sending(&server.authority);
    wait_until("some events are stored", || {
        sent.load(Ordering::SeqCst) > 60
    });
    let before = sent.load(Ordering::SeqCst);
    let url = server.url();
    let arguments = [
        "store", "backup", "--to", "copy", "--server", &url, "--json",
    ];
    let made = run(dir.path(), &arguments);
    assert!(made.status.success(), "{}", stderr(&made));
    let made: Value = serde_json::from_str(&stdout(&made)).unwrap();
    assert_eq!(made["state"], "done");
    assert_eq!(made["shards"].as_array().unwrap().len(), 2);
    assert!(made["bytes"].as_u64().unwrap() > 0);
    // A second time the directory is not empty.
    let again = run(
        dir.path(),
        &["store", "backup", "--to", "copy", "--server", &url],
    );
    assert_eq!(again.status.code(), Some(1));
    assert!(
        stderr(&again).contains("holds a backup already"),
        "{}",
        stderr(&again)
    );
    let list = server.get("/v1/backups");
    assert_eq!(
        (&list["items"][0]["state"], &list["items"][1]["state"]),
        (&json!("failed"), &json!("done"))
    );
    stop.store(true, Ordering::SeqCst);
    sending.join().unwrap();
    let original = server.get("/v1/status")["node"].clone();
    assert!(server.terminate().success());

    let arguments = [
        "store", "restore", "--from", "copy", "--data", "second", "--json",
    ];
    let restored = run(dir.path(), &arguments);
    assert!(restored.status.success(), "{}", stderr(&restored));
    let restored: Value = serde_json::from_str(&stdout(&restored)).unwrap();
    assert_eq!(restored["paused"], json!(["wms"]));
    assert_ne!(restored["node"], original);

    receiver.answer(204);
    let earlier = receiver.received().len();
    let arguments = ["--config", "wayhold.toml", "--data", "second"];
    let server = Server::start(dir.path(), &arguments);
    let held = server.wait_for_destination("wms", "paused with a reason", |one| {
        one["state"] == "paused"
    });
    let reason = held["reason"].as_str().unwrap();
    assert!(reason.contains("restored"), "{reason}");
    let receipt = server.send("order.created", "new", "0");
    let position = receipt["position"].as_str().unwrap();
    assert!(position.starts_with("g1001."), "{position}");
    let known = server.send("order.created", "0", "0");
    assert_eq!(known["duplicate"], true, "{known}");
    assert_eq!(receiver.received().len(), earlier, "nothing was sent");

    server.post("/v1/destinations/wms/resume", "{}");
    let accounts = server.wait_for_destination("wms", "all delivered", |one| {
        one["accounting"]["pending"] == 0
    });
    assert!(accounts["accounting"]["delivered"].as_u64().unwrap() > before);
    let received = receiver.received();
    let arrived: Vec<String> = received[earlier..].iter().map(id_of).collect();
    for id in 0..before {
        let id = id.to_string();
        assert!(arrived.contains(&id), "event {id} arrived");
    }
    for key in 0..5 {
        let of_key = arrived.iter().filter_map(|id| id.parse::<u64>().ok());
        let of_key: Vec<u64> = of_key.filter(|id| id % 5 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    assert!(server.terminate().success());
}

#[test]
fn a_stopped_store_is_backed_up_and_restored_and_what_is_not_whole_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    write_configuration(dir.path(), &receiver);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    for id in 0..10 {
        server.send("order.created", &id.to_string(), "k");
    }
    let running = run(
        dir.path(),
        &["store", "backup", "--to", "copy", "--data", "data"],
    );
    assert_eq!(running.status.code(), Some(1));
    assert!(stderr(&running).contains("in use"), "{}", stderr(&running));
    server.kill();
    let made = run(
        dir.path(),
        &["store", "backup", "--to", "copy", "--data", "data"],
    );
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(
        stdout(&made).contains("g1.s1: up to sequence"),
        "{}",
        stdout(&made)
    );
    let restore = |from: &str, data: &str| {
        run(
            dir.path(),
            &["store", "restore", "--from", from, "--data", data],
        )
    };
    assert_eq!(restore("copy", "data").status.code(), Some(2), "not empty");
    assert_eq!(restore("data", "other").status.code(), Some(1), "no backup");
    assert!(restore("copy", "second").status.success());
    std::fs::write(dir.path().join("copy/g1/s0/mark"), b"flip").unwrap();
    let damaged = restore("copy", "third");
    assert_eq!(damaged.status.code(), Some(1));
    assert!(
        stderr(&damaged).contains("g1/s0/mark: "),
        "{}",
        stderr(&damaged)
    );
    assert!(!dir.path().join("third").exists());
    let arguments = ["--config", "wayhold.toml", "--data", "second"];
    let server = Server::start(dir.path(), &arguments);
    let status = wait_for("the status", || Some(server.get("/v1/status")));
    assert_eq!(status["destinations"][0]["accounting"]["pending"], 10);
    assert!(server.terminate().success());
}
