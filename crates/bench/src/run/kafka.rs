//! Delivering to a real broker: Wayhold's Kafka destination with ten thousand keys and with one, beside
//! producers that wait for each report; and the whole way, HTTP in and Kafka out.
//!
//! Everything runs on the same cores: broker, server, producers and load.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::broker::Broker;
use super::control;
use super::part::{Part, Round};
use super::plan::Plan;
use super::quantile::Buckets;
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::kafka::topic;
use crate::process::{Server, load, produce};
use crate::serve::DESTINATION;

/// Partitions of each topic.
const PARTITIONS: i32 = 12;
/// Tasks of the producers to compare with, by name.
const PRODUCERS: [(&str, u64); 2] = [("sync50", 50), ("sync1", 1)];
/// Connections of the load, end to end.
const CONNECTIONS: usize = 256;
/// A rate that is tried is lowered to this share while the backlog grows.
const LOWERED: f64 = 0.85;
/// The first rate that is tried, of what left while as much came in as could.
const FIRST_TRIED: f64 = 0.9;
/// How often it is lowered before the measurement is given up.
const TRIES: usize = 8;
/// A backlog grows when more is pending at the end than comes in during this many seconds.
const GROWTH_SECONDS: f64 = 0.25;
/// The histogram from acceptance to settlement.
const LATENCY: &str = "wayhold_delivery_latency_seconds";

/// Everything about Kafka.
pub const PART: Part = Part {
    names: &[
        "kafka.pipelined",
        "kafka.sync50",
        "kafka.sync1",
        "kafka.one_key",
        "end_to_end.kafka",
        "end_to_end.p50.kafka",
        "end_to_end.p99.kafka",
    ],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "kafka.pipelined",
                over: "kafka.sync50",
            },
            3.0,
            5.0,
        ),
        Target::at_least(
            Derived::Ratio {
                of: "kafka.pipelined",
                over: "kafka.sync1",
            },
            30.0,
            60.0,
        ),
    ],
    round: measure,
};

/// Every round, if there is a broker.
fn measure(first: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let (plan, folder) = (first.plan, first.data()?);
    let Some(broker) = Broker::find(folder.path(), !plan.is_smoke)? else {
        return Ok(());
    };
    let bootstrap = broker.bootstrap.as_str();
    let many = Side::start(plan, bootstrap, "many-keys", folder.path())?;
    let one = Side::start(plan, bootstrap, "one-key", folder.path())?;
    let whole = Side::start(plan, bootstrap, "end-to-end", folder.path())?;
    control::resume(whole.server.address, DESTINATION)?;
    let produced = unique("produced");
    topic::create(bootstrap, &produced, PARTITIONS)?;
    let mut rate = first_rate(plan, &whole)?;
    for round in 0..plan.rounds {
        figures.begin_round(round);
        pipelined(plan, round, &many, figures)?;
        for (name, tasks) in PRODUCERS {
            let report = produce(bootstrap, &produced, tasks, plan.kafka_seconds)?;
            figures.add(format!("kafka.{name}"), "events/s", report.rate);
        }
        one_key(plan, round, &one, figures)?;
        rate = end_to_end(plan, (round, rate), &whole, figures)?;
    }
    for side in [many, one, whole] {
        side.server.kill();
    }
    Ok(())
}

/// A server with a topic of its own.
struct Side {
    server: Server,
    _data: TempDir,
}

impl Side {
    /// Starts it with its destination paused.
    fn start(plan: &Plan, bootstrap: &str, name: &str, folder: &Path) -> Result<Self, BenchError> {
        let topic = unique(name);
        topic::create(bootstrap, &topic, PARTITIONS)?;
        let data = tempfile::tempdir_in(folder)?;
        let flags = plan.serve("wayhold", &["--kafka", bootstrap, "--topic", &topic]);
        let server = Server::start("wayhold", data.path(), &flags)?;
        Ok(Self {
            server,
            _data: data,
        })
    }

    fn pending(&self) -> Result<u64, BenchError> {
        control::pending(self.server.address, DESTINATION)
    }

