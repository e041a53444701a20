//! The command line against a running server: what goes where, and exit codes.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, stderr, stdout};

fn ask(dir: &Path, server: &Server, arguments: &[&str]) -> Output {
    let url = server.url();
    run(dir, &[arguments, &["--server", &url]].concat())
}

#[test]
fn every_command_answers_a_person_and_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let receipt = server.send("order.created", "a", "7");
    server.wait_for_destination("delivered", "1 delivered", |one| {
        one["accounting"]["delivered"] == 1
    });
    let position = receipt["position"].as_str().unwrap();
    let source = receipt["source"].as_str().unwrap();
    for (arguments, words) in [
        (vec!["status"], "holds"),
        (vec!["health"], "ready"),
        (vec!["where", position], "delivered"),
        (vec!["where", "a", "--source", source], "delivered"),
        (vec!["where", "a"], "delivered"),
        (vec!["events", "show", position], "order.created"),
        (vec!["destinations", "list"], "delivered"),
        (vec!["destinations", "show", "delivered"], "kind: file"),
        (vec!["destinations", "test", "delivered"], "delivered:"),
        (
            vec!["destinations", "pause", "delivered", "--reason", "x"],
            "delivered is paused",
        ),
        (
            vec!["destinations", "resume", "delivered"],
            "delivered is running",
        ),
        (vec!["destinations", "explain", "delivered"], "CLASS"),
        (
            vec!["destinations", "disable", "delivered", "--reason", "x"],
            "delivered is disabled",
        ),
        (
            vec!["destinations", "resume", "delivered"],
            "delivered is running",
        ),
        (vec!["dead-letters", "list"], "DESTINATION"),
        (
            vec!["dlq", "list", "--filter", "attempts > 3"],
            "DESTINATION",
        ),
        (vec!["dlq", "groups"], "FINGERPRINT"),
        (vec!["events", "list"], "POSITION"),
        (vec!["replays", "list"], "SELECTED"),
        (
            vec!["replays", "start", "--to", "delivered", "--dry-run"],
            "events of",
        ),
        (vec!["tokens", "list"], "PREFIX"),
        (vec!["audit", "list"], "destination.paused"),
    ] {
        let human = ask(dir.path(), &server, &arguments);
        assert_eq!(
            human.status.code(),
            Some(0),
            "{arguments:?}: {}",
            stderr(&human)
        );
        assert!(
            stdout(&human).contains(words),
            "{arguments:?}: {}",
            stdout(&human)
        );
        let program = ask(dir.path(), &server, &[&arguments[..], &["--json"]].concat());
        let json: Result<Value, _> = serde_json::from_slice(&program.stdout);
        assert!(json.is_ok(), "{arguments:?}: {}", stdout(&program));
    }
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let code = |output: &Output| output.status.code();
    let unreachable = run(dir.path(), &["status", "--server", "http://127.0.0.1:1"]);
    assert_eq!(code(&unreachable), Some(3), "{}", stderr(&unreachable));
    assert_eq!(code(&run(dir.path(), &["nonsense"])), Some(2));
    assert_eq!(
        code(&run(dir.path(), &["status", "--server", "ftp://x"])),
        Some(2)
    );
    assert_eq!(
        code(&run(dir.path(), &["serve", "--config", "absent.toml"])),
        Some(2)
    );

    let receiver = Receiver::start(200);
    let webhooks = format!(
        r#"
        [destinations.gone]
        kind = "webhook"
        url = "http://127.0.0.1:1/"
        allow_networks = ["127.0.0.0/8"]
        [destinations.there]
        kind = "webhook"
        url = "http://{}/"
        allow_networks = ["127.0.0.0/8"]
        [[routes]]
        to = ["gone"]
        "#,
        receiver.authority
    );
    std::fs::write(dir.path().join("wayhold.toml"), webhooks).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let check = |arguments: &[&str], expected: i32| {
        let output = ask(dir.path(), &server, arguments);
        assert_eq!(
            code(&output),
            Some(expected),
            "{arguments:?}: {}",
            stderr(&output)
        );
    };
    check(&["destinations", "test", "there"], 0);
    check(&["destinations", "test", "gone"], 1);
    check(&["destinations", "show", "absent"], 4);
    check(&["dlq", "show", "77"], 4);
    check(&["where", "absent", "--source", "/none"], 4);
    let elsewhere = ask(dir.path(), &server, &["where", "absent"]);
    let said = stderr(&elsewhere);
    assert!(said.contains("id absent and source /wayhold"), "{said}");
    check(&["tokens", "create", "a b", "--role", "read"], 2);
    let created = ask(
        dir.path(),
        &server,
        &["tokens", "create", "reader", "--role", "read"],
    );
    std::fs::write(dir.path().join("token"), stdout(&created)).unwrap();
    check(&["status"], 5);
    check(&["status", "--token-file", "token"], 0);
    check(
        &["destinations", "pause", "there", "--token-file", "token"],
        5,
    );
}

#[test]
fn a_unix_socket_serves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let listen = ["--listen", "127.0.0.1:0", "--listen", "unix:wayhold.sock"];
    let server = Server::start(dir.path(), &listen);
    let output = run(dir.path(), &["status", "--server", "unix:wayhold.sock"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(server.terminate().success());
    assert!(
        !dir.path().join("wayhold.sock").exists(),
        "the socket is removed at stop"
    );
}
