//! Nothing of the harness is shipped: the binary as it is built by default holds no name of a point where it may
//! be told to die, and does not depend on what makes them work.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use wayhold_torture::black_box::server::binary;
use wayhold_torture::sources;

/// Which of these texts a file holds.
fn found_in(file: &Path, texts: &[String]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("texts");
    std::fs::write(&list, texts.join("\n")).unwrap();
    let found = Command::new("grep")
        .args(["--text", "--only-matching", "--fixed-strings", "--file"])
        .args([&list, file])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    found.lines().map(str::to_owned).collect()
}

#[test]
fn the_binary_holds_no_place_where_it_may_be_told_to_die() {
    let mut texts = sources::points();
    assert!(texts.len() >= 40, "{} points", texts.len());
    texts.extend(sources::faults());
    let variables = [
        "WAYHOLD_FAILPOINT",
        "WAYHOLD_PLANTED",
        "WAYHOLD_LEDGER_AGED",
    ];
    texts.extend(variables.map(str::to_owned));
    assert_eq!(found_in(binary(), &texts), Vec::<String>::new());
    // What is there is found.
    let there = ["/v1/dead-letters/{id}/redrive".to_owned()];
    assert!(!found_in(binary(), &there).is_empty());
}

#[test]
fn the_binary_does_not_depend_on_what_makes_points_work() {
    let depends = |more: &[&str]| {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--prefix", "none"])
            .args(["--edges", "normal,build", "--package", "wayhold"])
            .args(more)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(tree.status.success(), "{tree:?}");
        let tree = String::from_utf8(tree.stdout).unwrap();
        tree.lines().any(|line| line.starts_with("fail v"))
    };
    assert!(!depends(&[]));
    assert!(depends(&["--features", "failpoints"]), "this would be seen");
}
