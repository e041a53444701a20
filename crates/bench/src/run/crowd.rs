//! Very many webhook destinations, and what those that are well notice of those that are not: the same open loop, once
//! without the bad ones and once with them.

use std::path::Path;
use std::time::Instant;

use super::control;
use super::part::{Part, Round};
use super::plan::Plan;
use super::quantile::Buckets;
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::process::{Server, load};
use crate::serve::WELL;

/// The open loop sends this share of what the crowd takes when it is well.
const LOAD: f64 = 0.3;
/// The histogram from acceptance to settlement.
const LATENCY: &str = "wayhold_delivery_latency_seconds";
/// Connections of the load.
const CONNECTIONS: usize = 64;

/// Everything about crowds.
pub const PART: Part = Part {
    names: &[
        "crowd.capacity",
        "crowd.well.delivered",
        "crowd.well.p99",
        "crowd.beside_bad.delivered",
        "crowd.beside_bad.p99",
    ],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "crowd.beside_bad.delivered",
                over: "crowd.well.delivered",
            },
            0.95,
            0.99,
        ),
        Target::at_most(
            Derived::Ratio {
                of: "crowd.beside_bad.p99",
                over: "crowd.well.p99",
            },
            1.5,
            1.2,
        ),
    ],
    round: measure,
};

/// Every round: a pair, each with a server of its own.
fn measure(first: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let (plan, folder) = (first.plan, first.data()?);
    let well = plan.crowd - plan.crowd_bad;
    let mut rate = None;
    for round in 0..plan.rounds {
        figures.begin_round(round);
        let crowd = Crowd::start(plan, folder.path(), (well, 0))?;
        // It has been warmed up by that.
        let capacity = crowd.capacity(plan)?;
        figures.add("crowd.capacity", "events/s", capacity);
        let rate = *rate.get_or_insert(capacity * LOAD);
        crowd.run(plan, rate, ("well", figures))?;
        crowd.end();
        let crowd = Crowd::start(plan, folder.path(), (plan.crowd, plan.crowd_bad))?;
        crowd.capacity_of(plan, well)?;
        // As much for each of them as before.
        let share = float(plan.crowd) / float(well);
        crowd.run(plan, rate * share, ("beside_bad", figures))?;
        crowd.end();
    }
    Ok(())
}

/// A server with very many destinations, and their receiver.
struct Crowd {
    receiver: Server,
    server: Server,
    destinations: u64,
    _data: tempfile::TempDir,
}

impl Crowd {
    fn start(plan: &Plan, folder: &Path, (crowd, bad): (u64, u64)) -> Result<Self, BenchError> {
        let data = tempfile::tempdir_in(folder)?;
        let receiver = Server::start("receiver", &data.path().join("receiver"), &[])?;
        let url = format!("--webhook=http://{}/hook", receiver.address);
        let (crowd_flag, bad) = (format!("--crowd={crowd}"), format!("--bad={bad}"));
        let flags = [url.as_str(), &crowd_flag, &bad, "--deliver"];
        let flags = plan.serve("wayhold", &flags);
        let server = Server::start("wayhold", &data.path().join("server"), &flags)?;
        Ok(Self {
            receiver,
            server,
            destinations: crowd,
            _data: data,
        })
    }

    /// Events a second, from the first sent to the last delivered, when all are well.
    fn capacity(&self, plan: &Plan) -> Result<f64, BenchError> {
        self.capacity_of(plan, self.destinations)
    }

    /// The same with events for the first destinations alone.
    fn capacity_of(&self, plan: &Plan, destinations: u64) -> Result<f64, BenchError> {
        let began = Instant::now();
        let flags = [
            "--connections=16".to_owned(),
            "--batch=100".to_owned(),
            format!("--events={}", plan.crowd_events),
            format!("--keys={destinations}"),
            "--prefix=capacity".to_owned(),
        ];
        load(self.server.address, &flags)?;
        control::eventually("the crowd has everything", || {
            Ok(self.latencies()?.count() >= float(plan.crowd_events))
        })?;
        Ok(float(plan.crowd_events) / began.elapsed().as_secs_f64())
    }

    /// The open loop, and what those that are well got of it.
    fn run(
        &self,
        plan: &Plan,
        rate: f64,
        (name, figures): (&str, &mut Figures),
    ) -> Result<(), BenchError> {
        let before = self.latencies()?;
        let mut flags = plan.long_load((CONNECTIONS, 1), "open", plan.crowd_seconds);
        flags.extend([
            format!("--rate={rate}"),
            format!("--keys={}", self.destinations),
        ]);
        let began = Instant::now();
        load(self.server.address, &flags)?;
        let seconds = began.elapsed().as_secs_f64();
        let delivered = self.latencies()?.since(&before);
        let p99 = delivered
            .quantile(0.99)
            .ok_or("nothing of the open loop was delivered in time")?;
        let figure = |what: &str| format!("crowd.{name}.{what}");
        figures.add(figure("delivered"), "events/s", delivered.count() / seconds);
        figures.add(figure("p99"), "ms", p99 * 1e3);
        Ok(())
    }

    /// Latencies of those that are well.
    fn latencies(&self) -> Result<Buckets, BenchError> {
        let metrics = control::metrics(self.server.address)?;
        let mark = format!("destination=\"{WELL}");
        let lines: Vec<&str> = metrics
            .lines()
            .filter(|line| line.contains(&mark))
            .collect();
        Ok(Buckets::read(&lines.join("\n"), LATENCY))
    }

    fn end(self) {
        self.server.kill();
        self.receiver.kill();
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
