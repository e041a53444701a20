//! Taking events from an outbox table in PostgreSQL: how fast, beside its own client that copies the same rows, and what
//! it costs the database, beside a bare loop that deletes them.
//!
//! Database, server and clients share the cores.

use std::time::{Duration, Instant};

use super::control;
use super::part::{Part, Round};
use super::series::Figures;
use super::service::{Kind, Service};
use super::verdict::{Derived, Target};
use crate::BenchError;
use crate::postgres::Postgres;
use crate::process::Server;
use crate::serve::DESTINATION;

/// The database.
const POSTGRES: Kind = Kind {
    name: "postgres",
    variable: "WAYHOLD_TEST_POSTGRES",
    figures: "outbox.*",
};

/// Rows of one `DELETE` of the bare loop.
const BATCH: u64 = 1_000;

/// Of a hundred rows so many are delivered when measuring begins and when it ends: a start and the last batch are no
/// rate.
const MEASURED: (u64, u64) = (10, 95);

/// Longest time for all rows.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often is looked how far it is.
const POLL: Duration = Duration::from_millis(20);

/// Everything about outbox tables.
pub const PART: Part = Part {
    names: &[
        "outbox.wayhold",
        "outbox.copy",
        "outbox.cpu_us.wayhold",
        "outbox.cpu_us.delete",
    ],
    targets: &[
        Target::at_least(
            Derived::Ratio {
                of: "outbox.wayhold",
                over: "outbox.copy",
            },
            0.5,
            0.75,
        ),
        Target::at_most(
            Derived::Ratio {
                of: "outbox.cpu_us.wayhold",
                over: "outbox.cpu_us.delete",
            },
            3.0,
            2.0,
        ),
    ],
    round: measure,
};

/// Every round, if there is a PostgreSQL.
fn measure(first: &Round<'_>, figures: &mut Figures) -> Result<(), BenchError> {
    let (plan, folder) = (first.plan, first.data()?);
    let Some(service) = Service::find(POSTGRES, folder.path(), !plan.is_smoke)? else {
        return Ok(());
    };
    let postgres = Postgres::at(&service.address)?;
    let rows = plan.outbox_rows;
    for round in 0..plan.rounds {
        figures.begin_round(round);
        postgres.fill(rows)?;
        let took = postgres.copy()?;
        figures.add("outbox.copy", "rows/s", float(rows) / took.as_secs_f64());
        taken(first, &postgres, figures)?;
        postgres.fill(rows)?;
        let before = postgres.cpu()?;
        postgres.take(rows, BATCH)?;
        let cost = postgres.cpu()? - before;
        figures.add("outbox.cpu_us.delete", "us/row", each(cost, rows));
    }
    Ok(())
}

/// Wayhold takes all rows and delivers them to nothing.
fn taken(round: &Round<'_>, postgres: &Postgres, figures: &mut Figures) -> Result<(), BenchError> {
    let (plan, data) = (round.plan, round.data()?);
    let rows = plan.outbox_rows;
    let url = postgres.url_in(data.path())?;
    let outbox = format!("--outbox={}", url.display());
    let flags = plan.serve("wayhold", &["--deliver", &outbox]);
    let before = postgres.cpu()?;
    let server = Server::start("wayhold", &data.path().join("server"), &flags)?;
    let (begin, end) = (rows / 100 * MEASURED.0, rows / 100 * MEASURED.1);
    let begin = until_delivered(&server, begin)?;
    let end = until_delivered(&server, end)?;
    until_delivered(&server, rows)?;
    control::eventually("the table is empty", || Ok(postgres.rows()? == 0))?;
    let cost = postgres.cpu()? - before;
    server.stop()?;
    let rate = float(end.delivered - begin.delivered) / (end.at - begin.at).as_secs_f64();
    figures.add("outbox.wayhold", "rows/s", rate);
    figures.add("outbox.cpu_us.wayhold", "us/row", each(cost, rows));
    Ok(())
}

/// How far it was at one moment.
struct Moment {
    at: Instant,
    delivered: u64,
}

fn until_delivered(server: &Server, wanted: u64) -> Result<Moment, BenchError> {
    let started = Instant::now();
    let name = format!(
        "wayhold_attempts_total{{destination=\"{DESTINATION}\",outcome=\"delivered\",class=\"none\"}} "
    );
    loop {
        let at = Instant::now();
        let metrics = control::metrics(server.address)?;
        // Nothing is said of what never happened.
        let delivered = metrics.lines().find_map(|line| line.strip_prefix(&name));
        let delivered = delivered.map_or(Ok(0), |count| count.trim().parse())?;
        if delivered >= wanted {
            return Ok(Moment { at, delivered });
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("{delivered} of {wanted} rows within {PATIENCE:?}").into());
        }
        std::thread::sleep(POLL);
    }
}

fn each(cost: Duration, rows: u64) -> f64 {
    cost.as_secs_f64() * 1e6 / float(rows)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
