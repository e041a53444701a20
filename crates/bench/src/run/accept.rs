//! Accepting: the same requests to each server, at 64 and at 256 connections, in batches where a batch is
//! one decision, and what the processor spends on each event at a fixed rate.

use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::load::Report;
use crate::process::{Server, load};

/// In the first round's order; each round begins one further, so that none always runs on a disk that
/// another has just filled.
const KINDS: [&str; 4] = ["bare", "noop", "classic", "wayhold"];
/// Connections of the single-event loads: below and above the point where groups fill up.
const CONNECTIONS: [usize; 2] = [64, 256];
/// Connections of the batch load.
const CONNECTIONS_BATCH: usize = 64;
/// Events in one batch.
const BATCH: usize = 100;
/// Events per second at which processor time is compared: more than the classic outbox takes on two
/// cores, so that nobody is measured idle.
const CPU_RATE: u32 = 15_000;

/// What every server accepts.
pub const PART: Part = Part {
    names: &[
        "accept.single.64.bare",
        "accept.single.64.noop",
        "accept.single.64.classic",
        "accept.single.64.wayhold",
        "accept.single.256.bare",
        "accept.single.256.noop",
        "accept.single.256.classic",
        "accept.single.256.wayhold",
        "accept.p50.64.bare",
        "accept.p50.64.noop",
        "accept.p50.64.classic",
        "accept.p50.64.wayhold",
        "accept.p50.256.bare",
        "accept.p50.256.noop",
        "accept.p50.256.classic",
        "accept.p50.256.wayhold",
        "accept.p99.64.bare",
        "accept.p99.64.noop",
        "accept.p99.64.classic",
        "accept.p99.64.wayhold",
        "accept.p99.256.bare",
        "accept.p99.256.noop",
        "accept.p99.256.classic",
        "accept.p99.256.wayhold",
        "accept.batch100.noop",
        "accept.batch100.wayhold",
        "cpu_us.15k.noop",
        "cpu_us.15k.classic",
        "cpu_us.15k.wayhold",
    ],
    targets: &[
        Target::at_least(
            ratio("accept.single.256.wayhold", "accept.single.256.bare"),
            0.45,
            0.6,
        ),
        Target::at_least(
            ratio("accept.single.256.wayhold", "accept.single.256.classic"),
            3.5,
            4.5,
        ),
        Target::at_least(
            ratio("accept.single.64.wayhold", "accept.single.64.bare"),
            0.36,
            0.45,
        ),
        Target::at_least(
            ratio("accept.single.64.wayhold", "accept.single.64.classic"),
            2.8,
            3.5,
        ),
        Target::at_least(
            ratio("accept.batch100.wayhold", "accept.batch100.noop"),
            0.15,
            0.25,
        ),
        Target::at_most(
            ratio("accept.p99.256.wayhold", "accept.p99.256.classic"),
            0.35,
            0.2,
        ),
        Target::at_most(
            ratio("accept.p99.256.wayhold", "accept.p50.256.wayhold"),
            6.0,
            4.0,
        ),
        Target::at_most(
            Derived::NetRatio {
                of: "cpu_us.15k.wayhold",
                over: "cpu_us.15k.classic",
                net_of: "cpu_us.15k.noop",
            },
            0.4,
            0.25,
        ),
    ],
    round,
};

const fn ratio(of: &'static str, over: &'static str) -> Derived {
    Derived::Ratio { of, over }
}

/// One round over all servers.
fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let kinds = KINDS
        .iter()
        .cycle()
        .skip(round.number % KINDS.len())
        .take(KINDS.len());
    for &kind in kinds {
        let loads = Load::all(kind);
        let loads: Vec<&Load> = loads.iter().filter(|load| load.is_wanted(round)).collect();
        if loads.is_empty() {
            continue;
        }
        let data = round.data()?;
        let server = Server::start(kind, data.path(), &round.plan.serve(kind, &[]))?;
        for load in loads {
            load.run(round, &server, figures)?;
        }
        server.stop()?;
    }
    Ok(())
}

/// One load of one server.
struct Load {
    kind: &'static str,
    shape: Shape,
}

/// What a load sends.
#[derive(Clone, Copy)]
enum Shape {
    /// One event a request, at a fixed rate.
    Paced,
    /// One event a request, as fast as answers come over so many connections.
    Single(usize),
    /// Many events a request.
    Batch,
}

impl Load {
    /// The loads of one server. The paced one comes first: later the disk is busy with what the others
    /// left.
    fn all(kind: &'static str) -> Vec<Self> {
        let [few, many] = CONNECTIONS.map(Shape::Single);
        let shapes = match kind {
            "bare" => vec![few, many],
            // One synced transaction a line is not what a batch is for.
            "classic" => vec![Shape::Paced, few, many],
            _ => vec![Shape::Paced, few, many, Shape::Batch],
        };
        shapes
            .into_iter()
            .map(|shape| Self { kind, shape })
            .collect()
    }

    fn is_wanted(&self, round: &Round<'_>) -> bool {
        let kind = self.kind;
        match self.shape {
            Shape::Paced => round.wants(&format!("cpu_us.15k.{kind}")),
            Shape::Single(connections) => ["single", "p50", "p99"]
                .iter()
                .any(|figure| round.wants(&format!("accept.{figure}.{connections}.{kind}"))),
            Shape::Batch => round.wants(&format!("accept.batch100.{kind}")),
        }
    }

    fn run(
        &self,
        round: &Round<'_>,
        server: &Server,
        figures: &mut Figures,
    ) -> Result<(), BenchError> {
        let kind = self.kind;
        let cpu_before = server.cpu()?;
        let report = load(server.address, &self.flags(round))?;
        let cpu = server.cpu()?.saturating_sub(cpu_before);
        refuse_refusals(kind, &report)?;
        match self.shape {
            Shape::Paced => {
                let name = format!("cpu_us.15k.{kind}");
                let events = per_event(cpu.as_secs_f64(), report.events_in_all);
                figures.add(name, "us/event", events);
            }
            Shape::Single(connections) => {
                let name = |figure: &str| format!("accept.{figure}.{connections}.{kind}");
                figures.add(name("single"), "events/s", report.rate);
                figures.add(name("p50"), "ms", report.p50_ms);
                figures.add(name("p99"), "ms", report.p99_ms);
            }
            Shape::Batch => {
                figures.add(format!("accept.batch100.{kind}"), "events/s", report.rate);
            }
        }
        Ok(())
    }

    /// Every load of a server has ids of its own.
    fn flags(&self, round: &Round<'_>) -> Vec<String> {
        let plan = round.plan;
        match self.shape {
            Shape::Paced => {
                let mut flags = plan.load(CONNECTIONS[1], 1, "paced");
                flags.push(format!("--rate={CPU_RATE}"));
                flags
            }
            Shape::Single(connections) => plan.load(connections, 1, &format!("c{connections}")),
            Shape::Batch => plan.load(CONNECTIONS_BATCH, BATCH, "batch"),
        }
    }
}

/// A load of which requests were refused measured something else than accepting.
pub fn refuse_refusals(kind: &str, report: &Report) -> Result<(), BenchError> {
    if report.refused.is_empty() {
        return Ok(());
    }
    Err(format!("{kind} refused requests, by status: {:?}", report.refused).into())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per_event(seconds: f64, events: u64) -> f64 {
    seconds * 1e6 / events.max(1) as f64
}
