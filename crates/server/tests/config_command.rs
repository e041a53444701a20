//! `wayhold config` as a person runs it: exit codes, streams, and nothing secret in either.

use std::path::Path;
use std::process::{Command, Output};

fn wayhold(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("HOOK", "https://example.com/hunter2")
        .output()
        .expect("the binary of this build runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("output is UTF-8")
}

#[test]
fn the_example_that_is_printed_passes_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let example = wayhold(folder.path(), &["config", "example"]);
    assert!(example.status.success());
    std::fs::write(folder.path().join("wayhold.toml"), example.stdout).unwrap();
    let check = wayhold(folder.path(), &["config", "check", "wayhold.toml"]);
    assert!(check.status.success(), "{}", text(&check.stderr));
}

#[test]
fn a_check_that_fails_tells_all_problems_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = "\
[destinations.a]
kind = \"webhook\"
url = \"http://127.0.0.1:9000/hook\"
[[routes]]
to = [\"b\"]
";
    std::fs::write(folder.path().join("wayhold.toml"), file).unwrap();
    let check = wayhold(
        folder.path(),
        &["config", "check", "--config", "wayhold.toml"],
    );
    assert_eq!(check.status.code(), Some(2));
    assert!(check.stdout.is_empty());
    let told = text(&check.stderr);
    for expected in [
        "wayhold.toml:3: destinations.a.url: expected a public address",
        "add: allow_networks = [\"127.0.0.0/8\"]",
        "wayhold.toml:5: routes[0].to: expected a configured destination, not \"b\"",
    ] {
        assert!(told.contains(expected), "{told}");
    }

    let check = wayhold(
        folder.path(),
        &["config", "check", "wayhold.toml", "--json"],
    );
    assert_eq!(check.status.code(), Some(2));
    let body: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(body["problems"][0]["at"], "wayhold.toml:3");
}

#[test]
fn show_tells_values_and_origins_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = "\
[destinations.a]
kind = \"webhook\"
url = { env = \"HOOK\" }
[[routes]]
to = [\"a\"]
";
    std::fs::write(folder.path().join("wayhold.toml"), file).unwrap();
    let show = wayhold(folder.path(), &["config", "show", "wayhold.toml", "--json"]);
    assert!(show.status.success(), "{}", text(&show.stderr));
    assert!(!text(&show.stdout).contains("hunter2"));
    let body: serde_json::Value = serde_json::from_slice(&show.stdout).unwrap();
    let items = body["items"].as_array().unwrap();
    let url = items
        .iter()
        .find(|item| item["key"] == "destinations.a.url")
        .unwrap();
    assert_eq!(url["value"], serde_json::json!({ "env": "HOOK" }));
    assert_eq!(url["origin"], "wayhold.toml:3");
}
