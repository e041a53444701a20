//! Starting where another server runs, stopping under load, and starting again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::server::{Server, run, stderr};
use crate::support::{http, wait_until};

fn delivered_ids(dir: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(dir.join("data/delivered.ndjson")).unwrap_or_default();
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    events
        .map(|event: serde_json::Value| event["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Sends events from several threads while `during` runs, which gets the number of acknowledged ones.
/// Returns the ids of those.
fn under_load(authority: &str, during: impl FnOnce(&AtomicUsize)) -> BTreeSet<String> {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let send = |sender: usize| {
        let mut acknowledged = Vec::new();
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let id = format!("{sender}-{number}");
            let path = format!("/v1/events?type=order.created&id={id}&key={sender}");
            match http::ask(authority, "POST", &path, &[], b"{}") {
                Ok(answer) if answer.status == 202 => {
                    acknowledged.push(id);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.text()),
                // Nobody listens any more.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        }
        acknowledged
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..8)
            .map(|sender| scope.spawn(move || send(sender)))
            .collect();
        during(&count);
        stop.store(true, Ordering::Relaxed);
        senders
            .into_iter()
            .flat_map(|sender| sender.join().unwrap())
            .collect()
    })
}

fn wait_until_200(count: &AtomicUsize) {
    wait_until("200 events acknowledged", || {
        count.load(Ordering::Relaxed) >= 200
    });
}

/// Starts again and waits until everything that was acknowledged was delivered and accounted for.
fn start_again(dir: &Path, acknowledged: &BTreeSet<String>) -> Server {
    let server = Server::start(dir, &[]);
    wait_until("every acknowledged event", || {
        acknowledged.is_subset(&delivered_ids(dir))
    });
    server.wait_for_destination("delivered", "the identity at rest", |one| {
        one["accounting"]["holds"] == true && one["pending"] == 0
    });
    server
}

#[test]
fn a_stop_under_load_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let acknowledged = under_load(&server.authority.clone(), |count| {
        wait_until_200(count);
        assert!(server.terminate().success());
    });
    let server = start_again(dir.path(), &acknowledged);
    assert_eq!(
        server.get("/v1/status")["store"]["recovery"]["unclean_stop"],
        false
    );
}

#[test]
fn a_crash_under_load_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let acknowledged = under_load(&server.authority.clone(), |count| {
        wait_until_200(count);
        server.kill();
    });
    let server = start_again(dir.path(), &acknowledged);
    assert_eq!(
        server.get("/v1/status")["store"]["recovery"]["unclean_stop"],
        true
    );
}

#[test]
fn a_second_server_on_the_same_data_is_refused_and_told_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["tokens", "create", "a", "--role", "admin", "--data", "data"],
    ] {
        let second = run(dir.path(), arguments);
        assert_eq!(second.status.code(), Some(2), "{}", stderr(&second));
        assert!(
            stderr(&second).contains(&server.pid().to_string()),
            "{}",
            stderr(&second)
        );
    }
    assert!(server.terminate().success());
}

#[test]
fn a_taken_port_is_named_and_the_data_is_free_again() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = run(dir.path(), &["serve", "--listen", &address]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(&address), "{}", stderr(&refused));
    assert!(Server::start(dir.path(), &[]).terminate().success());
}
