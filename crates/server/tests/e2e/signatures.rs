//! Signed webhooks, verified as receivers do it: with the published libraries of other languages
//! (`scripts/verify/webhooks`), through a change of keys.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::receiver::{Received, Receiver};
use crate::support::server::Server;
use crate::support::wait_until;

/// Exit code of `scripts/verify/webhooks` when a language or a library cannot be had.
const ABSENT: i32 = 77;

/// Libraries that verify shared keys, and the one way to verify asymmetric ones.
const LIBRARIES: [&str; 3] = ["python", "node", "svix"];
const ASYMMETRIC: &str = "node";

/// The bytes 0 to 31 as a private key, and its public half.
const PRIVATE: &str = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const PUBLIC: &str = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

fn shared_key(byte: u8) -> String {
    format!("whsec_{}", STANDARD.encode([byte; 32]))
}

#[test]
fn other_peoples_libraries_verify_every_request_through_a_change_of_keys() {
    if !libraries_are_there() {
        return;
    }
    let (old, new) = (shared_key(1), shared_key(2));
    let dir = tempfile::tempdir().unwrap();
    for (name, key) in [("old", &*old), ("new", &*new), ("pair", PRIVATE)] {
        std::fs::write(dir.path().join(name), format!("{key}\n")).unwrap();
    }
    let receiver = Receiver::start(400);

    // Refused while only the old key signs; redriven when both and a pair do; the last by the new one.
    let server = serve(dir.path(), &receiver, &["old"]);
    server.send("order.created", "a", "7");
    server.wait_for_destination("wms", "a dead letter", |one| one["dead_letters"] == 1);
    assert!(server.terminate().success());
    receiver.answer(204);
    let server = serve(dir.path(), &receiver, &["old", "new", "pair"]);
    let letter = server.get("/v1/dead-letters")["items"][0]["id"].clone();
    server.post(&format!("/v1/dead-letters/{letter}/redrive"), "");
    wait_until("the redriven event", || receiver.received().len() == 2);
    assert!(server.terminate().success());
    let server = serve(dir.path(), &receiver, &["new"]);
    server.send("order.created", "b", "7");
    wait_until("the last event", || receiver.received().len() == 3);

    let received = receiver.received();
    let id = |n: usize| received[n].headers["webhook-id"].clone();
    assert_eq!(id(0), id(1), "a redrive is the same event");
    assert_ne!(id(0), id(2));
    for library in LIBRARIES {
        let with_old = received.iter().map(|one| case(&old, one));
        assert_eq!(
            verified(library, with_old),
            [true, true, false],
            "{library}"
        );
        let with_new = received.iter().map(|one| case(&new, one));
        assert_eq!(
            verified(library, with_new),
            [false, true, true],
            "{library}"
        );
        let changed = changes_of(&received[1]).map(|one| case(&old, &one));
        assert_eq!(verified(library, changed), [false; 3], "{library}");
    }
    let with_public = received.iter().map(|one| case(PUBLIC, one));
    assert_eq!(verified(ASYMMETRIC, with_public), [false, true, false]);
    let changed = changes_of(&received[1]).map(|one| case(PUBLIC, &one));
    assert_eq!(verified(ASYMMETRIC, changed), [false; 3]);

    let log = server.log.lock().unwrap();
    for key in [old, new, PRIVATE.to_owned()] {
        let (_, secret) = key.split_once('_').unwrap();
        assert!(!log.contains(secret), "a key is in the log");
    }
}

/// A server whose webhook is signed by the keys in these files.
fn serve(dir: &Path, receiver: &Receiver, keys: &[&str]) -> Server {
    let keys: Vec<_> = keys
        .iter()
        .map(|name| format!("{{ file = {name:?} }}"))
        .collect();
    let text = format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]
        signing_keys = [{}]

        [[routes]]
        to = ["wms"]
        "#,
        receiver.authority,
        keys.join(", ")
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

/// The same request with another id, another time and another body.
fn changes_of(received: &Received) -> impl Iterator<Item = Received> {
    let mut changed = [(); 3].map(|()| received.clone());
    let [id, timestamp, body] = &mut changed;
    let alter = |one: &mut Received, name: &str, change: fn(&str) -> String| {
        let value = one.headers.get_mut(name).unwrap();
        *value = change(value);
    };
    alter(id, "webhook-id", |id| format!("{id}A"));
    alter(timestamp, "webhook-timestamp", |seconds| {
        (seconds.parse::<u64>().unwrap() + 1).to_string()
    });
    body.body.push(b' ');
    changed.into_iter()
}

fn case(key: &str, received: &Received) -> Value {
    let headers: BTreeMap<_, _> = received
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("webhook-"))
        .collect();
    json!({ "key": key, "headers": headers, "body": STANDARD.encode(&received.body) })
}

/// What a library says of each request.
fn verified(library: &str, cases: impl Iterator<Item = Value>) -> Vec<bool> {
    let lines: String = cases.map(|case| format!("{case}\n")).collect();
    let mut child = Command::new("timeout")
        .arg("120")
        .arg(script())
        .arg(library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{library}: {:?}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn libraries_are_there() -> bool {
    let output = Command::new("timeout")
        .arg("300")
        .arg(script())
        .arg("available")
        .output()
        .unwrap();
    if output.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_eq!(output.status.code(), Some(ABSENT), "{why}");
    assert_ne!(
        std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").as_deref(),
        Ok("1"),
        "{why}"
    );
    println!("skipped: signatures by other libraries because {why}");
    false
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/verify/webhooks")
}
