//! A backlog: how long the server takes to start on it, and how fast it leaves once its destination
//! takes everything.

use std::path::Path;
use std::time::Instant;

use super::control;
use super::plan::Plan;
use super::series::Figures;
use crate::BenchError;
use crate::process::{Server, load};
use crate::serve::{DESTINATION, Outbox};

/// Connections and batch that fill Wayhold, and connections that fill the classic outbox.
const FILL_WAYHOLD: [&str; 2] = ["--connections=16", "--batch=100"];
const FILL_CLASSIC: [&str; 1] = ["--connections=256"];

/// One round of both.
pub fn round(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    wayhold(plan, folder, figures)?;
    classic(plan, folder, figures)
}

/// Through the shipped dispatcher to a `null` destination, from the disk: the server is restarted in
/// between, so nothing of the backlog is in its memory.
fn wayhold(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let data = tempfile::tempdir_in(folder)?;
    let empty = Server::start("wayhold", data.path(), &[])?;
    figures.add("restart.empty", "s", empty.start.as_secs_f64());
    fill(&empty, &FILL_WAYHOLD, plan.backlog)?;
    empty.stop()?;

    let server = Server::start("wayhold", data.path(), &[])?;
    figures.add("restart.backlog", "s", server.start.as_secs_f64());
    let pending = control::pending(server.address, DESTINATION)?;
    if pending < plan.backlog {
        return Err(format!("{pending} of {} events are pending", plan.backlog).into());
    }
    control::resume(server.address, DESTINATION)?;
    let took = control::drained(server.address, DESTINATION)?;
    figures.add("drain.null", "events/s", rate(pending, took.as_secs_f64()));
    server.stop()?;
    Ok(())
}

/// Its pollers alone, without a server beside them.
fn classic(plan: &Plan, folder: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let data = tempfile::tempdir_in(folder)?;
    let server = Server::start("classic", data.path(), &[])?;
    fill(&server, &FILL_CLASSIC, plan.backlog_classic)?;
    server.stop()?;

    let outbox = Outbox::open(data.path())?;
    let started = Instant::now();
    let drained = outbox.drain()? as u64;
    figures.add(
        "drain.classic",
        "events/s",
        rate(drained, started.elapsed().as_secs_f64()),
    );
    Ok(())
}

fn fill(server: &Server, shape: &[&str], events: u64) -> Result<(), BenchError> {
    let mut flags: Vec<String> = shape.iter().map(|&flag| flag.into()).collect();
    flags.push(format!("--events={events}"));
    load(server.address, &flags).map(drop)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(events: u64, seconds: f64) -> f64 {
    events as f64 / seconds
}
