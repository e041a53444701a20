//! Proposing commands beside accepting events, with the target down: what it costs to have a decision and a record of it
//! before the answer.

use super::accept::refuse_refusals;
use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::load::COMMAND_KIND;
use crate::process::{Server, load};

/// Connections of both loads.
const CONNECTIONS: usize = 64;

/// Both ways in, each on a server of its own.
pub const PART: Part = Part {
    names: &[
        "commands.propose",
        "commands.events",
        "commands.p99.propose",
        "commands.p99.events",
    ],
    targets: &[
        Target::at_least(ratio("commands.propose", "commands.events"), 0.25, 0.4),
        Target::at_most(
            ratio("commands.p99.propose", "commands.p99.events"),
            3.0,
            2.0,
        ),
    ],
    round,
};

const fn ratio(of: &'static str, over: &'static str) -> Derived {
    Derived::Ratio { of, over }
}

/// Which one begins takes turns.
fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let ways = match round.number.is_multiple_of(2) {
        true => ["propose", "events"],
        false => ["events", "propose"],
    };
    for way in ways {
        let data = round.data()?;
        let kind = format!("--commands={COMMAND_KIND}");
        let flags = round.plan.serve("wayhold", &[&kind, "--deliver"]);
        let server = Server::start("wayhold", data.path(), &flags)?;
        let mut flags = round.plan.load(CONNECTIONS, 1, way);
        if way == "propose" {
            flags.push("--commands".to_owned());
        }
        let report = load(server.address, &flags)?;
        refuse_refusals(way, &report)?;
        figures.add(format!("commands.{way}"), "requests/s", report.rate);
        figures.add(format!("commands.p99.{way}"), "ms", report.p99_ms);
        server.kill();
    }
    Ok(())
}
