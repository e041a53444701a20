//! Every type of record that there is: the page of the format names those that the server writes, and no others, and
//! nothing that has to be on record is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What has to be on record, whatever else is. `checkpoint.cosigned` is not: the server asks no witness (see the page).
const REQUIRED: &str = "
    command.accepted command.state command.cancelled command.expired command.superseded
    policy.evaluated policy.published
    approval.requested approval.presented approval.granted approval.denied approval.edited approval.expired
    approval.cancelled approval.invalidated approval.consumed
    attempt.started attempt.finished reconcile.result
    compensation.planned compensation.started compensation.finished
    dlq.entered dlq.assigned dlq.resolved
    destination.paused destination.resumed destination.disabled
    killswitch.set killswitch.cleared key.added key.retired redaction.applied export.created";

fn in_workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Sources of the product below a folder, without their tests.
fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && !matches!(name, "tests.rs" | "histories.rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push_str(text.split("#[cfg(test)]").next().unwrap());
        }
    }
}

/// Names such as `command.accepted` of the areas that records have, between these two marks.
fn kinds(text: &str, mark: char) -> BTreeSet<String> {
    let areas: BTreeSet<&str> = REQUIRED
        .split_whitespace()
        .chain(["retention.applied"])
        .filter_map(|kind| kind.split('.').next())
        .collect();
    let is_word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let named = text.split(mark).filter(|part| {
        part.split_once('.')
            .is_some_and(|(area, what)| areas.contains(area) && is_word(what))
    });
    named.map(str::to_owned).collect()
}

#[test]
fn the_page_names_every_type_that_is_written_and_all_that_has_to_be_is() {
    let page = fs::read_to_string(in_workspace("docs/ledger-format.md")).unwrap();
    let mut text = String::new();
    for folder in ["crates/server/src/command", "crates/model/src/approval"] {
        sources(&in_workspace(folder), &mut text);
    }
    let mut written = kinds(&text, '"');
    // A file, an entry of the audit trail and a table of the configuration are no records.
    for other in ["ledger.key", "destination.running", "ledger.origin"] {
        written.remove(other);
    }
    let documented = kinds(&page, '`');
    assert_eq!(written, documented);
    let required: BTreeSet<String> = REQUIRED.split_whitespace().map(str::to_owned).collect();
    let missing: Vec<_> = required.difference(&written).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
