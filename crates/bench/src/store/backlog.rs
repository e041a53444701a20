//! A backlog: filled, left by a clean stop, opened again, drained.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::Serialize;
use tokio::task::JoinSet;

use super::args::BacklogArgs;
use super::consumer::consume;
use super::engine::{self, Engine, Events};
use super::kernel::{self, Counters};
use crate::BenchError;

/// Tasks that fill it.
const FILLERS: usize = 16;

/// What one backlog cost.
#[derive(Debug, Serialize)]
pub struct Cost {
    events: u64,
    fill_per_second: f64,
    stop_seconds: f64,
    /// From opening to the first delivery read.
    restart_seconds: f64,
    drain_per_second: f64,
    drain_device_bytes_per_event: f64,
    resident_bytes_before_drain: u64,
    resident_bytes_after_drain: u64,
    /// Bytes of the data directory.
    disk_bytes_before_drain: u64,
    disk_bytes_after_drain: u64,
}

/// Runs one backlog.
///
/// # Errors
/// When the store refuses or loses something.
pub async fn run(args: &BacklogArgs) -> Result<Cost, BenchError> {
    let args = args.clone();
    let opened = {
        let layout = args.layout.clone();
        tokio::task::spawn_blocking(move || Engine::open(super::args::Kind::Wayhold, &layout))
            .await??
    };
    let started = Instant::now();
    fill(&opened, &args).await?;
    let filled = started.elapsed();
    tokio::task::spawn_blocking(move || drain(&args, opened, filled.as_secs_f64())).await?
}

async fn fill(engine: &Engine, args: &BacklogArgs) -> Result<(), BenchError> {
    let events = Arc::new(Events::new());
    let calls = args.events.div_ceil(args.batch as u64 * FILLERS as u64);
    let mut fillers = JoinSet::new();
    for _ in 0..FILLERS {
        let (engine, events, batch) = (engine.clone(), Arc::clone(&events), args.batch);
        fillers.spawn(async move {
            for _ in 0..calls {
                engine.append(events.take(batch)?).await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(filler) = fillers.join_next().await {
        filler??;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn drain(args: &BacklogArgs, filled: Engine, fill_seconds: f64) -> Result<Cost, BenchError> {
    let Engine::Wayhold(store) = filled else {
        return Err("only Wayhold's store is drained here".into());
    };
    let stopping = Instant::now();
    store.stop();
    drop(store);
    let stop_seconds = stopping.elapsed().as_secs_f64();
    let disk_bytes_before_drain = disk_bytes(&args.layout.data)?;

    let opening = Instant::now();
    let store = engine::open(&args.layout)?;
    let restart_seconds = opening.elapsed().as_secs_f64();
    let resident_bytes_before_drain = kernel::resident("self")?;
    let before = Counters::read(&args.layout.data)?;
    let draining = Instant::now();
    let drained = consume(engine::lane(&store)?, &Arc::new(AtomicBool::new(true)))?;
    let drain_seconds = draining.elapsed().as_secs_f64();
    if drained < args.events {
        return Err(format!("{drained} of {} events were drained", args.events).into());
    }
    let resident_bytes_after_drain = kernel::resident("self")?;
    store.stop();
    let after = Counters::read(&args.layout.data)?;
    Ok(Cost {
        events: drained,
        fill_per_second: drained as f64 / fill_seconds,
        stop_seconds,
        restart_seconds,
        drain_per_second: drained as f64 / drain_seconds,
        drain_device_bytes_per_event: (after.device - before.device) as f64 / drained as f64,
        resident_bytes_before_drain,
        resident_bytes_after_drain,
        disk_bytes_before_drain,
        disk_bytes_after_drain: disk_bytes(&args.layout.data)?,
    })
}

fn disk_bytes(folder: &std::path::Path) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}
