//! A ledger from its first record on: key, checkpoints, proofs, erasure, export of a stopped and of a running store, and another
//! key.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use wayhold::clock::SystemClock;
use wayhold::command::verify::{Trusted, verify};
use wayhold_model::ledger::tlog_proof::TlogProof;
use wayhold_model::ledger::{Actor, Draft, Trace};
use wayhold_store::commands::{Payload, random_salt};
use wayhold_store::{Options, Store};

use crate::support::server::{Server, run, stderr, stdout};

/// Appends records with a payload each to the ledger of a stopped store; the first commitment.
fn write(data: &Path, count: u64) -> String {
    let (store, _) = Store::open(data, Options::default(), Arc::new(SystemClock)).unwrap();
    let commands = store.commands().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut first = None;
    for n in 0..count {
        let payload = Payload::new(random_salt().unwrap(), format!("secret {n}").into_bytes());
        first.get_or_insert(payload.commitment.to_string());
        let body = json!({ "n": n, "input": payload.reference() });
        let (actor, trace) = (Actor::system("test"), Trace::default());
        let stream = format!("cmd:{}", n % 3);
        let draft = Draft::new(stream, "command.accepted", &actor, &trace, &body).unwrap();
        let appended = commands.change(move |change| change.append_with(&draft, &[payload]));
        runtime.block_on(appended).unwrap();
    }
    store.stop();
    first.unwrap()
}

/// Exports; what was said. No server is where it is asked to put it on record.
fn export(folder: &Path, out: &str) -> String {
    export_of("http://127.0.0.1:1", folder, out)
}

fn export_of(server: &str, folder: &Path, out: &str) -> String {
    let arguments = [
        "ledger", "export", "--server", server, "--data", "data", "--out", out,
    ];
    let exported = run(folder, &arguments);
    assert_eq!(exported.status.code(), Some(0), "{}", stderr(&exported));
    stdout(&exported)
}

/// Every file below a directory, with its bytes and the time of its last change.
fn trace(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let changed = fs::metadata(&path).unwrap().modified().unwrap();
                found.insert(path.clone(), (fs::read(&path).unwrap(), changed));
            }
        }
    }
    found
}

/// The records of exports that an export holds.
fn exports_in(export: &Path) -> Vec<Value> {
    let records = fs::read_to_string(export.join("records.jsonl")).unwrap();
    let records = records
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    records
        .filter(|record| record["type"] == "export.created")
        .collect()
}

