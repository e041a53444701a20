//! The longest answer while segments change: what a new file, an index and a clean-up beside the writer
//! cost the unluckiest of all requests, against the unluckiest of a server that has no files.

use super::accept::refuse_refusals;
use super::files::segments_made;
use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::process::{Server, load};

const WAYHOLD: &str = "accept.longest.segments.wayhold";
const BARE: &str = "accept.longest.segments.bare";

/// Connections of both loads.
const CONNECTIONS: usize = 256;
/// Events of 1 KiB that end a segment of 64 MiB when they are committed in small groups; more of them
/// fit when groups are large, then the load goes on.
const EVENTS_PER_SEGMENT: u64 = 43_000;

/// The longest answer over many changes of segments.
pub const PART: Part = Part {
    names: &[WAYHOLD, BARE],
    targets: &[Target::at_most(
        Derived::Ratio {
            of: WAYHOLD,
            over: BARE,
        },
        3.0,
        2.0,
    )],
    round,
};

fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let (longest, seconds) = wayhold(round)?;
    figures.add(WAYHOLD, "ms", longest);
    figures.add(BARE, "ms", bare(round, seconds)?);
    Ok(())
}

/// The longest answer until segments have changed often enough, and how many seconds that took.
fn wayhold(round: &Round<'_>) -> Result<(f64, f64), BenchError> {
    let data = round.data()?;
    let store = data.path().join("data");
    let server = Server::start("wayhold", data.path(), &round.plan.serve("wayhold", &[]))?;
    let before = segments_made(&store)?;
    let (mut longest, mut seconds) = (0.0_f64, 0.0);
    for number in 0.. {
        let changes = segments_made(&store)? - before;
        let missing = round.plan.segment_changes.saturating_sub(changes);
        if missing == 0 {
            break;
        }
        let flags = [
            format!("--connections={CONNECTIONS}"),
            format!("--events={}", missing * EVENTS_PER_SEGMENT),
            format!("--prefix=segments{number}"),
        ];
        let report = load(server.address, &flags)?;
        refuse_refusals("wayhold", &report)?;
        longest = longest.max(report.longest_ms);
        seconds += report.seconds;
    }
    server.stop()?;
    Ok((longest, seconds))
}

/// The longest answer over the same time.
fn bare(round: &Round<'_>, seconds: f64) -> Result<f64, BenchError> {
    let data = round.data()?;
    let server = Server::start("bare", data.path(), &[])?;
    let flags = [
        format!("--connections={CONNECTIONS}"),
        "--warmup=0".to_owned(),
        format!("--seconds={seconds}"),
    ];
    let report = load(server.address, &flags)?;
    refuse_refusals("bare", &report)?;
    server.stop()?;
    Ok(report.longest_ms)
}
