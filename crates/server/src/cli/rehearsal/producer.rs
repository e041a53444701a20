//! The producers: they send the story at a steady rate and repeat what was not answered. Each order
//! belongs to one producer, so its events are sent one after the other, as a shop's own process would.
//! Times count from when an event was due, so that a server that is slow cannot hide it by slowing down who
//! asks.

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

/// Events that may wait in a producer's hands while the server is away.
const WAITING_MAX: usize = 64;

/// How long a producer waits before it repeats a request.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// How long the server may be away before the producers give up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Latencies that `latency` looks at: those of the last moments.
const LATENCIES_SHOWN: usize = 2_000;

/// What a producer does with an event that is refused for now (429, 503).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// Sends it again until it is accepted.
    Repeat,
    /// Counts it and goes on with the next.
    GiveUp,
}

/// What was acknowledged so far. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    steps: Vec<Step>,
    repeated: u64,
    refused: u64,
    latencies: Vec<Duration>,
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

    /// How many events were refused and given up.
    pub fn refused(&self) -> u64 {
        self.with(|record| record.refused)
    }

    /// How long each acknowledgement took since this was last asked.
    pub fn take_latencies(&self) -> Vec<Duration> {
        self.with(|record| std::mem::take(&mut record.latencies))
    }

    /// The time that half of the last events took at most, and that 99 of 100 did.
    pub fn latency(&self) -> Option<(Duration, Duration)> {
        let mut latencies = self.with(|record| {
            let first = record.latencies.len().saturating_sub(LATENCIES_SHOWN);
            record.latencies.get(first..).unwrap_or_default().to_vec()
        });
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
            record.latencies.push(latency);
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
    on_refusal: OnRefusal,
    acknowledged: Acknowledged,
) -> Result<(), Failure> {
    let mut hands = Vec::with_capacity(clients.len());
    let mut producers = tokio::task::JoinSet::new();
    for client in clients {
        let (hand, waiting) = mpsc::channel(WAITING_MAX);
        hands.push(hand);
        producers.spawn(work(waiting, client, on_refusal, acknowledged.clone()));
    }
    let begun = Instant::now();
    for (number, happening) in (0..).zip(story) {
        let due = begun + after(number, per_second);
        tokio::time::sleep_until(due).await;
        let producer = usize::try_from(happening.order).unwrap_or_default() % hands.len().max(1);
        let Some(hand) = hands.get(producer) else {
            continue;
        };
        if hand.send((happening, due)).await.is_err() {
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

/// When the event of this number, from 0, is due.
fn after(number: u64, per_second: u32) -> Duration {
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(per_second.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

async fn work(
    mut waiting: mpsc::Receiver<(Happening, Instant)>,
    mut client: Client,
    on_refusal: OnRefusal,
    acknowledged: Acknowledged,
) -> Result<(), Failure> {
    while let Some((happening, due)) = waiting.recv().await {
        let given_up = Instant::now() + PATIENCE;
        loop {
            let begun = Instant::now();
            let failure = match client.request(request(&happening)?).await {
                Ok(answer) if answer.status() == StatusCode::ACCEPTED => {
                    acknowledged.add(&happening, due.elapsed());
                    break;
                }
                Ok(answer) => {
                    let failure = refusal(answer.status(), answer.body());
                    let for_now = answer.status().is_server_error()
                        || answer.status() == StatusCode::TOO_MANY_REQUESTS;
                    if !for_now {
                        return Err(failure);
                    }
                    if on_refusal == OnRefusal::GiveUp {
                        acknowledged.with(|record| record.refused += 1);
                        break;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_due_at_the_rate_that_was_asked_for_also_after_days() {
        for (number, per_second, millis) in [
            (0, 1_000, 0),
            (1_500, 1_000, 1_500),
            (1, 3, 333),
            (10_000_000_000, 3, 3_333_333_333_333),
        ] {
            assert_eq!(after(number, per_second).as_millis(), millis);
        }
    }
}
