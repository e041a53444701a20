//! What became of everything: held against the target's own count and the exported ledger.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PATIENCE;
use super::people::{Erased, People, Proposed};
use super::target::Target;
use crate::black_box::server::{Server, binary};

/// Where the second place for checkpoints is, beside the server.
pub(super) const SECOND_PLACE: &str = "second";

/// Where the ledger is exported to, beside the server.
const EXPORT: &str = "ledger";

/// Most checkpoints that an export is held against: each reads the whole of it.
const CHECKPOINTS_MAX: usize = 4;

/// Judges; what there is to say of it. The server has stopped then. `beside` is the folder with the second place, into
/// which the ledger is exported.
pub(super) fn judge(
    people: &People,
    server: &mut Server,
    target: &Target,
    proposed: &Proposed,
    beside: &Path,
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
    await_second_place(server, beside);
    stop(server);
    let out = beside.join(EXPORT);
    export(server, &out);
    verify_against_second_place(server, beside, &out);
    let records = std::fs::read_to_string(out.join("records.jsonl")).unwrap();
    let told = judge_records(server, &records, &states);
    format!(
        "{counts:?}, {told} records; the target: {}",
        target.account()
    )
}

/// Nothing that was erased, by the server's own answer, is in the export; how much that was.
pub(super) fn judge_erasures(server: &Server, erased: &Erased, beside: &Path) -> usize {
    let payloads = beside.join(EXPORT).join("payloads");
    for commitment in erased {
        if payloads.join(commitment).exists() {
            server.fail(&format!("has {commitment} still, which it had erased"));
        }
    }
    erased.len()
}

/// Records were removed for their age, and what is left continues what was exported before. The server has stopped then.
pub(super) fn judge_remainder(server: &mut Server, beside: &Path) {
    stop(server);
    let (before, out) = (beside.join(EXPORT), beside.join("remainder"));
    export(server, &out);
    verify_against_second_place(server, beside, &out);
    verify_against(server, &before.join("checkpoint"), &out);
    let keys = std::fs::read_to_string(out.join("keys.json")).unwrap();
    let keys: Value = serde_json::from_str(&keys).unwrap();
    if keys["first"].as_u64().unwrap() == 0 {
        server.fail("removed no record, however old");
    }
}

fn stop(server: &mut Server) {
    let (status, _) = server.terminate();
    if !status.success() {
        server.fail(&format!("does not stop as it should: {status}"));
    }
}

/// Waits until the second place has a checkpoint: one that is due is put there a little later.
fn await_second_place(server: &Server, beside: &Path) {
    let begun = Instant::now();
    while checkpoints(beside).is_empty() {
        if begun.elapsed() > PATIENCE {
            server.fail("put no checkpoint into its second place");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The export continues the checkpoints that were put into the second place, of which some are taken from the last one
/// back.
fn verify_against_second_place(server: &Server, beside: &Path, out: &Path) {
    let checkpoints = checkpoints(beside);
    let step = checkpoints.len().div_ceil(CHECKPOINTS_MAX);
    for checkpoint in checkpoints.iter().rev().step_by(step) {
        verify_against(server, checkpoint, out);
    }
}

/// What lies in the second place, oldest first, without what was being written there when the server died.
fn checkpoints(beside: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(beside.join(SECOND_PLACE)) else {
        return Vec::new();
    };
    let mut checkpoints: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    checkpoints.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        !name.to_string_lossy().starts_with('.')
    });
    checkpoints.sort();
    checkpoints
}

fn export(server: &Server, out: &Path) {
    let paths = [&server.data(), Path::new("--out"), out];
    run(server, &["ledger", "export", "--data"], &paths);
}

fn verify_against(server: &Server, checkpoint: &Path, out: &Path) {
    run(
        server,
        &["ledger", "verify", "--checkpoint"],
        &[checkpoint, out],
    );
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
