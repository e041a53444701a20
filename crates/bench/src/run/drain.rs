//! A backlog, and how fast it leaves once its destination takes everything.

use std::time::Instant;

use super::control;
use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::process::{Server, load};
use crate::serve::{DESTINATION, Outbox};

/// Connections and batch that fill Wayhold, and connections that fill the classic outbox.
const FILL_WAYHOLD: [&str; 2] = ["--connections=16", "--batch=100"];
const FILL_CLASSIC: [&str; 1] = ["--connections=256"];

/// What leaves when nothing holds it.
pub const PART: Part = Part {
    names: &["drain.null", "drain.classic"],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "drain.null",
                over: "accept.single.256.wayhold",
            },
            3.0,
            6.0,
        ),
        Target::at_least(
            Derived::Ratio {
                of: "drain.null",
                over: "drain.classic",
            },
            20.0,
            40.0,
        ),
    ],
    round,
};

/// One round of both.
fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    wayhold(round, figures)?;
    classic(round, figures)
}

/// Through the shipped dispatcher to a `null` destination, from the disk: the server is restarted in
/// between, so nothing of the backlog is in its memory.
fn wayhold(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let data = round.data()?;
    let flags = round.plan.serve("wayhold", &[]);
    let empty = Server::start("wayhold", data.path(), &flags)?;
    fill(&empty, &FILL_WAYHOLD, round.plan.backlog)?;
    empty.stop()?;

    let server = Server::start("wayhold", data.path(), &flags)?;
    let pending = control::pending(server.address, DESTINATION)?;
    if pending < round.plan.backlog {
        return Err(format!("{pending} of {} events are pending", round.plan.backlog).into());
    }
    control::resume(server.address, DESTINATION)?;
    let took = control::drained(server.address, DESTINATION)?;
    figures.add("drain.null", "events/s", rate(pending, took.as_secs_f64()));
    server.stop()?;
    Ok(())
}

/// Its pollers alone, without a server beside them.
fn classic(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let data = round.data()?;
    let server = Server::start("classic", data.path(), &[])?;
    fill(&server, &FILL_CLASSIC, round.plan.backlog_classic)?;
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

/// Sends a number of events as fast as they are taken.
pub fn fill(server: &Server, shape: &[&str], events: u64) -> Result<(), BenchError> {
    let mut flags: Vec<String> = shape.iter().map(|&flag| flag.into()).collect();
    flags.push(format!("--events={events}"));
    load(server.address, &flags).map(drop)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(events: u64, seconds: f64) -> f64 {
    events as f64 / seconds
}
