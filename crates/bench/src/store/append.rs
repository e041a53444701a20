//! Callers that append, each waiting for its receipt before it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

use super::args::AppendArgs;
use super::consumer::consume;
use super::engine::{Engine, Events, lane};
use super::kernel::Counters;
use crate::BenchError;
use crate::load::latencies::{Latencies, Report};

/// What one run cost.
#[derive(Debug, Serialize)]
pub struct Cost {
    #[serde(flatten)]
    report: Report,
    cpu_us_per_event: f64,
    cores: f64,
    written_bytes_per_event: f64,
    device_bytes_per_event: f64,
    /// Of Wayhold's store, with the warm-up.
    events_per_commit: f64,
    commit_ms: f64,
}

/// Shared by all callers.
struct Course {
    engine: Engine,
    events: Events,
    batch: usize,
    measure_from: Instant,
    end: Instant,
    /// Number of the next call, and the time between two; none in a closed loop.
    pace: Option<(AtomicU64, Duration)>,
    started: Instant,
}

/// Runs one load of the store.
///
/// # Errors
/// When it refuses.
pub async fn run(args: &AppendArgs) -> Result<Cost, BenchError> {
    let engine = {
        let (kind, layout) = (args.engine, args.layout.clone());
        tokio::task::spawn_blocking(move || Engine::open(kind, &layout)).await??
    };
    let stop = Arc::new(AtomicBool::new(false));
    let consumer = match &engine {
        Engine::Wayhold(store) if args.consume => {
            let (lane, stop) = (lane(store)?, Arc::clone(&stop));
            Some(std::thread::spawn(move || consume(lane, &stop)))
        }
        _ => None,
    };
    let started = Instant::now();
    let measure_from = started + Duration::from_secs_f64(args.warmup);
    let course = Arc::new(Course {
        engine: engine.clone(),
        events: Events::new(),
        batch: args.batch,
        measure_from,
        end: measure_from + Duration::from_secs_f64(args.seconds),
        pace: args
            .rate
            .map(|rate| (AtomicU64::new(0), Duration::from_secs_f64(1.0 / rate))),
        started,
    });
    let mut callers = JoinSet::new();
    for _ in 0..args.callers {
        callers.spawn(Arc::clone(&course).call());
    }
    tokio::time::sleep_until(measure_from.into()).await;
    let before = Counters::read(&args.layout.data)?;
    tokio::time::sleep_until(course.end.into()).await;
    let after = Counters::read(&args.layout.data)?;
    let mut latencies = Latencies::default();
    while let Some(caller) = callers.join_next().await {
        latencies.merge(caller??);
    }
    stop.store(true, Ordering::Release);
    if let Some(consumer) = consumer {
        tokio::task::spawn_blocking(move || consumer.join())
            .await?
            .map_err(|_| "the consumer panicked")??;
    }
    let report = latencies.report(args.batch, course.end - measure_from);
    Ok(cost(report, before, after, &engine))
}

impl Course {
    async fn call(self: Arc<Self>) -> Result<Latencies, BenchError> {
        let mut latencies = Latencies::default();
        loop {
            let intended_at = self.next_start().await;
            if intended_at >= self.end {
                return Ok(latencies);
            }
            self.engine.append(self.events.take(self.batch)?).await?;
            let now = Instant::now();
            if (self.measure_from..self.end).contains(&now) {
                latencies.acknowledged(now - intended_at);
            }
        }
    }

    async fn next_start(&self) -> Instant {
        let Some((number, interval)) = &self.pace else {
            return Instant::now();
        };
        let number = number.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let due = self.started + Duration::from_nanos(micros.saturating_mul(number));
        tokio::time::sleep_until(due.into()).await;
        due
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn cost(report: Report, before: Counters, after: Counters, engine: &Engine) -> Cost {
    let events = report.events.max(1) as f64;
    let cpu = (after.cpu - before.cpu).as_secs_f64();
    let (groups, group_events, micros) = match engine {
        Engine::Wayhold(store) => {
            let figures = store.figures();
            (figures.groups, figures.group_events, figures.commit_micros)
        }
        Engine::Classic(_) => (0, 0, 0),
    };
    Cost {
        cpu_us_per_event: cpu * 1e6 / events,
        cores: cpu / report.seconds,
        written_bytes_per_event: (after.written - before.written) as f64 / events,
        device_bytes_per_event: (after.device - before.device) as f64 / events,
        events_per_commit: group_events as f64 / groups.max(1) as f64,
        commit_ms: micros as f64 / 1000.0 / groups.max(1) as f64,
        report,
    }
}
