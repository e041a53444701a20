//! Accepting while events are delivered, one server for all of it: what the disk writes, whether
//! delivering slows accepting, whether a consumer that is far behind slows it more, and what removing
//! many segments does to the latency.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::accept::refuse_refusals;
use super::disk::Written;
use super::part::{Part, Round};
use super::series::Figures;
use super::verdict::{Derived, Target};
use super::{behind, control, unlink};
use crate::BenchError;
use crate::load::Report;
use crate::process::{Server, load};
use crate::serve::DESTINATION;

/// Connections of the loads of single events.
const FEW: usize = 64;
const MANY: usize = 256;
/// Connections and events of the batch load.
const BATCH: (usize, usize) = (64, 100);

/// Accepting beside delivering.
pub const PART: Part = Part {
    names: &[
        "accept.single.64.delivering",
        "accept.single.256.delivering",
        "accept.single.256.behind",
        "backlog.growth.delivering",
        "backlog.least.behind",
        "backlog.most.behind",
        "disk.bytes_per_byte.single64",
        "disk.bytes_per_byte.batch100",
        "disk.process_bytes_per_byte.single64",
        "disk.process_bytes_per_byte.batch100",
        unlink::BEFORE,
        unlink::DURING,
        unlink::REMOVED,
        unlink::SECONDS,
    ],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "accept.single.256.delivering",
                over: "accept.single.256.wayhold",
            },
            0.8,
            0.9,
        ),
        Target::at_least(
            Derived::Ratio {
                of: "accept.single.256.behind",
                over: "accept.single.256.delivering",
            },
            0.8,
            0.95,
        ),
        Target::at_most(Derived::Figure("disk.bytes_per_byte.single64"), 3.0, 2.2),
        Target::at_most(Derived::Figure("disk.bytes_per_byte.batch100"), 2.6, 1.6),
        unlink::TARGET,
    ],
    round,
};

fn round(round: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let data = round.data()?;
    let flags = round.plan.serve("wayhold", &["--deliver"]);
    let session = Session {
        round,
        data: data.path(),
        server: Server::start("wayhold", data.path(), &flags)?,
    };
    let single64 = [
        "accept.single.64.delivering",
        "disk.bytes_per_byte.single64",
        "disk.process_bytes_per_byte.single64",
    ];
    if round.wants_any(&single64) {
        let report = session.written(("single64", FEW, 1), figures)?;
        figures.add("accept.single.64.delivering", "events/s", report.rate);
    }
    let beside = [
        "accept.single.256.delivering",
        "accept.single.256.behind",
        "backlog.growth.delivering",
        "backlog.least.behind",
        "backlog.most.behind",
    ];
    if round.wants_any(&beside) {
        session.keeping_up(figures)?;
        session.behind(figures)?;
    }
    let batch100 = [
        "disk.bytes_per_byte.batch100",
        "disk.process_bytes_per_byte.batch100",
    ];
    if round.wants_any(&batch100) {
        session.written(("batch100", BATCH.0, BATCH.1), figures)?;
    }
    let removing = [
        unlink::BEFORE,
        unlink::DURING,
        unlink::REMOVED,
        unlink::SECONDS,
    ];
    if round.wants_any(&removing) {
        return unlink::measure(round, data.path(), session.server, figures);
    }
    session.server.stop()?;
    Ok(())
}

/// One server that delivers.
struct Session<'a> {
    round: &'a Round<'a>,
    data: &'a Path,
    server: Server,
}

impl Session<'_> {
    /// What the disk writes for a load, from the first request until everything was delivered.
    fn written(
        &self,
        (name, connections, batch): (&str, usize, usize),
        figures: &mut Figures,
    ) -> Result<Report, BenchError> {
        let before = Written::now(self.data, &self.server)?;
        let plan = self.round.plan;
        let report = self.load(&plan.long_load((connections, batch), name, plan.disk_seconds))?;
        control::drained(self.server.address, DESTINATION)?;
        before.compare((self.data, &self.server), (name, &report), figures)?;
        Ok(report)
    }

    /// A consumer that keeps up, or so it is said.
    fn keeping_up(&self, figures: &mut Figures) -> Result<(), BenchError> {
        let before = control::pending(self.server.address, DESTINATION)?;
        let report = self.load(&self.round.plan.load(MANY, 1, "delivering"))?;
        let after = control::pending(self.server.address, DESTINATION)?;
        let growth = after.saturating_sub(before);
        figures.add("accept.single.256.delivering", "events/s", report.rate);
        figures.add("backlog.growth.delivering", "events", count(growth));
        if growth > report.events_in_all / GROWTH_PART {
            figures.note(format!(
                "accept.single.256.delivering: the backlog grew by {growth} of {} events.",
                report.events_in_all
            ));
        }
        control::drained(self.server.address, DESTINATION).map(drop)
    }

    /// A consumer that is far behind and stays there.
    fn behind(&self, figures: &mut Figures) -> Result<(), BenchError> {
        let (address, behind) = (self.server.address, self.round.plan.behind);
        control::pause(address, DESTINATION)?;
        let fill = [
            format!("--connections={}", BATCH.0),
            format!("--batch={}", BATCH.1),
            format!("--events={behind}"),
            "--prefix=ahead".to_owned(),
        ];
        self.load(&fill)?;
        let over = AtomicBool::new(false);
        let (report, kept) = std::thread::scope(|scope| {
            let holding = scope.spawn(|| behind::hold(address, DESTINATION, behind, &over));
            let report = self.load(&self.round.plan.load(MANY, 1, "behind"));
            over.store(true, Ordering::Release);
            let kept = holding
                .join()
                .map_err(|_| "who held the consumer panicked")?;
            Ok::<_, BenchError>((report?, kept?))
        })?;
        figures.add("accept.single.256.behind", "events/s", report.rate);
        figures.add("backlog.least.behind", "events", count(kept.least));
        figures.add("backlog.most.behind", "events", count(kept.most));
        control::resume(address, DESTINATION)?;
        control::drained(address, DESTINATION).map(drop)
    }

    fn load(&self, flags: &[String]) -> Result<Report, BenchError> {
        let report = load(self.server.address, flags)?;
        refuse_refusals("wayhold", &report)?;
        Ok(report)
    }
}

/// A backlog has grown when more than this part of what came in is left.
const GROWTH_PART: u64 = 50;

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn count(events: u64) -> f64 {
    events as f64
}
