//! What the product's sources name for the harness: where it may be told to die, and the faults it can be
//! planted with. Read from the sources, so that no list has to follow them by hand.

#![expect(
    clippy::unwrap_used,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every point at which a process may be told to die (`failpoint!`), in order.
pub fn points() -> Vec<String> {
    named_by("failpoint!(\"")
}

/// Every fault that can be planted (`planted!`), in order.
pub fn faults() -> Vec<String> {
    named_by("planted!(\"")
}

/// The names that follow this text in the sources of the product.
fn named_by(text: &str) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = BTreeSet::new();
    for part in ["store/src", "server/src"] {
        for file in rust_files(&crates.join(part)) {
            let source = std::fs::read_to_string(&file).unwrap();
            let after = source.split(text).skip(1);
            names.extend(after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    names.into_iter().collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => rust_files(&path),
        false if path.extension().is_some_and(|end| end == "rs") => vec![path],
        false => Vec::new(),
    };
    entries.map(|entry| entry.path()).flat_map(below).collect()
}
