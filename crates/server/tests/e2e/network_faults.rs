//! Whatever is wrong between the server and a receiver that is well: what is owed waits, and goes on by
//! itself when it is over.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Duration;

use wayhold::fault_proxy::{Fault, FaultProxy, Protocol};

use crate::support::receiver::Receiver;
use crate::support::server::Server;

/// Events of each fault, all of one key.
const EACH: u64 = 3;

/// Slower than an attempt may be, for one byte.
const TOO_SLOW: Duration = Duration::from_secs(5);

#[test]
fn every_fault_of_the_network_is_waited_out_in_order_and_its_outcome_is_not_guessed() {
    let receiver = Receiver::start(204);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let destination = receiver.authority.parse().unwrap();
    let proxy = runtime
        .block_on(FaultProxy::start(destination, Protocol::Http))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[destinations.wms]\nkind = \"webhook\"\nurl = \"http://{}/hook\"\ntimeout = \"300ms\"\n\
         allow_networks = [\"127.0.0.0/8\"]\nretry = {{ base = \"5ms\", cap = \"50ms\" }}\n\
         breaker = {{ open = \"5ms\", open_max = \"50ms\" }}\n[[routes]]\nto = [\"wms\"]\n",
        proxy.address()
    );
    std::fs::write(dir.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let one_in = NonZeroU64::MIN;
    let mut sent = 0;
    for fault in [
        Fault::Cut,
        Fault::Stall,
        Fault::Drip(TOO_SLOW),
        Fault::Delay(TOO_SLOW),
        Fault::Corrupt,
        Fault::LoseAnswers { one_in },
    ] {
        proxy.set(fault);
        for _ in 0..EACH {
            sent += 1;
            server.send("order.created", &sent.to_string(), "key");
        }
        let failing = server.wait_for_destination("wms", &format!("fails by {fault:?}"), |one| {
            one["last_error"]["failing_since"].is_string()
        });
        // It cannot know whether the receiver has the event: it must not call it refused.
        let outcome = &failing["last_error"]["outcome"];
        assert!(
            outcome == "unknown" || outcome == "not_executed",
            "{fault:?}: {failing}"
        );
        let pending = &failing["accounting"]["pending"];
        assert_eq!(*pending, EACH, "{fault:?}: {failing}");
        proxy.set(Fault::None);
        server.wait_for_destination("wms", &format!("delivers after {fault:?}"), |one| {
            one["accounting"]["delivered"] == sent && one["last_error"]["failing_since"].is_null()
        });
    }
    let mut arrived: Vec<u64> = receiver
        .received()
        .iter()
        .map(|one| serde_json::from_slice::<serde_json::Value>(&one.body).unwrap())
        .map(|body| body["id"].as_str().unwrap().parse().unwrap())
        .collect();
    // Nothing overtakes within a key. Only a repeat may come later than its event: an attempt that was given
    // up, and that the network still held when the next one got through.
    let mut seen = BTreeSet::new();
    arrived.retain(|id| seen.insert(*id));
    assert_eq!(arrived, (1..=sent).collect::<Vec<_>>());
}
