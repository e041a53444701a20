//! Delivering to a real broker: Wayhold's Kafka destination with ten thousand keys and with one, beside
//! producers that wait for each report; and the whole way, HTTP in and Kafka out.
//!
//! Everything runs on the same cores: broker, server, producers and load.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::control;
use super::part::{Part, Round};
use super::plan::Plan;
use super::quantile::Buckets;
use super::series::Figures;
use super::service::{Kind, Service};
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::kafka::topic;
use crate::process::{Server, load, produce};
use crate::serve::DESTINATION;

/// The broker.
const KAFKA: Kind = Kind {
    name: "kafka",
    variable: "WAYHOLD_TEST_KAFKA",
    figures: "kafka.* and end_to_end.*",
};
/// Partitions of each topic.
const PARTITIONS: i32 = 12;
/// Tasks of the producers to compare with, by name.
const PRODUCERS: [(&str, u64); 2] = [("sync50", 50), ("sync1", 1)];
/// Connections of the load, end to end.
const CONNECTIONS: usize = 256;
/// Shares of a rate that are tried next: where the backlog grows, and where it does not.
const LOWERED: f64 = 0.8;
const RAISED: f64 = 1.2;
/// Rates that one round tries at most: from one round to the next they go on.
const TRIES: usize = 5;
/// A backlog grows when more is pending at the end than comes in during this many seconds.
const GROWTH_SECONDS: f64 = 0.25;
/// A rate is kept when this share of it is acknowledged.
const KEPT_UP: f64 = 0.95;
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
    let Some(broker) = Service::find(KAFKA, folder.path(), !plan.is_smoke)? else {
        return Ok(());
    };
    let bootstrap = broker.address.as_str();
    let many = Side::start(plan, bootstrap, "many-keys", folder.path())?;
    let one = Side::start(plan, bootstrap, "one-key", folder.path())?;
    let whole = Side::start(plan, bootstrap, "end-to-end", folder.path())?;
    control::resume(whole.server.address, DESTINATION)?;
    let produced = unique("produced");
    topic::create(bootstrap, &produced, PARTITIONS)?;
    let mut rate = None;
    for round in 0..plan.rounds {
        figures.begin_round(round);
        pipelined(plan, round, &many, figures)?;
        for (name, tasks) in PRODUCERS {
            let report = produce(bootstrap, &produced, tasks, plan.kafka_seconds)?;
            figures.add(format!("kafka.{name}"), "events/s", report.rate);
        }
        one_key(plan, round, &one, figures)?;
        // The first rate is sought once the broker has been warmed up by the others.
        let tried = rate.map_or_else(|| first_rate(plan, &whole), Ok)?;
        rate = Some(end_to_end(plan, (round, tried), &whole, figures)?);
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
    let flags = [
        format!("--connections={CONNECTIONS}"),
        format!("--seconds={}", plan.kafka_seconds),
        "--warmup=0".to_owned(),
        "--prefix=first".to_owned(),
    ];
    let report = load(side.server.address, &flags)?;
    let held = side.pending()?;
    control::drained(side.server.address, DESTINATION)?;
    let left = report.events_in_all.saturating_sub(held).max(1);
    Ok(per_second(left, report.seconds))
}

/// The highest rate tried at which as much leaves as comes in, and how long an event is on its way then.
/// Gives that rate, for the next round to begin with.
fn end_to_end(
    plan: &Plan,
    (round, mut rate): (usize, f64),
    side: &Side,
    figures: &mut Figures,
) -> Result<f64, BenchError> {
    let mut best = None;
    let tries = if plan.is_smoke { 1 } else { TRIES };
    for attempt in 0..tries {
        match steady(plan, rate, &format!("e{round}-{attempt}"), side)? {
            Some(steady) => {
                best = Some((rate, steady));
                rate *= RAISED;
            }
            None if best.is_some() => break,
            None => rate *= LOWERED,
        }
    }
    let Some((rate, steady)) = best else {
        return Err(format!("the backlog grows even at {:.0} events/s", rate / LOWERED).into());
    };
    figures.add("end_to_end.kafka", "events/s", steady.rate);
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        if let Some(seconds) = steady.latency.quantile(share) {
            figures.add(format!("end_to_end.{name}.kafka"), "ms", seconds * 1e3);
        }
    }
    Ok(rate)
}

/// A time during which the backlog did not grow.
struct Steady {
    /// Events per second.
    rate: f64,
    /// From acceptance to settlement, in seconds.
    latency: Buckets,
}

/// Sends at this rate for a while; `None` where the backlog grew.
fn steady(plan: &Plan, rate: f64, prefix: &str, side: &Side) -> Result<Option<Steady>, BenchError> {
    let address = side.server.address;
    let before = Buckets::read(&control::metrics(address)?, LATENCY);
    let flags = [
        format!("--connections={CONNECTIONS}"),
        format!("--rate={rate}"),
        "--warmup=0.5".to_owned(),
        format!("--seconds={}", plan.kafka_seconds),
        format!("--prefix={prefix}"),
    ];
    let report = load(address, &flags)?;
    let held = side.pending()?;
    control::drained(address, DESTINATION)?;
    // A load that falls behind its own rate shows nothing of that rate.
    let is_steady = per_second(held, rate) <= GROWTH_SECONDS && report.rate >= rate * KEPT_UP;
    if !is_steady && !plan.is_smoke {
        return Ok(None);
    }
    Ok(Some(Steady {
        rate: report.rate,
        latency: Buckets::read(&control::metrics(address)?, LATENCY).since(&before),
    }))
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per_second(events: u64, seconds: f64) -> f64 {
    events as f64 / seconds
}
