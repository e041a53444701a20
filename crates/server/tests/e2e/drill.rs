//! `wayhold drill`: it finds nothing where nothing is wrong, and finds what is.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::server::{Server, run, signal, stderr, wayhold};
use crate::support::wait_until;

/// A minute's outage in two seconds.
const QUICK: [&str; 6] = ["--for", "1m", "--speed", "30", "--rate", "150"];

fn drill(dir: &Path, kind: &str, more: &[&str]) -> Output {
    let arguments = ["--json", "drill", kind, "--data", "."];
    run(dir, &[&arguments[..], &QUICK, more].concat())
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one object on standard output")
}

/// What holds for every drill of a sound server.
fn assert_sound(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    let object = object(output);
    let count = |name: &str| object[name].as_u64().unwrap();
    assert!(count("accepted") > 0, "{object}");
    assert_eq!(count("delivered"), count("accepted"), "{object}");
    assert_eq!((count("lost"), count("reordered")), (0, 0), "{object}");
    assert!(count("disk_peak_bytes") > 0, "{object}");
    for name in [
        "p99_before_ms",
        "p99_during_ms",
        "p99_after_ms",
        "drain_per_s",
    ] {
        // Where every event is refused during the outage's second half, the first half still has times.
        assert!(object[name].as_f64().unwrap() > 0.0, "{name} in {object}");
    }
    object
}

#[test]
fn an_outage_loses_nothing_and_refuses_nothing_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let object = assert_sound(&drill(dir.path(), "outage", &[]));
    assert_eq!(object["refused"], 0, "{object}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_kill_in_the_middle_loses_nothing_either() {
    let dir = tempfile::tempdir().unwrap();
    let output = drill(dir.path(), "restart", &[]);
    assert_sound(&output);
    let said = stderr(&output);
    assert!(said.contains("kill -9"), "{said}");
}

#[test]
fn a_full_disk_refuses_and_what_was_accepted_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let object = assert_sound(&drill(dir.path(), "disk-full", &[]));
    assert!(object["refused"].as_u64().unwrap() > 0, "{object}");
}

#[test]
fn a_receiver_that_forgets_is_found_out_by_every_kind() {
    for kind in ["outage", "restart", "disk-full"] {
        let dir = tempfile::tempdir().unwrap();
        let output = drill(dir.path(), kind, &["--control"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{kind}: {said}");
        assert!(said.contains("are lost"), "{kind}: {said}");
        let object = object(&output);
        let count = |name: &str| object[name].as_u64().unwrap();
        assert!(count("lost") > 0, "{kind}: {object}");
        assert_eq!(
            count("delivered") + count("lost"),
            count("accepted"),
            "{kind}: {object}"
        );
    }
}

#[test]
fn what_cannot_be_drilled_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = "http://127.0.0.1:1";
    for (arguments, code, words) in [
        (&["outage", "--for", "1s", "--speed", "60"][..], 2, "--for"),
        (&["outage", "--for", "soon"], 2, "duration"),
        (&["outage", "--for", "7d"], 2, "a drill judges at most"),
        (&["outage", "--rate", "0"], 2, "--rate"),
        (&["outage", "--speed", "0"], 2, "--speed"),
        (&["outage", "--data", "absent"], 2, "--data"),
        (&["outage", "--destination", "wms"], 2, "--server"),
        (&["outage", "--server", nobody], 3, "not reachable"),
        (&["restart", "--server", nobody], 2, "--server"),
        (
            &[
                "outage",
                "--server",
                nobody,
                "--destination",
                "wms",
                "--speed",
                "2",
            ],
            2,
            "cannot be used with",
        ),
        (
            &["outage", "--server", nobody, "--destination", "wms"],
            3,
            "not reachable",
        ),
    ] {
        let output = run(dir.path(), &[&["drill"], arguments].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A server with one webhook, and somebody who sends it events until this is dropped.
struct Busy {
    server: Arc<Server>,
    _receiver: Receiver,
    stop: Arc<AtomicBool>,
    sending: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start(dir: &Path) -> Self {
        let receiver = Receiver::start(204);
        let text = format!(
            "[destinations.wms]\nkind = \"webhook\"\nurl = \"http://{}/hook\"\n\
             allow_networks = [\"127.0.0.0/8\"]\n[[routes]]\nto = [\"wms\"]\n",
            receiver.authority
        );
        std::fs::write(dir.join("wayhold.toml"), text).unwrap();
        let server = Arc::new(Server::start(dir, &["--config", "wayhold.toml"]));
        let stop = Arc::<AtomicBool>::default();
        let (to, stopped) = (Arc::clone(&server), Arc::clone(&stop));
        let sending = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                to.send(
                    "order.created",
                    &number.to_string(),
                    &(number % 7).to_string(),
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self {
            server,
            _receiver: receiver,
            stop,
            sending: Some(sending),
        }
    }

    fn state(&self) -> Value {
        self.server.get("/v1/destinations/wms")["state"].clone()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sending) = self.sending.take() {
            sending.join().ok();
        }
    }
}

#[test]
fn a_running_server_is_drilled_by_a_pause_and_runs_again_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let busy = Busy::start(dir.path());
    let url = busy.server.url();
    let arguments = ["--json", "drill", "outage", "--server", &url, "--for", "2s"];
    let of = |name: &str| {
        run(
            dir.path(),
            &[&arguments[..], &["--destination", name]].concat(),
        )
    };
    // Only one runs, so it need not be named.
    let output = run(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let object = object(&output);
    assert!(object["accepted"].as_u64().unwrap() > 0, "{object}");
    assert!(object["delivered"].as_u64().unwrap() > 0, "{object}");
    assert!(object["drain_per_s"].as_f64().unwrap() > 0.0, "{object}");
    assert!(object["p99_during_ms"].as_f64().unwrap() > 0.0, "{object}");
    // Not its to tell; and nothing else was wrong.
    assert_eq!(object["reordered"], json!(null));
    assert_eq!(
        (&object["refused"], &object["repeated"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(busy.state(), "running");

    assert_eq!(of("erp").status.code(), Some(4));

    busy.server.post("/v1/destinations/wms/pause", "{}");
    let output = of("wms");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(busy.state(), "paused", "somebody else's pause stays");
}

#[test]
fn a_drill_that_is_interrupted_leaves_nothing_paused() {
    let dir = tempfile::tempdir().unwrap();
    let busy = Busy::start(dir.path());
    let drill = wayhold(dir.path())
        .args(["drill", "outage", "--for", "3s", "--destination", "wms"])
        .args(["--server", &busy.server.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the destination is paused", || busy.state() == "paused");
    signal(drill.id(), "INT");
    let output = drill.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("stopped by SIGINT"), "{said}");
    assert_eq!(busy.state(), "running");
}
