//! Events in, through the whole door: HTTP, parsing, checks, routing, the commit and its sync. The one
//! destination is paused, so nothing else is done meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::exit::Failure;
use super::load::Load;
use super::server::Server;

/// Of a step's time one in so many is left for ending the server and removing its files.
const ENDING: u32 = 8;

/// Shortest load that says anything.
const LOAD_MIN: Duration = Duration::from_millis(300);

/// What so many callers get.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Accepted {
    /// Connections, each with one request under way.
    pub callers: usize,
    /// Events in one request.
    pub events_per_request: usize,
    /// Events that were counted.
    pub events: u64,
    /// Acknowledged events a second.
    pub events_per_second: f64,
    /// Half of the requests were answered within so many milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred were.
    pub p99_ms: f64,
    /// Requests that were not acknowledged.
    pub refused: u64,
    /// Events that shared one sync, on average.
    pub events_per_commit: f64,
    /// Time to write and sync one commit, on average.
    pub commit_ms: f64,
    /// What one event added to the files of the data directory.
    pub disk_bytes_per_event: f64,
    /// Processor time of the server for one event.
    pub server_cpu_us_per_event: f64,
    /// Processor time of whoever sent them, on the same cores.
    pub generator_cpu_us_per_event: f64,
}

/// Measures so many callers with so many events a request, at most `events_max` and `time`.
///
/// # Errors
/// When server or load cannot be run.
pub async fn measure(
    folder: &Path,
    (callers, batch): (usize, usize),
    events_max: u64,
    time: Duration,
) -> Result<Accepted, Failure> {
    let begun = Instant::now();
    let mut server = Server::start(folder, 1, "").await?;
    server.pause().await?;
    let (commits, cpu) = (server.commits().await?, server.cpu()?);
    let bytes = server.bytes_on_disk()?;
    let left = (time - time / ENDING).saturating_sub(begun.elapsed());
    let load = Load {
        target: server.address(),
        callers,
        batch,
        millis: millis(left.max(LOAD_MIN)),
        events: events_max,
    };
    let loaded = load.run_apart().await?;
    let cpu = server.cpu()?.saturating_sub(cpu);
    let after = server.commits().await?;
    let bytes = server.bytes_on_disk()?.saturating_sub(bytes);
    let stored = after.events - commits.events;
    let accepted = Accepted {
        callers,
        events_per_request: batch,
        events: loaded.events,
        events_per_second: per(count(loaded.events), loaded.seconds),
        p50_ms: loaded.answers.p50_ms,
        p99_ms: loaded.answers.p99_ms,
        refused: loaded.refused,
        events_per_commit: per(stored, after.commits - commits.commits),
        commit_ms: per(
            (after.seconds - commits.seconds) * 1e3,
            after.commits - commits.commits,
        ),
        disk_bytes_per_event: per(count(bytes), stored),
        server_cpu_us_per_event: per(cpu.as_secs_f64() * 1e6, stored),
        generator_cpu_us_per_event: per(loaded.cpu_seconds * 1e6, stored),
    };
    server.end()?;
    Ok(accepted)
}

/// Whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How much for each; nothing for none.
pub fn per(much: f64, each: f64) -> f64 {
    if each > 0.0 { much / each } else { 0.0 }
}

/// A count to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn count(n: u64) -> f64 {
    n as f64
}
