//! A broker that is killed and away, and a server that is killed with requests under way, again and
//! again: what producers know is held against what a Kafka topic, a webhook and a file got.
//!
//! The short run is a test; `scripts/outage` runs the long one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::broker::Broker;
use super::judge::{Arrival, Judgement, hash};
use super::load::{Intent, Load, Random};
use super::support::receiver::Receiver;
use super::support::server::Server;

const DESTINATIONS: [&str; 3] = ["kafka", "portal", "archive"];

/// Most attempts at Kafka under way, and so the most whose outcome one kill of the broker leaves open.
const KAFKA_CONCURRENCY: u64 = 1_024;

/// Fewest acknowledgements of each phase: a run in which nothing happens proves nothing.
const ACKNOWLEDGED_MIN: usize = 100;

/// How long everything pending may take to arrive once all are well again.
const HEALING: Duration = Duration::from_secs(120);

/// What a run does.
struct Plan {
    /// Events a second.
    rate: u32,
    /// Time before the broker is killed, until it comes back, and after that.
    before: Duration,
    away: Duration,
    after: Duration,
    /// Kills of the server, at random moments spread over the whole.
    kills: u32,
    seed: u64,
}

impl Plan {
    /// The short run, unless the environment asks for another.
    fn from_environment() -> Self {
        let asked = |name: &str, short: u64| {
            let asked = std::env::var(format!("WAYHOLD_OUTAGE_{name}")).ok();
            asked.map_or(short, |text| text.parse().unwrap())
        };
        let number = |name: &str, short: u32| u32::try_from(asked(name, short.into())).unwrap();
        Self {
            rate: number("RATE", 300),
            before: Duration::from_secs(asked("BEFORE", 3)),
            away: Duration::from_secs(asked("AWAY", 8)),
            after: Duration::from_secs(asked("AFTER", 3)),
            kills: number("KILLS", 3),
            seed: asked("SEED", u64::from(std::process::id())),
        }
    }

    fn length(&self) -> Duration {
        self.before + self.away + self.after
    }

    /// One kill in each of as many equal parts of the run, at a random moment of it.
    fn kill_times(&self) -> Vec<Duration> {
        let mut random = Random(self.seed);
        let part = self.length() / self.kills;
        (0..self.kills)
            .map(|n| part * n + part.mul_f64((random.next() % 1_000) as f64 / 1_000.0))
            .collect()
    }
}

/// What a run saw besides arrivals.
#[derive(Default)]
struct Seen {
    /// Repeats that the server said are possible, in all, by destination.
    repeats_possible: BTreeMap<&'static str, u64>,
    /// Longest time from a start to taking requests.
    slowest_start: Duration,
    /// Most that was pending for Kafka after a kill.
    backlog: u64,
}

