//! The first five minutes of the documentation, run as they stand: the `sh` blocks of each page, in
//! order, in one shell in an empty folder.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// How long a page may take: seconds suffice, and a block that waits for ever must not.
const PAGE_SECONDS_MAX: u64 = 60;

/// One test for all pages: they share the port that their readers see.
#[test]
fn the_pages_do_what_they_say() {
    for port in [8700, 9000] {
        if TcpListener::bind(("127.0.0.1", port)).is_err() {
            skip(&format!("docs/start because port {port} is in use"));
            return;
        }
    }
    run_page("curl", Some);
    run_page("webhooks", |script| found("python3").then_some(script));
    run_page("assistant", |script| found("python3").then_some(script));
    run_page("kafka", |script| {
        let kafka = std::env::var("WAYHOLD_TEST_KAFKA").ok()?;
        cfg!(feature = "kafka").then(|| script.replace("localhost:9092", &kafka))
    });
}

/// Runs a page, if `prepare` finds what it needs.
fn run_page(name: &str, prepare: impl FnOnce(String) -> Option<String>) {
    if !found("curl") {
        skip(&format!("docs/start/{name}.md because curl is absent"));
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/start/{name}.md"));
    let blocks = shell_blocks(&std::fs::read_to_string(page).unwrap());
    assert!(!blocks.is_empty(), "{name} has no sh blocks");
    let Some(script) = prepare(blocks) else {
        skip(&format!(
            "docs/start/{name}.md because what it speaks to is absent"
        ));
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // What a page starts in the background must not outlive it, also when it fails half-way.
    let script = format!(
        "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -x\n{script}"
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_wayhold"));
    let path = format!(
        "{}:{}",
        binary.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("timeout")
        .args([&PAGE_SECONDS_MAX.to_string(), "bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "docs/start/{name}.md: {}\n{}\n{}\nserver: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        std::fs::read_to_string(folder.path().join("server.log")).unwrap_or_default(),
    );
}

/// The text of all ```` ```sh ```` blocks.
fn shell_blocks(page: &str) -> String {
    let mut inside = false;
    let mut script = String::new();
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                script.push_str(line);
                script.push('\n');
            }
            _ => {}
        }
    }
    script
}

fn found(command: &str) -> bool {
    Command::new(command)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

fn skip(what: &str) {
    println!("skipped: {what}");
    assert_ne!(
        std::env::var("WAYHOLD_TESTS_REQUIRE_ALL").as_deref(),
        Ok("1"),
        "{what}"
    );
}
