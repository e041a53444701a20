//! The HTTP client of Wayhold's webhooks in a bare loop: tasks that each send one event and wait for its answer before
//! they send the next. What remains is what delivering adds.

use std::sync::Arc;

use reqwest::Client;

use crate::course::{Course, Work};
use crate::{BenchError, payload};

/// Arguments of `post`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the receiver listens.
    #[arg(long)]
    pub url: String,
    #[command(flatten)]
    pub course: Course,
}

/// Runs one client and prints its report.
///
/// # Errors
/// When a request fails.
pub fn main(args: &Args) -> Result<(), BenchError> {
    // Only one can be set: where there is one already, it is that one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let posting = Posting {
        client: Client::builder().no_proxy().build()?,
        url: args.url.clone(),
        bodies: payload::bodies(),
    };
    args.course.print(&Arc::new(posting))
}

struct Posting {
    client: Client,
    url: String,
    bodies: Vec<String>,
}

impl Work for Posting {
    /// The request that Wayhold makes of one of the load's events, and its answer.
    async fn one(&self, number: u64) -> Result<(), BenchError> {
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
            .header("ce-partitionkey", payload::key(number % payload::KEYS))
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
