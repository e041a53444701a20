//! Delivering to a webhook: beside the same HTTP client in a bare loop, at a rate that the destination asked for, and
//! with much that waits to be tried again.

use std::path::Path;
use std::time::{Duration, Instant};

use super::control;
use super::drain::fill;
use super::part::{Part, Round};
use super::plan::Plan;
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::payload::DATA_BYTES;
use crate::process::{Server, Start, post};
use crate::serve::DESTINATION;
use crate::webhook::arrivals::Report;

/// What fills a backlog.
const FILL: [&str; 2] = ["--connections=16", "--batch=100"];
/// The same with a key for each event: where one key waits, another is tried.
const FILL_KEYS: [&str; 3] = ["--connections=16", "--batch=100", "--keys=1000000000"];
/// Attempts a second of the destination that has a rate.
const RATE: u64 = 5_000;

/// Requests that a webhook has in flight by default.
const TASKS: u64 = 8;

/// A server is at rest once its memory stayed the same for so long, within so much.
const STILL: Duration = Duration::from_secs(2);
const REST_MIB: f64 = 0.25;

const MIB: u64 = 1024 * 1024;

/// Everything about webhooks.
pub const PART: Part = Part {
    names: &[
        "webhook.delivered",
        "webhook.bare_client",
        "webhook.rate.busiest",
        "webhook.retry.memory",
    ],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "webhook.delivered",
                over: "webhook.bare_client",
            },
            0.5,
            0.7,
        ),
        Target::at_most(Derived::Figure("webhook.rate.busiest"), 1.05, 1.02),
        Target::at_most(Derived::Figure("webhook.retry.memory"), 0.5, 0.25),
    ],
    round: measure,
};

/// Every round.
fn measure(first: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let (plan, folder) = (first.plan, first.data()?);
    for round in 0..plan.rounds {
        figures.begin_round(round);
        if first.wants_any(&["webhook.delivered", "webhook.bare_client"]) {
            delivered(plan, folder.path(), figures)?;
        }
        if first.wants("webhook.rate.busiest") {
            busiest(plan, folder.path(), figures)?;
        }
        if first.wants("webhook.retry.memory") {
            memory(plan, folder.path(), figures)?;
        }
    }
    Ok(())
}

/// A receiver, and a server that delivers to it.
struct Pair {
    receiver: Server,
    server: Server,
    _data: tempfile::TempDir,
}

impl Pair {
    /// Starts both, the destination paused.
    fn start(plan: &Plan, folder: &Path, status: &str, flags: &[&str]) -> Result<Self, BenchError> {
        Self::start_as(plan, folder, (status, flags), false)
    }

    /// The same, with a server that gives back at once what it frees, or not.
    fn start_as(
        plan: &Plan,
        folder: &Path,
        (status, flags): (&str, &[&str]),
        gives_back: bool,
    ) -> Result<Self, BenchError> {
        let data = tempfile::tempdir_in(folder)?;
        let receiver_data = data.path().join("receiver");
        let status = format!("--status={status}");
        let receiver = Server::start("receiver", &receiver_data, &[status])?;
        let url = format!("--webhook=http://{}/hook", receiver.address);
        let flags: Vec<&str> = flags.iter().copied().chain([url.as_str()]).collect();
        let server_data = data.path().join("server");
        let start = Start {
            gives_back,
            ..Start::new("wayhold", &server_data)
        };
        let server = start.run(&plan.serve("wayhold", &flags))?;
        Ok(Self {
            receiver,
            server,
            _data: data,
        })
    }

    /// Until so many were tried.
    fn until_all_wait(&self, waiting: u64) -> Result<(), BenchError> {
        control::eventually("all were tried", || {
            Ok(self.arrived()?.requests as u64 >= waiting)
        })
    }

    fn arrived(&self) -> Result<Report, BenchError> {
        Ok(serde_json::from_str(&control::get(
            self.receiver.address,
            "/",
        )?)?)
    }
}

/// A backlog of many keys, between its first tenth and its last twentieth; and the bare client, with as many requests
/// under way as a webhook has by default.
fn delivered(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let pair = Pair::start(plan, folder, "204", &[])?;
    let address = pair.server.address;
    fill(&pair.server, &FILL, plan.webhook_backlog)?;
    control::resume(address, DESTINATION)?;
    let most = |share: u64| plan.webhook_backlog / 100 * share;
    let begin = control::pending_at_most(address, DESTINATION, most(90))?;
    let end = control::pending_at_most(address, DESTINATION, most(5))?;
    figures.add("webhook.delivered", "requests/s", begin.rate_to(end));
    pair.server.kill();
    let url = format!("http://{}/hook", pair.receiver.address);
    let report = post(&url, TASKS, plan.webhook_seconds)?;
    figures.add("webhook.bare_client", "requests/s", report.rate);
    Ok(())
}

/// Much that is due at once for a destination with a rate: the busiest second at the receiver, over the rate.
fn busiest(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let rate = format!("--rate={RATE}/s");
    let pair = Pair::start(plan, folder, "204", &[&rate])?;
    fill(&pair.server, &FILL, plan.webhook_due)?;
    control::resume(pair.server.address, DESTINATION)?;
    control::drained(pair.server.address, DESTINATION)?;
    let report = pair.arrived()?;
    let busiest = u64::try_from(report.busiest_second)?;
    figures.add(
        "webhook.rate.busiest",
        "of the rate",
        float(busiest) / float(RATE),
    );
    Ok(())
}

/// Events that each failed once and wait for an hour: what each adds to the memory of the server, over its size. What a
/// server holds of its newest events and of its files is bounded, and there before anything is tried; so what is
/// counted is what the tries add to that, of few and of many. What is freed is given back at once: it would be held on
/// to, or taken again by what waits, by chance.
fn memory(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let mut held = Vec::new();
    for waiting in plan.webhook_waiting {
        let pair = Pair::start_as(plan, folder, ("500", &["--patient"]), true)?;
        fill(&pair.server, &FILL_KEYS, waiting)?;
        let before = at_rest(&pair.server)?;
        control::resume(pair.server.address, DESTINATION)?;
        pair.until_all_wait(waiting)?;
        let after = at_rest(&pair.server)?;
        // A load sends a little more than it was asked for.
        let waiting = pair.arrived()?.requests as u64;
        held.push((waiting, after - before));
    }
    if let [(few, before), (many, after)] = held[..] {
        let each = (after - before) * float(MIB) / float(many - few);
        figures.add(
            "webhook.retry.memory",
            "of the event",
            each / float(DATA_BYTES as u64),
        );
    }
    Ok(())
}

/// What a server holds in memory once that changes no more: what was freed is given back a little later, and what was
/// recorded is written.
fn at_rest(server: &Server) -> Result<f64, BenchError> {
    let mut last = (server.memory()?.resident, Instant::now());
    control::eventually("its memory changes no more", || {
        let now = server.memory()?.resident;
        if (now - last.0).abs() > REST_MIB {
            last = (now, Instant::now());
        }
        Ok(last.1.elapsed() > STILL)
    })?;
    Ok(last.0)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
