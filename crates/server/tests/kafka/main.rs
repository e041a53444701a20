//! Files of other people, sent by map, as they arrive in a real Kafka: read back by a client of another
//! language (`read_topic.py`, kafka-python), which finds every id, order per key, the attributes, and
//! the same bytes.

#![cfg(feature = "kafka")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "shared with other suites, which use more of it")]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use support::server::{Server, run, stderr};
use support::wait_until;

#[test]
fn an_independent_client_finds_every_event_in_order_and_unchanged() {
    let Some(around) = Around::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let topics = ["ocel", "github", "epcis"].map(|name| format!("{name}-{}", std::process::id()));
    let config = folder.path().join("wayhold.toml");
    std::fs::write(&config, configuration(&around.kafka, &topics)).unwrap();
    let server = Server::start(folder.path(), &["--config", config.to_str().unwrap()]);

    let data = &around.data;
    let log = data.join("ocel/ocel_order_simulated.csv");
    let hooks = vec![data.join("github-webhooks")];
    let captures = vec![
        data.join("epcis/Capture/Documents"),
        data.join("epcis/Capture/Events"),
    ];
    send(&server, folder.path(), "ocel", std::slice::from_ref(&log));
    send(&server, folder.path(), "github", &hooks);
    send(&server, folder.path(), "epcis", &captures);
    wait_until("all events are delivered", || {
        let status = server.get("/v1/status");
        let destinations = status["destinations"].as_array().unwrap();
        destinations.iter().all(|d| d["accounting"]["pending"] == 0)
    });

    let [orders, pings, documents] = topics.map(|topic| around.read(&topic));
    assert_is_the_order_log(&orders, &log);
    assert_are_the_files(&pings, &hooks, 270);
    assert_are_the_files(&documents, &captures, 43);
    for record in &pings {
        assert!(record.header("ce_type").starts_with("com.github."));
    }
}

/// What the test needs around it.
struct Around {
    kafka: String,
    python: String,
    data: PathBuf,
}

/// A record as the independent client saw it.
struct Record {
    key: Option<String>,
    headers: Value,
    value: Vec<u8>,
}

impl Record {
    fn header(&self, name: &str) -> &str {
        self.headers[name].as_str().unwrap_or_default()
    }
}

impl Around {
    fn find() -> Option<Self> {
        let required = std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").as_deref() == Ok("1");
        let root = std::env::var_os("TEST_DATA_DIR").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
            PathBuf::from,
        );
        if !root.join("ocel").is_dir() {
            println!("skipped: arrival in Kafka because TEST_DATA_DIR is absent");
            return None;
        }
        let around = [
            ("WAYHOLD_TEST_KAFKA", "kafka"),
            ("WAYHOLD_TEST_PYTHON", "python"),
        ];
        let found = around.map(|(name, what)| {
            let value = std::env::var(name).ok();
            if value.is_none() {
                println!("skipped: arrival in Kafka because {name} names no {what}");
                assert!(!required, "{name} is not set");
            }
            value
        });
        let [Some(kafka), Some(python)] = found else {
            return None;
        };
        let data = root;
        Some(Self {
            kafka,
            python,
            data,
        })
    }

    /// Every record of a topic, partition by partition in the order of offsets.
    fn read(&self, topic: &str) -> Vec<Record> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kafka/read_topic.py");
        let output = Command::new("timeout")
            .args(["120", &self.python])
            .arg(script)
            .args([&self.kafka, topic])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .map(|line| {
                let record: Value = serde_json::from_str(line).unwrap();
                Record {
                    key: record["key"].as_str().map(str::to_owned),
                    headers: record["headers"].clone(),
                    value: STANDARD.decode(record["value"].as_str().unwrap()).unwrap(),
                }
            })
            .collect()
    }
}

fn configuration(kafka: &str, topics: &[String; 3]) -> String {
    let sources = ["/ocel/", "https://github.com", "/epcis/"];
    topics.iter().zip(sources).map(|(topic, source)| {
        let name = topic.split('-').next().unwrap_or_default();
        format!(
            "[destinations.{name}]\nkind = \"kafka\"\nbootstrap_servers = \"{kafka}\"\ntopic = \"{topic}\"\n\
             [[routes]]\nwhen = 'source.startsWith(\"{source}\")'\nto = [\"{name}\"]\n"
        )
    }).collect()
}

fn send(server: &Server, folder: &Path, map: &str, files: &[PathBuf]) {
    let maps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/maps");
    let map = maps.join(map).with_extension("toml");
    let url = server.url();
    let mut arguments = vec!["send", "--server", &url, "--map", map.to_str().unwrap()];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let output = run(folder, &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
}

fn assert_is_the_order_log(records: &[Record], log: &Path) {
    let mut rows = BTreeMap::new();
    let mut reader = csv::Reader::from_path(log).unwrap();
    let header = reader.headers().unwrap().clone();
    for (number, row) in (1_u32..).zip(reader.records()) {
        rows.insert(number, row.unwrap());
    }
    let mut last_of_key = BTreeMap::new();
    for record in records {
        let number: u32 = record
            .header("ce_id")
            .trim_start_matches("ocel-")
            .parse()
            .unwrap();
        assert_eq!(record.header("ce_source"), "/ocel/order-management");
        assert_eq!(
            record.header("ce_partitionkey"),
            record.key.as_deref().unwrap()
        );
        assert_eq!(record.header("content-type"), "application/json");
        let value: BTreeMap<String, String> = serde_json::from_slice(&record.value).unwrap();
        let row = rows.remove(&number).unwrap();
        for (column, cell) in header.iter().zip(&row) {
            assert_eq!(value[column], cell);
        }
        let last = last_of_key.insert(record.key.clone(), number);
        assert!(last < Some(number), "{number} after {last:?}");
    }
    assert!(rows.is_empty(), "{} rows never arrived", rows.len());
}

fn assert_are_the_files(records: &[Record], folders: &[PathBuf], count: usize) {
    let mut files = BTreeMap::new();
    for folder in folders {
        walk(folder, &mut files);
    }
    assert_eq!(files.len(), count);
    for record in records {
        let file = files.remove(record.header("ce_id")).unwrap();
        assert!(record.value == file, "{}", record.header("ce_id"));
        assert_eq!(record.header("ce_specversion"), "1.0");
        assert_eq!(record.header("content-type"), "application/json");
    }
    assert!(files.is_empty(), "{} files never arrived", files.len());
}

/// Every file below, by the SHA-256 of its bytes.
fn walk(folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else {
            let bytes = std::fs::read(path).unwrap();
            let digest = Sha256::digest(&bytes);
            files.insert(
                digest.iter().map(|byte| format!("{byte:02x}")).collect(),
                bytes,
            );
        }
    }
}
