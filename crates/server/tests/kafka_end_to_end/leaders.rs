//! Real brokers of which the leading one is killed, leaders that are moved, and a topic that has too few replicas for as
//! long as one broker is away: what producers know is held against what lies in both topics.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::attempts::Failures;
use super::broker::read;
use super::cluster::Cluster;
use super::judge::Judgement;
use super::load::Load;
use super::support::server::Server;

/// Topics, each of a destination of its name; both get everything. All brokers have `orders`, of which two suffice.
/// `strict` is led by the second, and takes nothing while the first is away.
const ORDERS: &str = "orders";
const STRICT: &str = "strict";

/// Events a second.
const RATE: u32 = 100;

/// Deliveries after each change by which it is known to be over.
const PROGRESS: u64 = 100;

/// How long a cluster may take to find its way after a change; generous, since machines are slow at times.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn leaders_that_move_and_replicas_that_are_away_lose_and_reorder_nothing() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let settings = ["replicas=1,2,3", "min.insync.replicas=2"];
    cluster.make(ORDERS, "6", &settings);
    cluster.make(STRICT, "2", &["replicas=2,1", "min.insync.replicas=2"]);
    let folder = tempfile::tempdir().unwrap();
    let config = config(&cluster.servers());
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    let server = Server::start(folder.path(), &["--config", "wayhold.toml"]);
    let load = Load::start(&server.authority, RATE, u64::from(std::process::id()));

    await_progress(&server, ORDERS);
    for leader in [2, 3, 1] {
        cluster.hand_over(ORDERS);
        wait_until("the next broker leads", || {
            cluster.all_partitions(ORDERS, |one| one.leader == leader)
        });
        await_progress(&server, ORDERS);
    }
    await_progress(&server, STRICT);

    cluster.kill(1);
    wait_until("another broker leads", || {
        cluster.all_partitions(ORDERS, |one| one.leader > 1)
    });
    await_progress(&server, ORDERS);
    wait_until("a replica is missed", || {
        cluster.all_partitions(STRICT, |one| one.in_sync == [2])
    });
    let before = delivered(&server, STRICT);
    wait_until("a destination without enough replicas fails", || {
        Failures::of(&server, STRICT).count() > 0
    });
    await_progress(&server, ORDERS);
    assert_eq!(
        delivered(&server, STRICT),
        before,
        "nothing is taken for delivered that one broker has alone"
    );

    cluster.bring_back(1);
    wait_until("all replicas are back", || {
        cluster.all_partitions(STRICT, |one| one.in_sync == [1, 2])
            && cluster.all_partitions(ORDERS, |one| one.in_sync == [1, 2, 3])
    });
    cluster.hand_over(ORDERS);
    await_progress(&server, ORDERS);
    await_progress(&server, STRICT);
    let history = load.stop();
    for name in [ORDERS, STRICT] {
        wait_until("everything pending arrives", || {
            account(&server, name, "pending") == 0
        });
        let failures = Failures::of(&server, name);
        let records = read(&cluster.servers(), name);
        let arrivals: Vec<_> = records.into_iter().map(Into::into).collect();
        let judgement = Judgement::of(&history, &arrivals);
        println!(
            "{name}: {} events, {} repeats, {failures:?}",
            judgement.arrived.len(),
            judgement.repeats
        );
        assert!(judgement.holds(), "{name}: {judgement:?}");
        assert!(
            judgement.repeats <= failures.unknown(),
            "{name}: {failures:?}"
        );
        assert_eq!(failures.refused(), 0, "{name}: {failures:?}");
        assert_eq!(account(&server, name, "dead_lettered"), 0, "{name}");
    }
    assert!(server.terminate().success());
}

/// Waits until the destination got some more.
fn await_progress(server: &Server, name: &str) {
    let before = delivered(server, name);
    wait_until(&format!("{name} gets more than {before}"), || {
        delivered(server, name) >= before + PROGRESS
    });
}

fn delivered(server: &Server, name: &str) -> u64 {
    account(server, name, "delivered")
}

fn account(server: &Server, name: &str, which: &str) -> u64 {
    let status: Value = server.get("/v1/status");
    let destinations = status["destinations"].as_array().unwrap();
    let one = destinations.iter().find(|one| one["name"] == name).unwrap();
    one["accounting"][which].as_u64().unwrap()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let given_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < given_up, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn config(servers: &str) -> String {
    let destination = |name: &str| {
        format!(
            r#"
            [destinations.{name}]
            kind = "kafka"
            bootstrap_servers = "{servers}"
            topic = "{name}"
            # Shorter than a broker is away.
            timeout = "5s"
            retry = {{ base = "100ms", cap = "1s" }}
            breaker.open_max = "1s"
            "#
        )
    };
    format!(
        r#"
        data = "data"
        {}{}
        [[routes]]
        to = ["{ORDERS}", "{STRICT}"]
        "#,
        destination(ORDERS),
        destination(STRICT)
    )
}