#[test]
fn a_ledger_is_signed_proven_erased_from_and_exported_while_it_runs_and_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let commitment = write(&data, 5);

    // Nothing has signed yet, and an export says what to do.
    let folder = folder.path();
    let refused = run(
        folder,
        &["ledger", "export", "--data", "data", "--out", "none"],
    );
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("start the server"),
        "{}",
        stderr(&refused)
    );

    let server = Server::start(folder, &[]);
    let key = data.join("ledger.key");
    assert_eq!(
        fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let records = server.get("/v1/ledger?limit=4");
    assert_eq!(records["items"].as_array().unwrap().len(), 4);
    // Others add records of theirs, so what is looked for is looked for by its type.
    let rest = server.get("/v1/ledger?limit=100&after=4");
    let kinds: Vec<_> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["type"])
        .collect();
    assert_eq!(kinds[0], "command.accepted");
    assert!(kinds.contains(&&json!("key.added")), "{kinds:?}");
    let of_stream = server.get("/v1/ledger?stream=cmd:1");
    assert_eq!(of_stream["items"][1]["idx"], 4);

    let erased = erase(&server, &commitment);
    show(folder, &server);

    // Beside the running server, which puts it on record first, and then of the stopped store, which shows no trace of it.
    let words = export_of(&server.url(), folder, "running");
    let running = folder.join("running");
    let verified = verify(&running, &Trusted::default()).unwrap();
    assert_eq!((verified.payloads, verified.erased), (4, 1));
    let size = verified.size;
    assert!(size > erased);
    let exports = exports_in(&running);
    assert_eq!(exports.len(), 1);
    assert_eq!(exports[0]["body"]["size"], exports[0]["idx"]);
    assert_eq!(exports[0]["stream"], "ledger:exports");
    let told = format!("record {} says that it was made", exports[0]["idx"]);
    assert!(words.contains(&told), "{words}");
    let stranger = json!({ "key": "ledger.example/demo+7b8488d1+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4" });
    let stranger = server.ask(
        "POST",
        "/v1/ledger/exports",
        &[],
        stranger.to_string().as_bytes(),
    );
    assert_eq!(stranger.status, 409, "{}", stranger.text());
    follow_destinations(&server);
    assert!(server.terminate().success());
    let before = trace(&data);
    let words = export(folder, "stopped");
    assert!(
        words.contains("no record says that it was made: http://127.0.0.1:1"),
        "{words}"
    );
    let stopped = folder.join("stopped");
    assert!(trace(&data) == before, "the export left a trace");
    let outside = fs::read(running.join("checkpoint")).unwrap();
    let trusted = Trusted {
        checkpoint: Some(outside),
        ..Trusted::default()
    };
    assert_eq!(verify(&stopped, &trusted).unwrap().outside, Some(size));

    // The last checkpoint was signed at the stop, so proofs are there at once after the next start.
    let server = Server::start(folder, &[]);
    let status = server.get("/v1/status");
    assert!(
        status["ledger"]["records"].as_u64() > Some(size),
        "{status}"
    );
    assert!(status["ledger"]["bytes"].as_u64() > Some(0), "{status}");
    assert!(
        status["ledger"]["checkpoint"]["size"].as_u64() >= Some(size),
        "{status}"
    );
    assert_eq!(status["ledger"]["anchors"], json!([]));
    prove(&server, &stopped, size);
    assert!(server.terminate().success());

    rotate(folder, &trusted, size);
}

