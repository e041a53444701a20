//! Rules over the running server: each event proposes its command once, whatever comes twice and whenever the server
//! dies; what a rule cannot say is a dead letter.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::server::Server;
use crate::support::wait_for;

const CONFIGURATION: &str = r#"
[retention]
time = "1h"
[destinations.erp]
kind = "http"
url = "http://127.0.0.1:9/orders"
allow_networks = ["127.0.0.0/8"]
[[routes]]
when = 'type == "nobody"'
to = ["erp"]
[ingest]
unmatched = "keep"
[commands.po_create]
destination = "erp"
risk = "high"
[rules.reorder]
when = 'type == "stock.out" && data.available <= 0'
propose = "po_create"
arguments = { sku = "{subject}", qty = "{/data/missing}", rush = false }
dedupe = "po:{subject}:{id}"
rationale = "{subject} is out"
"#;

const EVENTS: usize = 40;

fn stock_out(server: &Server, n: usize, data: &str) {
    let path = format!("/v1/events?type=stock.out&id=e{n}&subject=A-{n}");
    server.post(&path, data);
}

fn commands(server: &Server) -> Vec<Value> {
    let list = server.get("/v1/commands?limit=500");
    list["items"].as_array().unwrap().clone()
}

#[test]
fn an_event_proposes_its_command_once_and_a_crash_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wayhold.toml"), CONFIGURATION).unwrap();
    let start = || Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let server = start();
    for n in 0..EVENTS {
        stock_out(&server, n, r#"{"available":0,"missing":12}"#);
    }
    // Accepted, and perhaps not proposed yet.
    server.kill();
    let server = start();
    for n in 0..EVENTS {
        stock_out(&server, n, r#"{"available":0,"missing":12}"#);
    }
    stock_out(&server, 900, r#"{"available":3,"missing":0}"#);
    stock_out(&server, 901, r#"{"available":0}"#);
    server.post("/v1/events?type=stock.in&id=e902", r#"{"available":0}"#);
    let settled = server.wait_for_destination("rules", "everything is settled", |one| {
        let accounting = &one["accounting"];
        accounting["delivered"] == EVENTS + 1 && accounting["dead_lettered"] == 1
    });
    assert_eq!(settled["kind"], "rules");
    let proposed = commands(&server);
    let subjects: BTreeSet<_> = proposed
        .iter()
        .map(|one| one["arguments"]["sku"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((proposed.len(), subjects.len()), (EVENTS, EVENTS));
    for one in &proposed {
        assert_eq!(one["arguments"]["qty"], 12, "{one}");
        assert_eq!(one["state"], "pending_approval", "{one}");
        assert_eq!(one["principal"], "reorder", "{one}");
    }
    let letters = server.get("/v1/dead-letters?destination=rules");
    let reason = letters["items"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("arguments.qty"), "{reason}");

    // The same events once more by a replay, to the same rules: nothing new.
    let replay = r#"{"destination":"rules","select":{}}"#;
    let replay = server.post("/v1/replays", replay);
    let path = format!("/v1/replays/{}", replay["id"]);
    wait_for("the replay", || {
        Some(server.get(&path)).filter(|replay| replay["state"] == "done")
    });
    assert_eq!(commands(&server).len(), EVENTS);
}
