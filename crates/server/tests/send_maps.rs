//! The shipped maps over data made by others: what they make of every record, without a server.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

#[test]
fn the_order_log_becomes_one_event_a_row_in_order() {
    let Some(data) = data("ocel") else { return };
    let events = events("ocel", &[data.join("ocel_order_simulated.csv")]);
    assert_eq!(events.len(), 22_367);
    let mut kinds = BTreeMap::new();
    for (number, event) in (1..).zip(&events) {
        assert_eq!(event["id"], format!("ocel-{number}"));
        assert_eq!(event["source"], "/ocel/order-management");
        assert!(event["time"].as_str().unwrap().ends_with('Z'));
        // Parcels begin with 66, orders with 99, items with 88.
        let prefix = &event["partitionkey"].as_str().unwrap()[..2];
        let kind = event["type"].as_str().unwrap();
        *kinds.entry(format!("{kind} {prefix}")).or_insert(0) += 1;
    }
    for (activity, prefix, count) in [
        ("confirm-order", "99", 2000),
        ("create-package", "66", 1325),
        ("failed-delivery", "66", 391),
        ("item-out-of-stock", "88", 1664),
        ("package-delivered", "66", 1325),
        ("pay-order", "99", 2000),
        ("payment-reminder", "99", 514),
        ("pick-item", "88", 8159),
        ("place-order", "99", 2000),
        ("reorder-item", "88", 1664),
        ("send-package", "66", 1325),
    ] {
        let kind = format!("com.example.oms.{activity}.v1 {prefix}");
        assert_eq!(kinds.remove(&kind), Some(count), "{kind}");
    }
    assert!(kinds.is_empty(), "{kinds:?}");
    assert_eq!(events[0]["data"]["ocel:eid"], "1.0");
    assert_eq!(events[0]["data"]["price"], "524.96");
}

#[test]
fn webhook_payloads_keep_every_byte_and_take_their_kind_from_the_folder() {
    let Some(data) = data("github-webhooks") else {
        return;
    };
    let events = events("github", std::slice::from_ref(&data));
    assert_eq!(events.len(), 270);
    assert_same_bytes(&events, &[data]);
    let kinds: BTreeSet<_> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.len(), 60);
    assert!(kinds.contains("com.github.ping"));
    // 38 payloads are about an organization or an app, not about a repository.
    let keyed = events
        .iter()
        .filter(|event| event["partitionkey"].is_string());
    assert_eq!(keyed.count(), 270 - 38);
}

#[test]
fn capture_documents_and_events_keep_every_byte() {
    let Some(data) = data("epcis") else { return };
    let folders = ["Capture/Documents", "Capture/Events"].map(|folder| data.join(folder));
    let events = events("epcis", &folders);
    assert_eq!(events.len(), 43);
    assert_same_bytes(&events, &folders);
    let documents = events
        .iter()
        .filter(|e| e["type"] == "org.gs1.epcis.EPCISDocument");
    assert_eq!(documents.count(), 38);
}

#[test]
fn shop_and_carrier_payloads_become_events() {
    let (Some(shopify), Some(easypost)) = (data("shopify"), data("easypost")) else {
        return;
    };
    let shop = events("shopify", &[shopify]);
    assert_eq!(shop.len(), 6);
    assert!(
        shop.iter()
            .any(|event| event["type"] == "com.shopify.refund")
    );
    let carrier = events("easypost", &[easypost]);
    assert_eq!(carrier.len(), 5);
    assert!(
        carrier
            .iter()
            .any(|event| event["type"] == "com.easypost.tracker.updated")
    );
}

/// A folder of data made by others, or words about its absence. No package brings it, so its absence
/// fails no run.
fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TEST_DATA_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: the map of {name} because TEST_DATA_DIR has no such folder");
    None
}

/// What `send --dry-run` prints.
fn events(map: &str, paths: &[PathBuf]) -> Vec<Value> {
    let maps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/maps");
    let output = Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(["send", "--dry-run", "--map"])
        .arg(maps.join(map).with_extension("toml"))
        .args(paths)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Every file's bytes are the data of an event whose id is their hash.
fn assert_same_bytes(events: &[Value], folders: &[PathBuf]) {
    let sent: BTreeMap<&str, Vec<u8>> = events
        .iter()
        .map(|event| {
            let data = STANDARD.decode(event["data_base64"].as_str().unwrap());
            (event["id"].as_str().unwrap(), data.unwrap())
        })
        .collect();
    let mut files = Vec::new();
    for folder in folders {
        walk(folder, &mut files);
    }
    assert_eq!(files.len(), events.len());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let hash: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert!(sent[hash.as_str()] == bytes, "{}", file.display());
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}
