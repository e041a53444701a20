//! Accepting: the same requests to each server, at 64 and at 256 connections, and in batches where a
//! batch is one decision.

use std::path::Path;

use super::plan::Plan;
use super::series::Figures;
use crate::BenchError;
use crate::process::{Server, load};

/// In the first round's order; each round begins one further, so that none always runs on a disk that
/// another has just filled.
const KINDS: [&str; 4] = ["bare", "noop", "classic", "wayhold"];
/// Connections of the single-event loads: below and above the point where groups fill up.
const CONNECTIONS: [usize; 2] = [64, 256];
/// Connections of the batch load.
const CONNECTIONS_BATCH: usize = 64;
/// Events in one batch.
const BATCH: usize = 100;

/// One round over all servers.
pub fn round(
    plan: &Plan,
    round: usize,
    folder: &Path,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    for &kind in KINDS
        .iter()
        .cycle()
        .skip(round % KINDS.len())
        .take(KINDS.len())
    {
        let data = tempfile::tempdir_in(folder)?;
        let server = Server::start(kind, data.path(), &[])?;
        for connections in CONNECTIONS {
            single(plan, kind, &server, connections, figures)?;
        }
        // One synced transaction a line is not what a batch is for.
        if kind != "classic" {
            batch(plan, kind, &server, figures)?;
        }
        server.stop()?;
    }
    Ok(())
}

fn single(
    plan: &Plan,
    kind: &str,
    server: &Server,
    connections: usize,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let cpu_before = server.cpu()?;
    let flags = flags(plan, connections, 1);
    let report = load(server.address, &flags)?;
    let cpu = server.cpu()?.saturating_sub(cpu_before);
    refuse_refusals(kind, &report.refused)?;
    let name = |figure: &str| format!("accept.{figure}.{connections}.{kind}");
    figures.add(name("single"), "events/s", report.rate);
    figures.add(name("p50"), "ms", report.p50_ms);
    figures.add(name("p99"), "ms", report.p99_ms);
    figures.add(name("longest"), "ms", report.longest_ms);
    figures.add(
        name("cpu_us"),
        "us/event",
        per_event(cpu.as_secs_f64(), report.events_in_all),
    );
    Ok(())
}

fn batch(
    plan: &Plan,
    kind: &str,
    server: &Server,
    figures: &mut Figures,
) -> Result<(), BenchError> {
    let report = load(server.address, &flags(plan, CONNECTIONS_BATCH, BATCH))?;
    refuse_refusals(kind, &report.refused)?;
    figures.add(format!("accept.batch100.{kind}"), "events/s", report.rate);
    figures.add(format!("accept.p99.batch100.{kind}"), "ms", report.p99_ms);
    Ok(())
}

fn flags(plan: &Plan, connections: usize, batch: usize) -> Vec<String> {
    vec![
        format!("--connections={connections}"),
        format!("--batch={batch}"),
        format!("--warmup={}", plan.warmup),
        format!("--seconds={}", plan.seconds),
        // Every load of a server has ids of its own.
        format!("--prefix=c{connections}b{batch}"),
    ]
}

fn refuse_refusals(
    kind: &str,
    refused: &std::collections::BTreeMap<u16, u64>,
) -> Result<(), BenchError> {
    if refused.is_empty() {
        return Ok(());
    }
    Err(format!("{kind} refused requests, by status: {refused:?}").into())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per_event(seconds: f64, events: u64) -> f64 {
    seconds * 1e6 / events.max(1) as f64
}
