//! The HTTP client of Wayhold's webhooks in a bare loop: tasks that each send one event and wait for its answer before
//! they send the next. What remains is what delivering adds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::Client;
use serde::{Deserialize, Serialize};

use crate::{BenchError, payload};

/// Arguments of `post`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the receiver listens.
    #[arg(long)]
    pub url: String,
    /// Tasks, each with one request under way.
    #[arg(long, default_value_t = 8)]
    pub tasks: u64,
    /// Stops after this long, the warm-up not counted.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Time before measuring starts.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
}

/// What one client printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Requests that were answered with success while measuring.
    pub requests: u64,
    /// The same per second.
    pub rate: f64,
}

/// Runs one client and prints its report.
///
/// # Errors
/// When a request fails.
pub fn main(args: &Args) -> Result<(), BenchError> {
    // The only one there is: another call has set it already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let report = runtime.block_on(run(args))?;
    print_line(&report)
}

#[expect(clippy::print_stdout, reason = "the report is the output")]
fn print_line(report: &Report) -> Result<(), BenchError> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

async fn run(args: &Args) -> Result<Report, BenchError> {
    let posting = Arc::new(Posting {
        client: Client::builder().no_proxy().build()?,
        url: args.url.clone(),
        bodies: payload::bodies(),
        next: AtomicU64::new(0),
        answered: AtomicU64::new(0),
    });
    let measured = Instant::now() + Duration::from_secs_f64(args.warmup);
    let end = measured + Duration::from_secs_f64(args.seconds);
    let tasks: Vec<_> = (0..args.tasks)
        .map(|_| tokio::spawn(Arc::clone(&posting).post_until(end)))
        .collect();
    tokio::time::sleep_until(measured.into()).await;
    let (before, from) = (posting.answered.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep_until(end.into()).await;
    let (after, took) = (posting.answered.load(Ordering::Relaxed), from.elapsed());
    for task in tasks {
        task.await??;
    }
    let requests = after - before;
    Ok(Report {
        requests,
        rate: rate(requests, took),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(requests: u64, took: Duration) -> f64 {
    requests as f64 / took.as_secs_f64()
}

struct Posting {
    client: Client,
    url: String,
    bodies: Vec<String>,
    next: AtomicU64,
    answered: AtomicU64,
}

impl Posting {
    async fn post_until(self: Arc<Self>, end: Instant) -> Result<(), BenchError> {
        while Instant::now() < end {
            self.post_one().await?;
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The request that Wayhold makes of one of the load's events, and its answer.
    async fn post_one(&self) -> Result<(), BenchError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let body = usize::try_from(number).unwrap_or_default() % self.bodies.len();
        let body = self.bodies.get(body).cloned().unwrap_or_default();
        let id = format!("post-{number:012}");
        let answer = self
            .client
            .post(&self.url)
            .header("content-type", "application/json")
            .header("ce-specversion", "1.0")
            .header("ce-id", &id)
            .header("ce-source", "/bench")
            .header("ce-type", "com.example.shipment.scanned")
            .header("ce-time", "2026-01-01T00:00:00Z")
            .header(
                "ce-partitionkey",
                format!("key-{:05}", number % payload::KEYS),
            )
            .header("idempotency-key", id)
            .body(body)
            .send()
            .await?
            .error_for_status()?;
        // Read to its end, so that the connection is used again.
        answer.bytes().await?;
        Ok(())
    }
}