    fn fill(&self, events: u64, keys: u64, prefix: &str) -> Result<(), BenchError> {
        let flags = [
            "--connections=16".to_owned(),
            "--batch=100".to_owned(),
            format!("--events={events}"),
            format!("--keys={keys}"),
            format!("--prefix={prefix}"),
        ];
        load(self.server.address, &flags).map(drop)
    }
}

/// A topic's name that no run before has used on the same broker.
fn unique(name: &str) -> String {
    format!("bench-{name}-{}", uuid::Uuid::now_v7().simple())
}

/// A backlog of many keys: the rate between its first tenth and its last twentieth.
fn pipelined(
    plan: &Plan,
    round: usize,
    side: &Side,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let events = plan.kafka_backlog;
    side.fill(events, crate::payload::KEYS, &format!("many-{round}"))?;
    let address = side.server.address;
    control::resume(address, DESTINATION)?;
    let from = control::pending_at_most(address, DESTINATION, events - events / 10)?;
    let to = control::pending_at_most(address, DESTINATION, events / 20)?;
    figures.add("kafka.pipelined", "events/s", from.rate_to(to));
    control::drained(address, DESTINATION)?;
    control::pause(address, DESTINATION)
}

/// All with one key, one in flight: each waits for the report of the one before.
fn one_key(
    plan: &Plan,
    round: usize,
    side: &Side,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let address = side.server.address;
    if side.pending()? < plan.kafka_one_key {
        side.fill(plan.kafka_one_key, 1, &format!("one-{round}"))?;
    }
    let events = side.pending()?;
    control::resume(address, DESTINATION)?;
    // The first few find the connections.
    let from = control::pending_at_most(address, DESTINATION, events - events / 50)?;
    std::thread::sleep(Duration::from_secs_f64(plan.kafka_seconds));
    let to = control::pending_at_most(address, DESTINATION, events)?;
    control::pause(address, DESTINATION)?;
    if to.pending == 0 {
        return Err(format!("{events} events with one key left before the time was up").into());
    }
    figures.add("kafka.one_key", "events/s", from.rate_to(to));
    Ok(())
}

/// What leaves per second while as much comes in as can.
fn first_rate(plan: &Plan, side: &Side) -> Result<f64, BenchError> {
    let report = load(
        side.server.address,
        &[
            format!("--connections={CONNECTIONS}"),
            format!("--seconds={}", plan.kafka_seconds),
            "--warmup=0".to_owned(),
            "--prefix=first".to_owned(),
        ],
    )?;
    let held = side.pending()?;
    control::drained(side.server.address, DESTINATION)?;
    Ok(per_second(report.events_in_all.saturating_sub(held), report.seconds) * FIRST_TRIED)
}

/// The rate at which as much leaves as comes in, and how long an event is on its way at that rate.
/// Gives the rate to try in the next round.
fn end_to_end(
    plan: &Plan,
    (round, mut rate): (usize, f64),
    side: &Side,
    figures: &mut Figures,
) -> Result<f64, BenchError> {
    let address = side.server.address;
    for attempt in 0..TRIES {
        let before = Buckets::read(&control::metrics(address)?, LATENCY);
        let report = load(
            address,
            &[
                format!("--connections={CONNECTIONS}"),
                format!("--rate={rate}"),
                format!("--seconds={}", plan.kafka_seconds),
                format!("--prefix=e{round}-{attempt}"),
            ],
        )?;
        let held = side.pending()?;
        control::drained(address, DESTINATION)?;
        if per_second(held, rate) > GROWTH_SECONDS {
            rate *= LOWERED;
            continue;
        }
        let latency = Buckets::read(&control::metrics(address)?, LATENCY).since(&before);
        figures.add("end_to_end.kafka", "events/s", report.rate);
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            if let Some(seconds) = latency.quantile(share) {
                figures.add(format!("end_to_end.{name}.kafka"), "ms", seconds * 1e3);
            }
        }
        return Ok(rate);
    }
    Err(format!("the backlog grows even at {rate:.0} events a second").into())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per_second(events: u64, seconds: f64) -> f64 {
    events as f64 / seconds
}
