//! Tasks that each do one thing after the other, and how much of it they get done: the course of every client that
//! Wayhold's deliveries are held against.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// How many tasks, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Course {
    /// Tasks, each with one thing under way.
    #[arg(long)]
    pub tasks: u64,
    /// Stops after this long, the warm-up not counted.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Time before measuring starts.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
}

/// What was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// How much while measuring.
    pub done: u64,
    /// The same per second.
    pub rate: f64,
}

/// One thing of which there is always another.
pub trait Work: Send + Sync + 'static {
    /// Does the thing of this number, from its beginning to its end.
    fn one(&self, number: u64) -> impl Future<Output = Result<(), BenchError>> + Send;
}

impl Course {
    /// Runs it, and prints its report as one line of JSON.
    ///
    /// # Errors
    /// When one thing fails.
    pub fn print(&self, work: &Arc<impl Work>) -> Result<(), BenchError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        print_line(&runtime.block_on(self.run(work))?)
    }

    async fn run(&self, work: &Arc<impl Work>) -> Result<Report, BenchError> {
        let counts = Arc::new(Counts::default());
        let measured = Instant::now() + Duration::from_secs_f64(self.warmup);
        let end = measured + Duration::from_secs_f64(self.seconds);
        let tasks: Vec<_> = (0..self.tasks)
            .map(|_| tokio::spawn(work_until(end, Arc::clone(work), Arc::clone(&counts))))
            .collect();
        tokio::time::sleep_until(measured.into()).await;
        let (before, from) = (counts.done.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep_until(end.into()).await;
        let (after, took) = (counts.done.load(Ordering::Relaxed), from.elapsed());
        for task in tasks {
            task.await??;
        }
        let done = after - before;
        Ok(Report {
            done,
            rate: rate(done, took),
        })
    }
}

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    done: AtomicU64,
}

async fn work_until(
    end: Instant,
    work: Arc<impl Work>,
    counts: Arc<Counts>,
) -> Result<(), BenchError> {
    while Instant::now() < end {
        work.one(counts.begun.fetch_add(1, Ordering::Relaxed))
            .await?;
        counts.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(done: u64, took: Duration) -> f64 {
    done as f64 / took.as_secs_f64()
}

#[expect(clippy::print_stdout, reason = "the report is the output")]
fn print_line(report: &Report) -> Result<(), BenchError> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
