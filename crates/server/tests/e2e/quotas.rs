//! Receivers that say what is left of their quotas, also with answers that took the event.

use std::time::Duration;

use crate::support::receiver::Receiver;
use crate::support::server::Server;

#[test]
fn a_receiver_that_says_what_it_takes_is_sent_no_more() {
    let second = Duration::from_secs(1);
    for (lines, burst) in [
        // Nothing is left for a second.
        ("ratelimit: \"default\";r=0;t=1\r\n", 1),
        // Two are, and then none before the second is over.
        ("ratelimit-policy: \"default\";q=2;w=1\r\n", 2),
        // The quota of something else is nobody's business.
        (
            "ratelimit: \"bytes\";r=0;t=3600\r\nratelimit-policy: \"bytes\";q=1;w=3600;qu=\"content-bytes\"\r\n",
            6,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(204);
        receiver.limit(lines);
        let text = format!(
            "[destinations.wms]\nkind = \"webhook\"\nurl = \"http://{}/hook\"\nconcurrency = 1\n\
             allow_networks = [\"127.0.0.0/8\"]\n[[routes]]\nto = [\"wms\"]\n",
            receiver.authority
        );
        std::fs::write(dir.path().join("wayhold.toml"), text).unwrap();
        let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
        // What is known of the quotas comes with the first answer.
        let count = 3;
        for id in 0..count {
            server.send("order.created", &id.to_string(), &id.to_string());
        }
        server.wait_for_destination("wms", "all delivered", |one| {
            one["accounting"]["delivered"] == count
        });
        let came: Vec<_> = receiver.received().iter().map(|one| one.at).collect();
        assert_eq!(came.len(), count, "{lines}: each once, and none refused");
        // The first is on its way before anything is known; what follows it is counted from its answer.
        for (at, later) in came.iter().zip(came.iter().skip(burst)) {
            assert!(*later - *at >= second, "{lines}: {:?}", *later - *at);
        }
    }
}
