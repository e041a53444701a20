//! The demo's producers: they send the story at a steady rate and repeat what was not acknowledged.
//! Each order belongs to one producer, so its events are sent one after the other, as a shop's own
//! process would.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::client::{Client, refusal};
use super::super::exit::{Exit, Failure};
use super::proof::Step;
use super::story::{Happening, SOURCE};

/// Producers at work: as many requests are in flight at most.
pub const PRODUCERS: usize = 16;

/// Events that may wait in a producer's hands while the server is away.
const WAITING_MAX: usize = 64;

/// How long a producer waits before it repeats a request.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// How long the server may be away before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Latencies kept for the figures: those of the last moments.
const LATENCIES_KEPT: usize = 2_000;

/// What was acknowledged so far. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    steps: Vec<Step>,
    repeated: u64,
    latencies: Vec<Duration>,
    next_latency: usize,
}

impl Acknowledged {
    /// The acknowledged steps, in the order of their acknowledgements.
    pub fn steps(&self) -> Vec<Step> {
        self.with(|record| record.steps.clone())
    }

    /// How many steps were acknowledged.
    pub fn count(&self) -> u64 {
        self.with(|record| record.steps.len() as u64)
    }

    /// How many requests were sent again, since no answer or a refusal for now came.
    pub fn repeated(&self) -> u64 {
        self.with(|record| record.repeated)
    }

    /// The time that half of the last requests took at most, and that 99 of 100 did.
    pub fn latency(&self) -> Option<(Duration, Duration)> {
        let mut latencies = self.with(|record| record.latencies.clone());
        latencies.sort_unstable();
        let at = |share: usize| latencies.get(latencies.len() * share / 100).copied();
        at(50).zip(at(99))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Record) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, happening: &Happening, latency: Duration) {
        self.with(|record| {
            record.steps.push(Step {
                order: happening.order,
                step: happening.step,
            });
            if record.latencies.len() < LATENCIES_KEPT {
                record.latencies.push(latency);
            } else if let Some(oldest) = record.latencies.get_mut(record.next_latency) {
                *oldest = latency;
            }
            record.next_latency = (record.next_latency + 1) % LATENCIES_KEPT;
        });
    }
}

/// Sends the story at so many events a second, one producer per client.
///
/// # Errors
/// When the server refuses an event for good or stays away.
pub async fn produce(
    story: impl Iterator<Item = Happening> + Send,
    per_second: u32,
    clients: Vec<Client>,
    acknowledged: Acknowledged,
) -> Result<(), Failure> {
    let mut hands = Vec::with_capacity(clients.len());
    let mut producers = tokio::task::JoinSet::new();
    for client in clients {
        let (hand, waiting) = mpsc::channel(WAITING_MAX);
        hands.push(hand);
        producers.spawn(work(waiting, client, acknowledged.clone()));
    }
    let begun = Instant::now();
    let gap = Duration::from_secs(1) / per_second.max(1);
    for (number, happening) in (0..).zip(story) {
        tokio::time::sleep_until(begun + gap * number).await;
        let producer = usize::try_from(happening.order).unwrap_or_default() % hands.len().max(1);
        let Some(hand) = hands.get(producer) else {
            continue;
        };
        if hand.send(happening).await.is_err() {
            // The producer gave up; why is what it returned.
            break;
        }
    }
    drop(hands);
    while let Some(ended) = producers.join_next().await {
        ended
            .map_err(|error| Failure::new(Exit::Failed, format!("a producer ended: {error}")))??;
    }
    Ok(())
}

async fn work(
    mut waiting: mpsc::Receiver<Happening>,
    mut client: Client,
    acknowledged: Acknowledged,
) -> Result<(), Failure> {
    while let Some(happening) = waiting.recv().await {
        let given_up = Instant::now() + PATIENCE;
        loop {
            let begun = Instant::now();
            let failure = match client.request(request(&happening)?).await {
                Ok(answer) if answer.status() == StatusCode::ACCEPTED => {
                    acknowledged.add(&happening, begun.elapsed());
                    break;
                }
                Ok(answer) => {
                    let failure = refusal(answer.status(), answer.body());
                    let for_now = answer.status().is_server_error()
                        || answer.status() == StatusCode::TOO_MANY_REQUESTS;
                    if !for_now {
                        return Err(failure);
                    }
                    failure
                }
                Err(no_answer) => no_answer.into(),
            };
            if begun > given_up {
                return Err(failure);
            }
            acknowledged.with(|record| record.repeated += 1);
            tokio::time::sleep(REPEAT_AFTER).await;
        }
    }
    Ok(())
}

/// The event as an HTTP request in CloudEvents' binary mode.
fn request(happening: &Happening) -> Result<Request<Full<Bytes>>, Failure> {
    let mut request = Request::new(Full::new(Bytes::from(happening.data.clone())));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/v1/events");
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let order = happening.order.to_string();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", &happening.id()),
        ("ce-source", SOURCE),
        ("ce-type", &happening.kind),
        ("ce-time", &happening.time),
        ("ce-subject", &order),
        ("ce-partitionkey", &order),
    ] {
        let value = HeaderValue::from_str(value)
            .map_err(|_| Failure::new(Exit::Failed, format!("{name} cannot be sent")))?;
        headers.insert(name, value);
    }
    Ok(request)
}
