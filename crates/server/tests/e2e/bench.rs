//! `wayhold bench`: its report has every part, and it leaves the disk as it found it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::support::server::{Server, run, signal, stderr, stdout, wayhold};
use crate::support::wait_for;

/// Every file below a folder with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    files
}

/// Whether there is a file of this name in a folder of a step; everything may vanish meanwhile.
fn has_in_a_step(folder: &Path, name: &str) -> bool {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let steps = entries(folder).flat_map(|measuring| entries(&measuring.path()));
    let mut files =
        steps.flat_map(|step| [step.path().join(name), step.path().join("data").join(name)]);
    files.any(|file| file.exists())
}

/// Processes that work in a folder or below it.
fn working_in(folder: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path().join("cwd")).ok())
        .filter(|cwd| cwd.starts_with(folder))
        .collect()
}

/// Every number of the report by where it is, of lists in their first element.
const NUMBERS: &[(&str, &[&str])] = &[
    (
        "",
        &["seconds", "data_bytes_per_event", "settled_bytes_per_event"],
    ),
    ("/machine", &["cores", "memory_bytes"]),
    (
        "/sync/0",
        &["bytes", "count", "mean_ms", "p50_ms", "p99_ms", "max_ms"],
    ),
    (
        "/accept/0",
        &[
            "callers",
            "events_per_request",
            "events",
            "events_per_second",
            "p50_ms",
            "p99_ms",
            "refused",
            "events_per_commit",
            "commit_ms",
            "disk_bytes_per_event",
            "server_cpu_us_per_event",
            "generator_cpu_us_per_event",
        ],
    ),
    (
        "/backlog",
        &[
            "events",
            "empty_bytes",
            "filled_bytes",
            "drained_bytes",
            "peak_bytes",
            "drained",
            "drained_per_second",
            "cpu_us_per_delivery",
        ],
    ),
    ("/lanes/0", &["lanes", "bytes"]),
    (
        "/sizing",
        &["index_bytes_per_event", "window_seconds", "window_ids"],
    ),
    (
        "/sizing/disk/0",
        &[
            "events_per_second",
            "retained_bytes",
            "index_bytes",
            "in_motion_bytes",
            "kept_free_bytes",
            "total_bytes",
            "away_hour_bytes",
            "whole_window_ids",
            "whole_window_disk_bytes",
            "whole_window_memory_bytes",
        ],
    ),
    (
        "/sizing/memory/0",
        &[
            "lanes",
            "server_bytes",
            "queue_bytes",
            "window_bytes",
            "total_bytes",
        ],
    ),
    (
        "/sizing/rate/0",
        &[
            "sync_ms",
            "callers",
            "events_per_request",
            "events_per_second",
        ],
    ),
];

#[test]
fn the_report_has_every_part_and_a_store_beside_it_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--data", "."]);
    server.send("order.created", "a", "7");
    assert!(server.terminate().success());
    let before = contents(dir.path());
    assert!(before.contains_key(&dir.path().join("catalog.db")));

    let arguments = ["bench", "--json", "--data", ".", "--time", "10s"];
    let output = run(
        dir.path(),
        &[&arguments[..], &["--connections", "1,4"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(contents(dir.path()), before);

    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (place, names) in NUMBERS {
        let object = report.pointer(place).unwrap();
        for name in *names {
            assert!(object[name].is_number(), "{name} in {report}");
        }
    }
    assert!(report["warnings"].is_array());
    assert!(report["sizing"]["rate"][0]["is_disk"].is_boolean());
    let kinds = list(&report["sync"], |one| {
        (one["write"].clone(), one["bytes"].clone())
    });
    let expected = [
        ("append", 4096),
        ("append", 65536),
        ("overwrite", 4096),
        ("overwrite", 65536),
    ];
    assert_eq!(
        kinds,
        expected.map(|(write, bytes)| (write.into(), bytes.into()))
    );
    let loads = list(&report["accept"], |one| {
        assert!(one["events_per_second"].as_f64().unwrap() > 0.0, "{one}");
        assert!(one["events_per_commit"].as_f64().unwrap() >= 1.0, "{one}");
        assert!(
            one["disk_bytes_per_event"].as_f64().unwrap() > 1024.0,
            "{one}"
        );
        (one["callers"].clone(), one["events_per_request"].clone())
    });
    let expected = [(1, 1), (4, 1), (64, 100)];
    assert_eq!(
        loads,
        expected.map(|(callers, events)| (callers.into(), events.into()))
    );
    let lanes = list(&report["lanes"], |one| one["lanes"].clone());
    assert_eq!(lanes, [1, 50]);
}

fn list<T>(value: &Value, take: impl FnMut(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(take).collect()
}

#[test]
fn a_person_gets_a_table_for_each_part() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(
        dir.path(),
        &["bench", "--time", "10s", "--connections", "2"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for words in [
        "append",
        "CALLERS",
        "Drain",
        "waiting",
        "50 destinations",
        "window_ids",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    // Without a data directory the disk of the place where it would be is measured.
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_interruption_leaves_neither_files_nor_processes() {
    // While files are synced, and while a server runs.
    for file in ["sync", "LOCK"] {
        let dir = tempfile::tempdir().unwrap();
        let bench = wayhold(dir.path())
            .args(["bench", "--data", ".", "--time", "20s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&format!("{file} is there"), || {
            has_in_a_step(dir.path(), file).then_some(())
        });
        signal(bench.id(), "INT");
        let output = bench.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.contains("stopped by SIGINT"), "{said}");
        assert_eq!(stdout(&output), "");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(working_in(dir.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let many = "1,".repeat(16) + "1";
    for (arguments, words) in [
        (vec!["--time", "5s"], "10s to 1h"),
        (vec!["--time", "soon"], "duration"),
        (vec!["--connections", "0"], "1..=1000"),
        (vec!["--connections", "1001"], "1..=1000"),
        (vec!["--connections", &many], "at most 16"),
        (vec!["--data", "absent"], "--data"),
        (vec!["--config", "absent.toml"], "absent.toml"),
        (
            vec!["--data", ".", "--config", "x.toml"],
            "cannot be used with",
        ),
    ] {
        let output = run(dir.path(), &[&["bench"], &arguments[..]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
