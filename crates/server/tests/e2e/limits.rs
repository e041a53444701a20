//! What grows and what does not: memory beside a backlog, and the disk near its end.

use serde_json::json;

use crate::support::receiver::Receiver;
use crate::support::server::Server;
use crate::support::wait_until;

/// A configuration with one webhook, and the store's settings.
fn write_configuration(dir: &std::path::Path, receiver: &Receiver, store: &str) {
    let text = format!(
        r#"
        [destinations.wms]
        kind = "webhook"
        url = "http://{}/hook"
        allow_networks = ["127.0.0.0/8"]
        retry = {{ base = "50ms", cap = "200ms" }}
        breaker = {{ open_max = "1s" }}

        [[routes]]
        to = ["wms"]

        [store]
        {store}
        "#,
        receiver.authority
    );
    std::fs::write(dir.join("wayhold.toml"), text).unwrap();
}

#[test]
fn below_the_space_to_keep_free_nothing_is_accepted_and_delivering_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    write_configuration(dir.path(), &receiver, "");
    let start = || Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let server = start();
    for n in 0..20 {
        server.send("order.created", &n.to_string(), &n.to_string());
    }
    assert!(server.terminate().success());

    // More than any disk has.
    write_configuration(dir.path(), &receiver, r#"min_free = "1048576 GiB""#);
    let server = start();
    let form = [("content-type", "application/json")];
    let refused = server.ask("POST", "/v1/events?type=order.created&id=no", &form, b"{}");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.json()["type"], "/problems/no-space");
    let wait = refused.header("retry-after").unwrap().parse::<u64>();
    assert!(wait.is_ok_and(|seconds| seconds > 0));
    let ready = server.ask("GET", "/readyz", &[], b"");
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &json!(false)));
    assert_eq!(server.ask("GET", "/livez", &[], b"").status, 200);

    receiver.answer(204);
    server.wait_for_destination("wms", "all 20 delivered", |one| {
        one["accounting"]["delivered"] == 20 && one["accounting"]["holds"] == true
    });
    assert!(server.terminate().success());

    write_configuration(dir.path(), &receiver, "");
    let server = start();
    assert_eq!(server.send("order.created", "no", "no")["duplicate"], false);
}

/// Most memory that the process held so far, in bytes.
fn peak_memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<u64>().unwrap() * 1024
}

#[test]
fn memory_does_not_grow_with_the_backlog() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(503);
    let small = r#"tail_bytes = "4 MiB""#;
    write_configuration(dir.path(), &receiver, small);
    let server = Server::start(dir.path(), &["--config", "wayhold.toml"]);
    let (megabyte, form) = (
        vec![7; 1_000_000],
        [
            ("content-type", "application/octet-stream"),
            ("ce-specversion", "1.0"),
            ("ce-source", "/scanner"),
            ("ce-type", "image.taken"),
        ],
    );
    let send = |number: u32| {
        let (id, key) = (number.to_string(), (number % 50).to_string());
        let own = [("ce-id", id.as_str()), ("ce-partitionkey", key.as_str())];
        let headers = [&form[..], &own[..]].concat();
        let answer = server.ask("POST", "/v1/events", &headers, &megabyte);
        assert_eq!(answer.status, 202, "{}", answer.text());
    };
    let each = |numbers: std::ops::Range<u32>| numbers.for_each(send);
    // What is allocated once, and what the caches hold at most, is there after these.
    each(0..40);
    let before = peak_memory(&server);
    each(40..120);
    let grown = peak_memory(&server).saturating_sub(before);
    assert!(
        grown < 40_000_000,
        "80 MB of backlog cost {grown} bytes of memory beside {before}"
    );

    receiver.answer(204);
    server.wait_for_destination("wms", "all delivered", |one| {
        one["accounting"]["delivered"] == 120
    });
    wait_until("nothing pending", || {
        server.get("/v1/status")["accounting"]["holds"] == true
    });
    let grown = peak_memory(&server).saturating_sub(before);
    assert!(
        grown < 60_000_000,
        "draining 120 MB cost {grown} bytes of memory beside {before}"
    );
}
