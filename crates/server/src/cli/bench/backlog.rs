//! A backlog: events that wait for a destination that is away, what memory they cost, and how fast they
//! are worked off once it is back.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::exit::Failure;
use super::accept::{count, millis, per};
use super::load::Load;
use super::machine::Resident;
use super::server::Server;

/// Callers that fill it, each with so many events in one request.
const FILLED_BY: (usize, usize) = (16, 100);

/// Of the step's time one in so many goes into filling.
const FILLING: u32 = 3;

/// How often is looked how much is left.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A window of ids so small that it takes no memory to speak of: what a window takes follows from its
/// size, so it is added by rule, and what is measured is everything else.
pub const NO_WINDOW: &str = "window_ids = 1000";

/// What a backlog costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Backlog {
    /// Events in it.
    pub events: u64,
    /// Memory of the server while it was empty, without the window of ids.
    pub empty_bytes: u64,
    /// With the backlog.
    pub filled_bytes: u64,
    /// After it was worked off.
    pub drained_bytes: u64,
    /// The most it ever was.
    pub peak_bytes: u64,
    /// Deliveries that were measured while it was worked off.
    pub drained: u64,
    /// Deliveries a second.
    pub drained_per_second: f64,
    /// Processor time of one delivery.
    pub cpu_us_per_delivery: f64,
}

/// Fills a backlog of at most `events_max` events and works it off, within `time`.
///
/// # Errors
/// When server or load cannot be run.
pub async fn measure(folder: &Path, events_max: u64, time: Duration) -> Result<Backlog, Failure> {
    let until = Instant::now() + time;
    let mut server = Server::start(folder, 1, NO_WINDOW).await?;
    server.pause().await?;
    let empty_bytes = server.resident()?.now;
    let (callers, batch) = FILLED_BY;
    let load = Load {
        target: server.address(),
        callers,
        batch,
        millis: millis(time / FILLING),
        events: events_max,
    };
    load.run_apart().await?;
    let filled_bytes = server.resident()?.now;
    let events = server.pending().await?;
    let cpu = server.cpu()?;
    let begun = Instant::now();
    server.resume().await?;
    let mut pending = events;
    let mut took = Duration::ZERO;
    while pending > 0 && (took.is_zero() || Instant::now() < until) {
        tokio::time::sleep(LOOK_EVERY).await;
        pending = server.pending().await?;
        took = begun.elapsed();
    }
    let drained = events.saturating_sub(pending);
    let cpu = server.cpu()?.saturating_sub(cpu);
    let Resident { now, peak } = server.resident()?;
    server.end()?;
    Ok(Backlog {
        events,
        empty_bytes,
        filled_bytes,
        drained_bytes: now,
        peak_bytes: peak,
        drained,
        drained_per_second: per(count(drained), took.as_secs_f64()),
        cpu_us_per_delivery: per(cpu.as_secs_f64() * 1e6, count(drained)),
    })
}