#[test]
fn nothing_is_lost_or_reordered_when_broker_and_server_are_killed() {
    let Some(broker) = Broker::own() else { return };
    let plan = Plan::from_environment();
    println!("seed {}", plan.seed);
    broker.create(&["orders"]);
    let portal = Receiver::start(204);
    let folder = tempfile::tempdir().unwrap();
    let config = config(&broker.servers, &portal.authority);
    std::fs::write(folder.path().join("wayhold.toml"), config).unwrap();
    let authority = format!("127.0.0.1:{}", free_port(plan.seed));
    let server = start(folder.path(), &authority);
    let load = Load::start(&authority, plan.rate, plan.seed);
    let mut seen = Seen::default();
    let until = |moment: Duration| {
        std::thread::sleep((load.begun() + moment).saturating_duration_since(Instant::now()));
    };
    let server = std::thread::scope(|scope| {
        scope.spawn(|| {
            until(plan.before);
            broker.kill();
            until(plan.before + plan.away);
            broker.start();
        });
        plan.kill_times().into_iter().fold(server, |server, kill| {
            until(kill);
            load.wait_for_request();
            kill_and_start(server, folder.path(), &authority, &mut seen)
        })
    });
    until(plan.length());
    let sent_again = load.sent_again();
    let history = load.stop();
    let status = wait_for_healing(&server);
    assert!(server.terminate().success());

    check_progress(&history, &plan, &seen);
    let arrivals = [
        of_kafka(&broker),
        of_portal(&portal),
        of_archive(folder.path()),
    ];
    let judgements = arrivals.map(|arrivals| Judgement::of(&history, &arrivals));
    report(&plan, &history, sent_again, &judgements, &seen);
    for (name, judgement) in DESTINATIONS.iter().zip(&judgements) {
        assert!(judgement.holds(), "{name}: {}", words_of(judgement));
        let unknown = if *name == "kafka" {
            KAFKA_CONCURRENCY
        } else {
            0
        };
        let allowed = seen.repeats_possible[name] + unknown;
        assert!(judgement.repeats <= allowed, "{name}: {judgement:?}");
        // What was left open is stored or not, and then owed to all.
        assert!(judgement.arrived == judgements[0].arrived, "{name}");
        let accounting = &find(&status, name)["accounting"];
        assert_eq!(accounting["delivered"], judgement.arrived.len() as u64);
        assert_eq!(accounting["accepted"], judgement.arrived.len() as u64);
        assert_eq!(accounting["dead_lettered"], 0);
    }
}

fn kill_and_start(server: Server, folder: &Path, authority: &str, seen: &mut Seen) -> Server {
    server.kill();
    let begun = Instant::now();
    let server = start(folder, authority);
    seen.slowest_start = seen.slowest_start.max(begun.elapsed());
    let status = server.get("/v1/status");
    for name in DESTINATIONS {
        let destination = find(&status, name);
        *seen.repeats_possible.entry(name).or_default() +=
            destination["repeats_possible"].as_u64().unwrap();
        if name == "kafka" {
            let pending = destination["accounting"]["pending"].as_u64().unwrap();
            seen.backlog = seen.backlog.max(pending);
        }
    }
    server
}

fn start(folder: &Path, authority: &str) -> Server {
    Server::start(folder, &["--config", "wayhold.toml", "--listen", authority])
}

