//! Removing many segments at once, as a retention that is over does, and what that does to the latency of
//! events that come in at a fixed rate meanwhile.

use std::path::Path;

use super::accept::refuse_refusals;
use super::control;
use super::files::segment_bytes;
use super::part::Round;
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::load::Report;
use crate::process::{Server, load, load_while};
use crate::serve::DESTINATION;

/// Its figures.
pub const BEFORE: &str = "accept.p99.before_unlink";
pub const DURING: &str = "accept.p99.during_unlink";
pub const REMOVED: &str = "unlink.removed";
pub const SECONDS: &str = "unlink.seconds";

/// What is expected of them.
pub const TARGET: Target = Target::at_most(
    Derived::Ratio {
        of: DURING,
        over: BEFORE,
    },
    1.5,
    1.2,
);

/// Events per second that come in before and meanwhile: a fifth of what is accepted at most, so that
/// the disk has room for both.
const RATE: u32 = 10_000;
/// So many that none is waited for while a sync takes some milliseconds.
const CONNECTIONS: usize = 256;
/// Connections and events of the batches that fill the store up.
const BATCH: (usize, usize) = (64, 100);
/// Most bytes of a segment for each event of 1 KiB.
const BYTES_PER_EVENT: u64 = 1_600;
/// What the segments that are being written occupy: no more is left when all others are removed.
const BYTES_LEFT: u64 = 128 * 1024 * 1024;
/// Longest time of a removal.
const SECONDS_MAX: u32 = 60;

/// Fills a delivering server's retention up, measures, starts the server again with nothing to be
/// retained, and measures until everything is removed.
pub fn measure(
    round: &Round<'_>,
    data: &Path,
    server: Server,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let store = data.join("data");
    fill(round, &store, &server)?;
    let before = load(server.address, &paced("before", round.plan.seconds))?;
    refuse_refusals("wayhold", &before)?;
    server.stop()?;

    let flags = round
        .plan
        .serve("wayhold", &["--deliver", "--retention-bytes=0"]);
    let server = Server::start("wayhold", data, &flags)?;
    let held = segment_bytes(&store)?;
    let during = load_while(server.address, &paced("during", SECONDS_MAX.into()), || {
        Ok(segment_bytes(&store)? > BYTES_LEFT)
    })?;
    refuse_refusals("wayhold", &during)?;
    let removed = held.saturating_sub(segment_bytes(&store)?);
    server.stop()?;
    add(figures, (&before, &during), removed);
    if removed < round.plan.unlinked / 2 {
        figures.note(format!(
            "{DURING}: only {removed} bytes were left to remove when the load began."
        ));
    }
    Ok(())
}

/// Until so much is retained that removing it takes a while.
fn fill(round: &Round<'_>, store: &Path, server: &Server) -> Result<(), BenchError> {
    for number in 0.. {
        let missing = round.plan.unlinked.saturating_sub(segment_bytes(store)?);
        if missing == 0 {
            break;
        }
        if number == FILLS_MAX {
            return Err("delivered events are not retained".into());
        }
        let flags = [
            format!("--connections={}", BATCH.0),
            format!("--batch={}", BATCH.1),
            format!("--events={}", missing.div_ceil(BYTES_PER_EVENT)),
            format!("--prefix=retained{number}"),
        ];
        refuse_refusals("wayhold", &load(server.address, &flags)?)?;
        control::drained(server.address, DESTINATION)?;
    }
    Ok(())
}

/// Loads that fill: the first may fall short by what an event weighs less than at most.
const FILLS_MAX: u32 = 8;

fn paced(prefix: &str, seconds: f64) -> [String; 5] {
    [
        format!("--connections={CONNECTIONS}"),
        format!("--rate={RATE}"),
        format!("--prefix={prefix}"),
        "--warmup=0".to_owned(),
        format!("--seconds={seconds}"),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn add(figures: &mut Figures, (before, during): (&Report, &Report), removed: u64) {
    figures.add(BEFORE, "ms", before.p99_ms);
    figures.add(DURING, "ms", during.p99_ms);
    figures.add(REMOVED, "bytes", removed as f64);
    figures.add(SECONDS, "s", during.seconds);
}
