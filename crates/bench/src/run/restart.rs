//! Starting again with nothing, hundreds of thousands and millions pending, from a cold disk; and the
//! memory that a server takes with them. Once with one shard, and apart with four and more pending.

use std::path::Path;

use super::args::tell;
use super::backlog::{Backlog, Ending, prepare};
use super::drain::fill;
use super::part::{Part, Round};
use super::plan::Plan;
use super::series::Figures;
use super::verdict::{Derived, Target};
use super::{cold, control};
use crate::BenchError;
use crate::process::Server;
use crate::serve::DESTINATION;

/// Deliveries after which memory is looked at.
const DELIVERED: u64 = 50_000;
/// Events accepted before that.
const ACCEPTED: &[&str] = &["--connections=16", "--batch=100"];
const ACCEPTED_EVENTS: u64 = 20_000;

/// Restarts and memory.
pub const PART: Part = Part {
    names: &[
        "restart.empty",
        "restart.backlog400k",
        "restart.backlog2m",
        "restart.backlog4m",
        "rss.backlog400k",
        "rss.backlog4m",
    ],
    targets: &[
        Target::at_most(
            Derived::Ratio {
                of: "restart.backlog4m",
                over: "restart.backlog400k",
            },
            1.3,
            1.1,
        ),
        Target::at_most(
            Derived::Above {
                of: "restart.backlog2m",
                base: "restart.empty",
            },
            0.5,
            0.2,
        ),
        Target::at_most(
            Derived::Ratio {
                of: "rss.backlog4m",
                over: "rss.backlog400k",
            },
            1.3,
            1.1,
        ),
    ],
    round: |round, figures| {
        let kind = Kind {
            prefix: "",
            flags: &[],
            backlogs: &round.plan.backlogs,
        };
        kind.measure(round, figures)
    },
};

/// The same with four shards and five million pending: takes long to prepare, so only where it is named.
pub const SHARDS: Part = Part {
    names: &[
        "shards4.restart.empty",
        "shards4.restart.backlog500k",
        "shards4.restart.backlog5m",
        "shards4.rss.backlog500k",
        "shards4.rss.backlog5m",
    ],
    targets: &[
        Target::at_most(
            Derived::Ratio {
                of: "shards4.restart.backlog5m",
                over: "shards4.restart.backlog500k",
            },
            1.3,
            1.1,
        ),
        Target::at_most(
            Derived::Above {
                of: "shards4.restart.backlog5m",
                base: "shards4.restart.empty",
            },
            0.5,
            0.2,
        ),
        Target::at_most(
            Derived::Ratio {
                of: "shards4.rss.backlog5m",
                over: "shards4.rss.backlog500k",
            },
            1.3,
            1.1,
        ),
    ],
    round: |round, figures| {
        let kind = Kind {
            prefix: "shards4.",
            flags: &["--shards=4"],
            backlogs: &round.plan.backlogs_of_shards,
        };
        kind.measure(round, figures)
    },
};

/// A server that is started again.
struct Kind<'a> {
    /// What its figures begin with.
    prefix: &'static str,
    flags: &'a [&'a str],
    backlogs: &'a [(&'static str, u64)],
}

impl Kind<'_> {
    /// Fills the stores, then starts on each of them in every round.
    fn measure(&self, first: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
        let (plan, folder) = (first.plan, first.data()?);
        let backlogs = prepare(plan, (self.backlogs, self.flags), folder.path())?;
        let mut how = None;
        for round in 0..plan.rounds {
            figures.begin_round(round);
            // Each round begins with another one, so that none always follows the same.
            let first = round % backlogs.len();
            for backlog in backlogs.iter().cycle().skip(first).take(backlogs.len()) {
                let mut worse: f64 = 0.0;
                for ending in Ending::ALL {
                    let trial = tempfile::tempdir_in(folder.path())?;
                    let data = trial.path().join("server");
                    backlog.copy_to(ending, &data)?;
                    // Once is enough to show that it runs, and it holds up everything else on the machine.
                    if how.is_none() || !plan.is_smoke {
                        how = Some(cold::forget(&data)?);
                    }
                    worse = worse.max(self.start(plan, &data, (backlog, ending), figures)?);
                }
                figures.add(self.name("restart", backlog.name), "s", worse);
            }
        }
        if let Some(how) = how {
            tell(&format!("starts were made cold by {how}"));
        }
        Ok(())
    }

    /// One start: seconds from that of the process until the first event is acknowledged.
    fn start(
        &self,
        plan: &Plan,
        data: &Path,
        (backlog, ending): (&Backlog, Ending),
        figures: &mut Figures,
    ) -> Result<f64, BenchError> {
        let server = Server::start("wayhold", data, &plan.serve("wayhold", self.flags))?;
        control::send_first(server.address)?;
        let seconds = server.started.elapsed().as_secs_f64();
        let name = self.name("restart", &format!("{}.{}", backlog.name, ending.as_str()));
        figures.add(name, "s", seconds);
        if backlog.is_pending && ending == Ending::Stopped {
            self.memory(&server, backlog.name, figures)?;
        }
        server.kill();
        Ok(seconds)
    }

    /// Resident memory after accepting and delivering for a moment, and its peak since the start.
    fn memory(&self, server: &Server, name: &str, figures: &mut Figures) -> Result<(), BenchError> {
        fill(server, ACCEPTED, ACCEPTED_EVENTS)?;
        let before = control::pending(server.address, DESTINATION)?;
        control::resume(server.address, DESTINATION)?;
        control::pending_at_most(
            server.address,
            DESTINATION,
            before.saturating_sub(DELIVERED),
        )?;
        control::pause(server.address, DESTINATION)?;
        let memory = server.memory()?;
        figures.add(self.name("rss", name), "MiB", memory.resident);
        figures.add(self.name("rss.peak", name), "MiB", memory.peak);
        Ok(())
    }

    /// The name of a figure of one of its backlogs.
    fn name(&self, figure: &str, backlog: &str) -> String {
        format!("{}{figure}.{backlog}", self.prefix)
    }
}
