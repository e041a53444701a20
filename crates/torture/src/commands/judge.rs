//! What became of everything: held against the target's own count and the exported ledger.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::people::{People, Proposed};
use super::target::Target;
use crate::black_box::server::{Server, binary};

/// Judges; what there is to say of it. The server has stopped then.
pub(super) fn judge(
    people: &People,
    server: &mut Server,
    target: &Target,
    proposed: &Proposed,
    out: &Path,
) -> String {
    let mut states: BTreeMap<&str, String> = BTreeMap::new();
    for (_, id) in proposed {
        let Some(command) = people.see(&format!("/v1/commands/{id}")) else {
            server.fail(&format!("lost command {id}"));
        };
        states.insert(id, command["state"].as_str().unwrap().to_owned());
    }
    let executed = target.executed();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, state) in &states {
        let times = executed.get(*id).copied().unwrap_or(0);
        let expected = match state.as_str() {
            "succeeded" => 1,
            "cancelled" => 0,
            other => server.fail(&format!(
                "left command {id} {other}, executed {times} times"
            )),
        };
        if times != expected {
            server.fail(&format!(
                "had command {id}, which is {state}, executed {times} times"
            ));
        }
        *counts.entry(state.as_str()).or_default() += 1;
    }
    let known = |id: &str| states.contains_key(id);
    if let Some(stranger) = executed.keys().find(|id| !known(id)) {
        server.fail(&format!("executed {stranger}, which nobody proposed"));
    }
    let (status, _) = server.terminate();
    if !status.success() {
        server.fail(&format!("does not stop as it should: {status}"));
    }
    run(
        server,
        &["ledger", "export", "--data"],
        &[&server.data(), Path::new("--out"), out],
    );
    run(server, &["ledger", "verify"], &[out]);
    let records = std::fs::read_to_string(out.join("records.jsonl")).unwrap();
    let told = judge_records(server, &records, &states);
    format!(
        "{counts:?}, {told} records; the target: {}",
        target.account()
    )
}

/// Every state that a command has is the last one in the ledger, each step begins where the one before ended, and
/// every attempt has an end.
fn judge_records(server: &Server, records: &str, states: &BTreeMap<&str, String>) -> usize {
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let mut open: BTreeMap<(String, u64), ()> = BTreeMap::new();
    let mut told = 0;
    for line in records.lines() {
        told += 1;
        let record: Value = serde_json::from_str(line).unwrap();
        let stream = record["stream"].as_str().unwrap();
        let Some(id) = stream.strip_prefix("cmd:").map(str::to_owned) else {
            continue;
        };
        let body = &record["body"];
        match record["type"].as_str().unwrap() {
            "command.accepted" => {
                last.insert(id, "accepted".to_owned());
            }
            "command.state" => {
                let (from, to) = (body["from"].as_str().unwrap(), body["to"].as_str().unwrap());
                let before = last.insert(id.clone(), to.to_owned());
                if before.as_deref() != Some(from) {
                    server.fail(&format!("has {id} go from {from} to {to} after {before:?}"));
                }
            }
            "attempt.started" => {
                open.insert((id, body["n"].as_u64().unwrap()), ());
            }
            "attempt.finished" => {
                let attempt = (id, body["n"].as_u64().unwrap());
                if open.remove(&attempt).is_none() {
                    server.fail(&format!(
                        "ended attempt {attempt:?}, which it had not begun"
                    ));
                }
            }
            _ => {}
        }
    }
    for (id, state) in states {
        if last.get(*id) != Some(state) {
            let known = last.get(*id);
            server.fail(&format!(
                "says that {id} is {state}, and its ledger {known:?}"
            ));
        }
    }
    if let Some((id, n)) = open.keys().next() {
        server.fail(&format!("has attempt {n} at {id} without an end"));
    }
    told
}

fn run(server: &Server, verb: &[&str], paths: &[&Path]) {
    let output = Command::new(binary())
        .args(verb)
        .args(paths)
        .output()
        .unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let found = String::from_utf8_lossy(&output.stdout);
        server.fail(&format!("{verb:?}: {found}{said}"));
    }
}
