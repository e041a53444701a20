//! Holds `docs/guarantees.md` and the cases of `docs/reliability.md` to their word: every promise and every
//! case names tests, and every test that is named is one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How many promises there are.
const PROMISES: usize = 10;

/// The kinds of cases that concern what is here, with how many there are of each.
const CASES: [(char, usize); 13] = [
    ('A', 4),
    ('B', 7),
    ('C', 4),
    ('D', 5),
    ('E', 3),
    ('F', 5),
    ('G', 5),
    ('H', 4),
    ('J', 4),
    ('K', 3),
    ('L', 3),
    ('M', 3),
    ('O', 9),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// Tests named by a line, as `` `crate/path/file.rs::name` ``: path below `crates`, and name.
fn tests_of(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|text| text.split_once("::"))
        .filter(|(path, _)| Path::new(path).extension().is_some_and(|end| end == "rs"))
}

/// Whether the source has a test function of this name, and not one that is left out of runs.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let is_named = line
            .split_once("fn ")
            .and_then(|(_, rest)| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('));
        let attributes = || {
            let above = lines.iter().take(at).rev();
            above.take_while(|above| above.starts_with("#[") || above.starts_with("//"))
        };
        let is_test = attributes()
            .any(|above| above.starts_with("#[test]") || above.starts_with("#[tokio::test"));
        is_named && is_test && !attributes().any(|above| above.starts_with("#[ignore"))
    })
}

/// Source files that were looked into.
#[derive(Default)]
struct Sources(BTreeMap<PathBuf, String>);

impl Sources {
    /// Whether the file below `crates` has that test.
    fn have(&mut self, path: &str, name: &str) -> bool {
        let file = root().join("crates").join(path);
        let source = self.0.entry(file);
        let source =
            source.or_insert_with_key(|file| std::fs::read_to_string(file).unwrap_or_default());
        has_test(source, name)
    }
}

#[test]
fn every_case_of_a_public_report_is_held_by_a_test_or_open_for_a_reason() {
    let page = std::fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let mut sources = Sources::default();
    let mut found = BTreeMap::<String, usize>::new();
    let mut wrong = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let Some(case) = cells.first().and_then(|cell| cell.strip_prefix("| ")) else {
            continue;
        };
        let number = case
            .get(1..)
            .and_then(|number| number.parse::<usize>().ok());
        if number.is_none() || !case.starts_with(|kind: char| kind.is_ascii_uppercase()) {
            continue;
        }
        *found.entry(case.to_owned()).or_default() += 1;
        let named: Vec<_> = tests_of(line).collect();
        // Four cells are a case that is held, three one that is open.
        if named.is_empty() && cells.len() == 4 {
            wrong.push(format!("{case} names no test"));
        }
        for (path, name) in named {
            if !sources.have(path, name) {
                wrong.push(format!("{case}: {path}::{name}"));
            }
        }
    }
    let expected = CASES
        .iter()
        .flat_map(|(kind, count)| (1..=*count).map(move |number| format!("{kind}{number}")));
    for case in expected {
        if found.get(&case) != Some(&1) {
            wrong.push(format!("{case} is told {:?} times", found.get(&case)));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_promise_names_tests_and_each_of_them_exists() {
    let page = std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let mut tests_by_promise = BTreeMap::<usize, usize>::new();
    let mut sources = Sources::default();
    let mut promise = 0;
    let mut missing = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let number = heading.split_once(". ").map(|(number, _)| number.parse());
            promise = number.and_then(Result::ok).unwrap_or(0);
        }
        for (path, name) in tests_of(line) {
            if sources.have(path, name) {
                *tests_by_promise.entry(promise).or_default() += 1;
            } else {
                missing.push(format!("{path}::{name}"));
            }
        }
    }
    assert_eq!(
        missing,
        Vec::<String>::new(),
        "named, but not in the source"
    );
    for promise in 1..=PROMISES {
        assert!(
            tests_by_promise.contains_key(&promise),
            "promise {promise} names no test"
        );
    }
}

#[test]
fn a_function_that_is_no_test_does_not_count() {
    let source = "
        #[test]
        fn a_thing_holds() {}
        fn a_helper() {}
        #[tokio::test(flavor = \"multi_thread\")]
        // Why it is slow.
        async fn another_thing_holds() {}
        #[test]
        #[ignore = \"slow\"]
        fn nobody_runs_this() {}
    ";
    assert!(has_test(source, "a_thing_holds"));
    assert!(has_test(source, "another_thing_holds"));
    for name in ["a_helper", "nobody_runs_this", "a_thing", "absent"] {
        assert!(!has_test(source, name), "{name}");
    }
}