/// Who stops a destination and lets it go on is on record, once for each time.
fn follow_destinations(server: &Server) {
    let body = json!({ "reason": "maintenance" }).to_string();
    let mut expected = Vec::new();
    for (verb, kind) in [
        ("pause", "destination.paused"),
        ("resume", "destination.resumed"),
    ] {
        server.post(&format!("/v1/destinations/delivered/{verb}"), &body);
        expected.push(kind);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let records = server.get("/v1/ledger?stream=dest:delivered");
            let records = records["items"].as_array().unwrap();
            let kinds: Vec<_> = records.iter().map(|record| &record["type"]).collect();
            if kinds == expected {
                assert_eq!(records[0]["body"]["reason"], "maintenance");
                break;
            }
            assert!(Instant::now() < deadline, "{kinds:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A record's payload is erased, once, and the record that says so lies beside it; its place.
fn erase(server: &Server, commitment: &str) -> u64 {
    let body = json!({ "commit": commitment, "reason": "asked for", "legal_basis": "Art. 17" });
    let erased = server.post("/v1/ledger/0/erase", &body.to_string());
    let erased = erased["idx"].as_u64().unwrap();
    let record = server.get(&format!("/v1/ledger/{erased}"));
    assert_eq!(record["record"]["type"], "redaction.applied");
    assert_eq!(record["record"]["stream"], "cmd:0");
    let again = server.ask(
        "POST",
        "/v1/ledger/0/erase",
        &[],
        body.to_string().as_bytes(),
    );
    assert_eq!(again.status, 404, "{}", again.text());
    assert_eq!(server.get("/v1/ledger/0")["payloads"], json!([]));
    assert_eq!(
        server.get("/v1/ledger/1")["payloads"][0]["text"],
        "secret 1"
    );
    erased
}

/// One page about a command, with what is still held.
fn show(folder: &Path, server: &Server) {
    let arguments = [
        "ledger",
        "show",
        "--server",
        &server.url(),
        "--command",
        "1",
        "--evidence",
    ];
    let page = run(folder, &arguments);
    assert!(
        stdout(&page).contains("input: secret 1"),
        "{}",
        stdout(&page) + &stderr(&page)
    );
    let page = run(folder, &[&arguments[..], &["--html"]].concat());
    assert!(
        stdout(&page).contains("<td>secret 1</td>"),
        "{}",
        stdout(&page)
    );
    let unknown = server.ask("GET", "/v1/commands/9/evidence", &[], b"");
    assert_eq!(unknown.status, 404);
}

/// A record is proven by what a stopped store exported, and another is not by the same proof.
fn prove(server: &Server, stopped: &Path, size: u64) {
    let proof = server.ask("GET", "/v1/ledger/3/proof", &[], b"");
    let proof: TlogProof = proof.text().parse().unwrap();
    let lines = fs::read_to_string(stopped.join("records.jsonl")).unwrap();
    let keys = fs::read_to_string(stopped.join("keys.json")).unwrap();
    let keys: wayhold_model::ledger::export::Keys = keys.parse().unwrap();
    let record = lines.lines().nth(3).unwrap();
    let head = proof.check(record.as_bytes(), &keys.keys).unwrap().head;
    assert!(head.size >= size);
    assert!(
        proof
            .check(lines.lines().nth(2).unwrap().as_bytes(), &keys.keys)
            .is_err()
    );
    // As a person asks, with the key and the checkpoint that they kept.
    let folder = stopped.parent().unwrap();
    let url = server.url();
    let kept = stopped.join("checkpoint");
    let key = keys.keys[0].to_string();
    let ask = |more: &[&str]| {
        run(
            folder,
            &[&["ledger", "prove", "--server", &url][..], more].concat(),
        )
    };
    let told = ask(&["3", "--key", &key]);
    assert!(
        stdout(&told).starts_with("c2sp.org/tlog-proof@v1\nindex 3\n"),
        "{}",
        stderr(&told)
    );
    let told = ask(&["--since", kept.to_str().unwrap()]);
    assert!(stdout(&told).contains("continue the"), "{}", stderr(&told));
    let stranger = "ledger.example/demo+7b8488d1+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
    assert_eq!(ask(&["3", "--key", stranger]).status.code(), Some(1));
    let other = folder.join("forged");
    let forged = fs::read_to_string(&kept).unwrap();
    let covered = forged.lines().nth(1).unwrap();
    let forged = forged.replacen(&format!("\n{covered}\n"), "\n1\n", 1);
    fs::write(&other, forged).unwrap();
    assert!(!ask(&["--since", other.to_str().unwrap()]).status.success());
    let consistency = server.get("/v1/ledger/consistency?old=3&new=6");
    assert_eq!(consistency["hashes"].as_array().unwrap().len(), 4);
}

/// Without its key the ledger begins another one, and the records say so.
fn rotate(folder: &Path, trusted: &Trusted, size: u64) {
    let key = folder.join("data/ledger.key");
    fs::rename(&key, folder.join("old.key")).unwrap();
    let server = Server::start(folder, &[]);
    let keys = server.get("/v1/ledger/keys");
    let retired: Vec<&Value> = keys["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| &key["retired"])
        .collect();
    assert_eq!(retired, [&json!(true), &json!(false)]);
    assert!(server.terminate().success());
    export(folder, "rotated");
    let verified = verify(&folder.join("rotated"), trusted).unwrap();
    assert!(verified.size > size && verified.outside == Some(size));

    // The old key signs no more.
    fs::rename(folder.join("old.key"), &key).unwrap();
    let refused = run(folder, &["serve", "--listen", "127.0.0.1:0"]);
    let words = stderr(&refused) + &stdout(&refused);
    assert!(
        !refused.status.success() && words.contains("retired"),
        "{words}"
    );
}
