//! `wayhold store` on the data of a server that is stopped, killed or damaged.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::Value;

use crate::support::server::{Server, run, stderr, stdout};

/// Events of every kind of data; each as headers and body.
fn send_all(server: &Server) -> BTreeSet<String> {
    let bodies: [(&str, &[u8]); 5] = [
        ("application/json", br#"{"b" : 1.10, "a":[]}"#),
        ("application/json", b"{\n  \"lines\": 2\n}\n"),
        ("text/plain", "Zürich \u{1F69A}".as_bytes()),
        ("application/octet-stream", &[0, 255, 10, 13]),
        ("application/json", b""),
    ];
    let mut ids = BTreeSet::new();
    for round in 0..10 {
        for (number, (content_type, body)) in bodies.iter().enumerate() {
            let id = format!("{round}-{number}");
            let headers = [
                ("ce-specversion", "1.0"),
                ("ce-type", "t"),
                ("ce-source", "/rescue"),
                ("ce-id", &id),
                ("ce-partitionkey", "k 1"),
                ("ce-region", "eu"),
                ("content-type", *content_type),
            ];
            let answer = server.ask("POST", "/v1/events", &headers, body);
            assert_eq!(answer.status, 202, "{}", answer.text());
            ids.insert(id);
        }
    }
    ids
}

fn started(dir: &Path) -> Server {
    let server = Server::start(dir, &[]);
    server.post("/v1/destinations/delivered/pause", r#"{"reason":"x"}"#);
    server
}

fn ids_in(export: &str) -> BTreeSet<String> {
    let ids = export.lines().map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["wayholdowed"], "delivered", "{line}");
        event["id"].as_str().unwrap().to_owned()
    });
    ids.collect()
}

/// How many of a file's events a server stored, and how many it knew.
fn send_file(dir: &Path, server: &Server) -> (u64, u64) {
    let url = server.url();
    let sent = run(dir, &["send", "out.ndjson", "--server", &url, "--json"]);
    assert!(sent.status.success(), "{}", stderr(&sent));
    let told: Value = serde_json::from_slice(&sent.stdout).unwrap();
    let count = |name: &str| told[name].as_u64().unwrap();
    (count("stored"), count("duplicates"))
}

#[test]
fn what_a_killed_server_holds_comes_out_and_is_the_same_where_it_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = started(dir.path());
    let ids = send_all(&server);
    let running = run(dir.path(), &["store", "verify"]);
    assert_eq!(running.status.code(), Some(2), "{running:?}");
    assert!(stderr(&running).contains(&server.pid().to_string()));
    server.kill();

    for verb in ["inspect", "verify"] {
        let looked = run(dir.path(), &["store", verb, "--json"]);
        assert_eq!(looked.status.code(), Some(0), "{verb}: {looked:?}");
        let told: Value = serde_json::from_slice(&looked.stdout).unwrap();
        assert!(told.is_object());
    }
    let exported = run(dir.path(), &["store", "export", "--to", "out.ndjson"]);
    assert_eq!(exported.status.code(), Some(0), "{exported:?}");
    let export = std::fs::read_to_string(dir.path().join("out.ndjson")).unwrap();
    assert_eq!(ids_in(&export), ids);

    // The same content: to the store that it came from every one is a duplicate and none a conflict.
    let server = started(dir.path());
    assert_eq!(send_file(dir.path(), &server), (0, 50));
    // What only says where it lay is not sent.
    let event = server.get("/v1/events?id=0-0&source=/rescue");
    assert_eq!(event["event"]["region"], "eu", "{event}");
    assert!(server.terminate().success());
}

#[test]
fn what_is_whole_of_a_damaged_store_arrives_in_another_with_the_same_ids() {
    let dir = tempfile::tempdir().unwrap();
    let server = started(dir.path());
    let ids = send_all(&server);
    server.kill();
    let log = dir.path().join("data/g1/s0/1.db-wal");
    let file = File::options().write(true).open(&log).unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&[0xa5; 512], length / 2).unwrap();
    drop(file);

    let verified = run(dir.path(), &["store", "verify", "--json"]);
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    let told: Value = serde_json::from_slice(&verified.stdout).unwrap();
    let finding = &told["findings"][0];
    assert!(
        finding["file"].as_str().unwrap().ends_with("1.db"),
        "{told}"
    );
    for field in ["what", "costs", "do"] {
        assert!(!finding[field].as_str().unwrap().is_empty(), "{told}");
    }
    let exported = run(dir.path(), &["store", "export"]);
    let export = stdout(&exported);
    let whole = ids_in(&export);
    assert!(whole.is_subset(&ids) && !whole.is_empty() && whole.len() < ids.len());

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("out.ndjson"), &export).unwrap();
    let server = started(other.path());
    assert_eq!(send_file(other.path(), &server), (whole.len() as u64, 0));
    for id in &whole {
        let event = server.get(&format!("/v1/events?id={id}&source=/rescue"));
        assert_eq!(event["event"]["id"], **id, "{event}");
    }
    assert!(server.terminate().success());
}

#[test]
fn a_server_whose_catalogue_is_lost_starts_again_after_a_repair_and_delivers_when_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let server = started(dir.path());
    let ids = send_all(&server);
    server.kill();
    let catalog = dir.path().join("data/catalog.db");
    std::fs::write(&catalog, [7; 4096]).unwrap();

    let refused = run(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(stderr(&refused).contains("store repair"), "{refused:?}");
    let code = |arguments: &[&str]| run(dir.path(), arguments).status.code();
    assert_eq!(code(&["store", "verify"]), Some(1));
    let unnamed = run(dir.path(), &["store", "repair"]);
    assert_eq!(unnamed.status.code(), Some(2), "{unnamed:?}");
    assert!(stderr(&unnamed).contains("--destination"), "{unnamed:?}");
    let name = ["--destination", "1=delivered"];
    let planned = [&["store", "repair", "--dry-run"][..], &name].concat();
    assert_eq!(code(&planned), Some(0));
    assert_eq!(std::fs::read(&catalog).unwrap(), [7; 4096]);
    let repaired = run(
        dir.path(),
        &[&["store", "repair", "--json"][..], &name].concat(),
    );
    assert_eq!(repaired.status.code(), Some(0), "{repaired:?}");
    let told: Value = serde_json::from_slice(&repaired.stdout).unwrap();
    assert!(!told["steps"].as_array().unwrap().is_empty(), "{told}");
    assert_eq!(code(&["store", "verify"]), Some(0));

    let server = Server::start(dir.path(), &[]);
    let sent = ids.len();
    server.wait_for_destination("delivered", "held", |one| {
        one["state"] == "paused" && one["accounting"]["pending"] == sent
    });
    server.post("/v1/destinations/delivered/resume", "{}");
    server.wait_for_destination("delivered", "delivered", |one| {
        one["accounting"]["delivered"] == sent
    });
    assert!(server.terminate().success());
}
