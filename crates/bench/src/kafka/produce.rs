//! Tasks that each send one event and wait for its report before they send the next: what a service
//! does that writes to Kafka on the way of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{BenchError, payload};

/// Longest wait for what is still under way when a producer ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `produce`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// `host:port` of a broker.
    #[arg(long)]
    pub bootstrap: String,
    /// An existing topic.
    #[arg(long)]
    pub topic: String,
    /// Tasks, each with one event under way.
    #[arg(long, default_value_t = 50)]
    pub tasks: u64,
    /// Stops after this long, the warm-up not counted.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Time before measuring starts.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
}

/// What one producer printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Events that the broker confirmed while measuring.
    pub events: u64,
    /// The same per second.
    pub rate: f64,
}

/// Runs one producer and prints its report.
///
/// # Errors
/// When an event cannot be sent or is not confirmed.
pub fn main(args: &Args) -> Result<(), BenchError> {
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
    let producer = Arc::new(Confirming {
        // Librdkafka's defaults but for what durability asks for.
        producer: ClientConfig::new()
            .set("bootstrap.servers", &args.bootstrap)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .create_with_context(Confirmations)?,
        topic: args.topic.clone(),
        bodies: payload::bodies(),
        next: AtomicU64::new(0),
        confirmed: AtomicU64::new(0),
    });
    let measured = Instant::now() + Duration::from_secs_f64(args.warmup);
    let end = measured + Duration::from_secs_f64(args.seconds);
    let tasks: Vec<_> = (0..args.tasks)
        .map(|_| tokio::spawn(Arc::clone(&producer).send_until(end)))
        .collect();
    tokio::time::sleep_until(measured.into()).await;
    let (before, from) = (producer.confirmed.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep_until(end.into()).await;
    let (after, took) = (producer.confirmed.load(Ordering::Relaxed), from.elapsed());
    for task in tasks {
        task.await??;
    }
    producer.producer.flush(FLUSH_TIMEOUT)?;
    let events = after - before;
    Ok(Report {
        events,
        rate: rate(events, took),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(events: u64, took: Duration) -> f64 {
    events as f64 / took.as_secs_f64()
}

struct Confirming {
    producer: ThreadedProducer<Confirmations>,
    topic: String,
    bodies: Vec<String>,
    next: AtomicU64,
    confirmed: AtomicU64,
}

impl Confirming {
    async fn send_until(self: Arc<Self>, end: Instant) -> Result<(), BenchError> {
        while Instant::now() < end {
            self.send_one().await?;
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The record that Wayhold makes of one of the load's events, and its report.
    async fn send_one(&self) -> Result<(), BenchError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let body = usize::try_from(number).unwrap_or_default() % self.bodies.len();
        let (id, key) = (
            format!("produce-{number:012}"),
            format!("key-{:05}", number % payload::KEYS),
        );
        let (confirmation, confirmed) = oneshot::channel();
        let record = BaseRecord::with_opaque_to(&self.topic, Box::new(confirmation))
            .key(&key)
            .payload(self.bodies.get(body).map_or("", String::as_str))
            .headers(headers(&id, &key));
        self.producer
            .send(record)
            .map_err(|(error, _)| BenchError::from(error))?;
        Ok(confirmed.await??)
    }
}

/// The attributes of an event in the binary mode of the CloudEvents Kafka binding.
fn headers(id: &str, key: &str) -> OwnedHeaders {
    [
        ("ce_specversion", "1.0"),
        ("ce_id", id),
        ("ce_source", "/bench"),
        ("ce_type", "com.example.shipment.scanned"),
        ("ce_time", "2026-01-01T00:00:00Z"),
        ("ce_partitionkey", key),
        ("content-type", "application/json"),
    ]
    .into_iter()
    .fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header {
            key,
            value: Some(value),
        })
    })
}

/// Hands each report to the task that waits for it.
struct Confirmations;

impl ClientContext for Confirmations {}

impl ProducerContext for Confirmations {
    type DeliveryOpaque = Box<oneshot::Sender<Result<(), KafkaError>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiting: Self::DeliveryOpaque) {
        let report = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.clone()),
        };
        // A task that has ended waits for nothing.
        drop(waiting.send(report));
    }
}