/// Waits until nothing is pending and the books agree; the status then.
fn wait_for_healing(server: &Server) -> Value {
    let given_up = Instant::now() + HEALING;
    loop {
        let status = server.get("/v1/status");
        let is_well = |name: &&str| {
            let accounting = &find(&status, name)["accounting"];
            accounting["pending"] == 0 && accounting["holds"] == true
        };
        if DESTINATIONS.iter().all(is_well) {
            return status;
        }
        assert!(Instant::now() < given_up, "not healed: {status:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A run counts only if there was something to lose in each of its phases.
fn check_progress(history: &[Intent], plan: &Plan, seen: &Seen) {
    let back = plan.before + plan.away;
    for (phase, from, to) in [
        ("before", Duration::ZERO, plan.before),
        ("away", plan.before, back),
        ("after", back, Duration::MAX),
    ] {
        let acknowledged = history.iter().filter_map(|intent| intent.acknowledged);
        let count = acknowledged.filter(|at| (from..to).contains(at)).count();
        assert!(count >= ACKNOWLEDGED_MIN, "{phase}: only {count} events");
    }
    assert!(seen.backlog > 0, "no kill met a backlog");
}

fn of_kafka(broker: &Broker) -> Vec<Arrival> {
    let records = broker.read("orders").into_iter();
    records.map(Arrival::from).collect()
}

fn of_portal(portal: &Receiver) -> Vec<Arrival> {
    let received = portal.received().into_iter();
    received
        .map(|request| Arrival {
            place: 0,
            id: id_in(&request.body),
            sha256: hash(&request.body),
        })
        .collect()
}

/// The id of an event as its data tells it.
fn id_in(data: &[u8]) -> String {
    let data: Value = serde_json::from_slice(data).unwrap();
    format!("k{}-{}", data["key"], data["number"])
}

/// One line of the file destination.
#[derive(Deserialize)]
struct Line<'a> {
    id: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

fn of_archive(folder: &Path) -> Vec<Arrival> {
    let path = |number: u32| match number {
        0 => folder.join("archive.ndjson"),
        n => folder.join(format!("archive.ndjson.{n}")),
    };
    let rotated = (1..).take_while(|number| path(*number).exists());
    let mut arrivals = Vec::new();
    for number in rotated.chain([0]) {
        let lines = std::fs::read_to_string(path(number)).unwrap();
        arrivals.extend(lines.lines().map(|line| {
            let Line { id, data } = serde_json::from_str(line).unwrap();
            Arrival {
                place: 0,
                id,
                sha256: hash(data.get().as_bytes()),
            }
        }));
    }
    arrivals
}

fn report(
    plan: &Plan,
    history: &[Intent],
    sent_again: usize,
    judgements: &[Judgement; 3],
    seen: &Seen,
) {
    let acknowledged = history
        .iter()
        .filter(|intent| intent.acknowledged.is_some());
    let destinations: serde_json::Map<_, _> = DESTINATIONS
        .iter()
        .zip(judgements)
        .map(|(name, judgement)| {
            let value = json!({
                "arrived": judgement.arrived.len(),
                "lost": judgement.lost.len(),
                "reordered": judgement.reordered.len(),
                "altered": judgement.altered.len(),
                "unasked": judgement.unasked.len(),
                "repeats": judgement.repeats,
                "repeats_possible": seen.repeats_possible[name],
            });
            ((*name).to_owned(), value)
        })
        .collect();
    let report = json!({
        "seed": plan.seed,
        "events_per_second": plan.rate,
        "kafka_away_seconds": plan.away.as_secs(),
        "server_kills": plan.kills,
        "events": history.len(),
        "acknowledged": acknowledged.count(),
        "sent_again": sent_again,
        "largest_backlog_at_a_start": seen.backlog,
        "slowest_start_ms": u64::try_from(seen.slowest_start.as_millis()).unwrap(),
        "destinations": destinations,
    });
    println!("{report:#}");
}

/// A judgement that fits on a screen.
fn words_of(judgement: &Judgement) -> String {
    let first = |events: &[super::load::Event]| format!("{:?}", &events[..events.len().min(10)]);
    format!(
        "lost {} {}, reordered {} {}, altered {} {}, unasked {:?}",
        judgement.lost.len(),
        first(&judgement.lost),
        judgement.reordered.len(),
        first(&judgement.reordered),
        judgement.altered.len(),
        first(&judgement.altered),
        judgement.unasked.iter().take(10).collect::<Vec<_>>(),
    )
}

fn find<'a>(status: &'a Value, name: &str) -> &'a Value {
    let destinations = status["destinations"].as_array().unwrap();
    destinations.iter().find(|one| one["name"] == name).unwrap()
}

/// A port that the server can come back to: below those that the system hands to clients.
pub(super) fn free_port(seed: u64) -> u16 {
    let mut random = Random(seed);
    loop {
        let port = 20_000 + u16::try_from(random.next() % 12_000).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn config(servers: &str, portal: &str) -> String {
    format!(
        r#"
        data = "data"
        network.allow = ["127.0.0.0/8"]
        [destinations.kafka]
        kind = "kafka"
        bootstrap_servers = "{servers}"
        topic = "orders"
        concurrency = {KAFKA_CONCURRENCY}
        # Shorter than the outage, so that attempts end with their outcome open.
        timeout = "3s"
        retry.cap = "5s"
        breaker.open_max = "5s"
        [destinations.portal]
        kind = "webhook"
        url = "http://{portal}/"
        concurrency = 32
        [destinations.archive]
        kind = "file"
        path = "archive.ndjson"
        [[routes]]
        to = ["kafka", "portal", "archive"]
        "#
    )
}
