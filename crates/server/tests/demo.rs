//! The demo, short: it proves what it says, and what it keeps can be gone on with.

use std::process::Command;

use serde_json::Value;

#[test]
fn nothing_is_lost_or_reordered_through_outage_and_kill() {
    let output = Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(["--json", "demo", "--events", "900", "--rate", "300"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["acknowledged"], 900);
    assert_eq!(result["kills"], 1);
    for name in ["archive", "portal"] {
        let destination = &result["destinations"][name];
        assert_eq!(destination["arrived"], 900, "{result}");
        assert_eq!(destination["lost"], 0);
        assert_eq!(destination["reordered"], 0);
    }
}

#[test]
fn what_is_kept_is_a_configuration_to_go_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(["demo", "--events", "60", "--rate", "300", "--keep"])
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let last = printed.lines().last().unwrap();
    let config = last.split(" serve --config ").nth(1).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(["config", "check", config])
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );

    let again = Command::new(env!("CARGO_BIN_EXE_wayhold"))
        .args(["demo", "--keep"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(
        again.status.code(),
        Some(2),
        "a folder in use is never mixed with"
    );
}
