//! Tasks that each send one event and wait for its report before they send the next: what a service
//! does that writes to Kafka on the way of a request.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;

use crate::course::{Course, Work};
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
    #[command(flatten)]
    pub course: Course,
}

/// Runs one producer and prints its report.
///
/// # Errors
/// When an event cannot be sent or is not confirmed.
pub fn main(args: &Args) -> Result<(), BenchError> {
    let producer = Arc::new(Confirming {
        // Librdkafka's defaults but for what durability asks for.
        producer: ClientConfig::new()
            .set("bootstrap.servers", &args.bootstrap)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .create_with_context(Confirmations)?,
        topic: args.topic.clone(),
        bodies: payload::bodies(),
    });
    args.course.print(&producer)?;
    Ok(producer.producer.flush(FLUSH_TIMEOUT)?)
}

struct Confirming {
    producer: ThreadedProducer<Confirmations>,
    topic: String,
    bodies: Vec<String>,
}

impl Work for Confirming {
    /// The record that Wayhold makes of one of the load's events, and its report.
    async fn one(&self, number: u64) -> Result<(), BenchError> {
        let body = usize::try_from(number).unwrap_or_default() % self.bodies.len();
        let (id, key) = (
            format!("produce-{number:012}"),
            payload::key(number % payload::KEYS),
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
