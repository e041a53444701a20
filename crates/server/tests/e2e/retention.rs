//! What a person still sees of events that were delivered.

use serde_json::json;

use crate::support::server::{Server, run, stdout};
use crate::support::wait_until;

fn start(dir: &std::path::Path, retention: &str) -> Server {
    let text = format!(
        r#"
data = "data"
listen = ["127.0.0.1:0"]

[store]
segment_rows = 16

[retention]
time = "{retention}"

[destinations.nobody]
kind = "null"

[[routes]]
to = ["nobody"]
"#
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
    Server::start(dir, &["--config", "wayhold.toml"])
}

#[test]
fn a_delivered_event_is_shown_whole_while_it_is_kept_and_as_a_trace_after_that() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), "1h");
    for n in 0..16 {
        server.send("order.created", &n.to_string(), "7");
    }
    let retained =
        |server: &Server| server.get("/v1/status")["store"]["segments"]["retained"].clone();
    wait_until("its segment is kept", || retained(&server) == 1);
    let bytes = server.get("/v1/status")["store"]["bytes"]["retained"].as_u64();
    assert!(bytes.unwrap() > 0);
    let metrics = server.ask("GET", "/metrics", &[], b"").text();
    assert!(metrics.contains(r#"wayhold_segments{state="retained"} 1"#));
    assert!(metrics.contains(&format!(
        r#"wayhold_store_bytes{{kind="retained"}} {}"#,
        bytes.unwrap()
    )));
    assert!(server.terminate().success());

    // After a restart nothing of it is in memory.
    let server = start(dir.path(), "1h");
    let event = server.get("/v1/events?id=3");
    assert_eq!(event["event"]["data"], json!({"id": "3"}), "{event}");
    assert_eq!(event["deliveries"][0]["state"], "delivered");
    let shown = run(
        dir.path(),
        &["events", "show", "3", "--server", &server.url()],
    );
    assert!(stdout(&shown).contains("order.created"), "{shown:?}");
    assert!(server.terminate().success());

    let server = start(dir.path(), "0s");
    wait_until("it is removed", || retained(&server) == 0);
    let event = server.get("/v1/events?id=3");
    assert_eq!(
        (&event["event"], &event["deliveries"][0]["state"]),
        (&json!(null), &json!("delivered"))
    );
    let status = server.wait_for_destination("nobody", "16 delivered", |one| {
        one["accounting"]["delivered"] == 16
    });
    assert_eq!(status["accounting"]["holds"], true);
    assert!(server.terminate().success());
}
