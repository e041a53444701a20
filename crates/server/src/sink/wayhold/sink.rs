//! The sink: one task that sends one batch after the other; what comes meanwhile gathers for the next.
//!
//! One batch at a time keeps the order of every key however many of its events a batch holds, and needs no wait
//! to make batches large: the time of one is the wait of the next. A batch is stored whole or not at all. Where
//! it is not because of one event, it is taken apart until that one is alone; this is no retry, since nothing
//! of it was stored. A crash loses only what was in flight, which is then sent again and known again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Response;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;
use wayhold_model::{Clock, Event, Failure, FailureClass, Outcome};

use super::classify::{Answer, answer_of};
use super::config::ForwardConfig;
use super::request::{body_of, confirms, receipt_bytes_max, request_of};
use super::waiting::{Next, Waiting, timeout_of};
use crate::sink::webhook::{Line, SystemNames, Way, retry_after};
use crate::sink::{Attempt, BoxFuture, BuildError, MASK, Preview, Sink};

/// Connections that are kept: one for batches, one for probes.
const CONNECTIONS_IDLE: usize = 2;

/// Most bytes of an answer that says why not: a problem detail with the names of all routes.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// Forwards to another Wayhold.
#[derive(Debug)]
pub struct ForwardSink {
    shared: Arc<Shared>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    line: Line,
    events_url: Url,
    credential: Option<String>,
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    came: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl ForwardSink {
    /// Builds the client and starts the task. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read.
    pub fn start(config: &ForwardConfig, clock: Arc<dyn Clock>) -> Result<Self, BuildError> {
        let way = Way {
            base: &config.events_url,
            allow_networks: &config.allow_networks,
            auth: &config.auth,
            client: &config.client,
        };
        let shared = Arc::new(Shared {
            line: Line::open(way, CONNECTIONS_IDLE, Arc::new(SystemNames))?,
            events_url: config.events_url.clone(),
            credential: config.auth.credential.header().map(ToString::to_string),
            clock,
            waiting: Mutex::new(Waiting::new(config.batch)),
            came: Notify::new(),
        });
        let sending = Handle::current().spawn(send_all(Arc::clone(&shared)));
        Ok(Self {
            shared,
            sending: Mutex::new(Some(sending)),
        })
    }
}

impl Sink for ForwardSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        self.shared.waiting().enter(attempts, Instant::now());
        self.shared.came.notify_one();
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(self.shared.probe())
    }

    /// What two versions send at the same time could overtake: a key may have several events with each.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn preview(&self, event: &Event) -> Option<Result<Preview, Failure>> {
        Some(Ok(self.shared.preview(event)))
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        self.shared.waiting().stop();
        self.shared.came.notify_one();
        let sending = self
            .sending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Box::pin(async move {
            let Some(mut sending) = sending else { return };
            if timeout(grace, &mut sending).await.is_err() {
                // Dropping what is left reports each attempt as unknown.
                sending.abort();
                drop(sending.await);
            }
        })
    }
}

impl Drop for ForwardSink {
    fn drop(&mut self) {
        self.shared.waiting().stop();
        self.shared.came.notify_one();
    }
}

/// Sends one batch after the other until the destination stops.
async fn send_all(shared: Arc<Shared>) {
    // Of one batch at a time: a panic takes down only what it was in, and ending this task ends it too.
    let mut task = JoinSet::new();
    while let Some(batch) = shared.next().await {
        let sender = Arc::clone(&shared);
        task.spawn(async move { sender.forward(batch).await });
        if let Some(Err(error)) = task.join_next().await {
            tracing::error!(%error, "handling a batch panicked; its attempts count as failed");
            shared.waiting().crashed();
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch, once it is time for one; `None` when the destination stops.
    async fn next(&self) -> Option<Vec<Attempt>> {
        loop {
            let next = self.waiting().next(Instant::now());
            match next {
                Next::Batch(batch) => return Some(batch),
                Next::At(at) => drop(timeout_at(at, self.came.notified()).await),
                Next::Later => self.came.notified().await,
                Next::End => return None,
            }
        }
    }

    /// Sends a batch, in parts where one of its events is refused.
    async fn forward(&self, batch: Vec<Attempt>) {
        // The next one last.
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match self.post(&part).await {
                Answer::Stored => {
                    for attempt in part {
                        attempt.finish(Outcome::Delivered);
                    }
                }
                Answer::Refused { failure, .. } if part.len() == 1 => {
                    if let Some(attempt) = part.pop() {
                        parts = self.waiting().refused(attempt, failure, parts);
                    }
                }
                Answer::Refused { index, .. } => parts.extend(apart(part, index)),
                Answer::Failed(outcome) => {
                    let rest = std::mem::take(&mut parts).into_iter().rev().flatten();
                    self.waiting().failed(part, rest.collect(), &outcome);
                }
            }
        }
    }

    /// One request, from the events to what is known of all of them.
    async fn post(&self, part: &[Attempt]) -> Answer {
        let events = part.iter().map(|attempt| &*attempt.event.event);
        let request = request_of(&self.events_url, body_of(events.clone()));
        let patience = timeout_of(part);
        let deadline = Instant::now() + patience;
        let response = match self.line.ask(request, patience).await {
            Ok(response) => response,
            Err(outcome) => return Answer::Failed(outcome),
        };
        let status = response.status();
        let wait = retry_after(response.headers(), self.clock.now());
        let host = self.line.host();
        if !status.is_success() {
            // What cannot be read of it is as if it were not there: the status says enough.
            let body = timeout_at(deadline, read_whole(response, PROBLEM_BYTES_MAX)).await;
            let body = body.ok().flatten().unwrap_or_default();
            return answer_of(host, status, wait, &body, part.len());
        }
        let most = events.clone().map(receipt_bytes_max).sum::<usize>() + PROBLEM_BYTES_MAX;
        let body = timeout_at(deadline, read_whole(response, most)).await;
        let confirmed = body
            .ok()
            .flatten()
            .is_some_and(|body| confirms(&body, events));
        if confirmed {
            return Answer::Stored;
        }
        let code = status.as_u16();
        let reason = format!("{host} answered {code} without a receipt for every event");
        let failure = Failure::new(FailureClass::Protocol, reason).with_status(i32::from(code));
        Answer::Failed(Outcome::Unknown(failure))
    }

    /// An empty batch: it stores nothing, and needs the same address, path and token as any other.
    async fn probe(&self) -> Result<String, Failure> {
        let request = request_of(&self.events_url, body_of([].into_iter()));
        let response = self.line.probe(request).await?;
        let (host, status) = (self.line.host(), response.status());
        if status.is_success() {
            return Ok(format!("{host} takes events"));
        }
        let body = read_whole(response, PROBLEM_BYTES_MAX)
            .await
            .unwrap_or_default();
        match answer_of(host, status, None, &body, 0) {
            Answer::Refused { failure, .. } => Err(failure),
            Answer::Failed(outcome) => Err(outcome.failure().cloned().unwrap_or_else(|| {
                Failure::new(FailureClass::Protocol, format!("{host} takes no events"))
            })),
            Answer::Stored => Ok(format!("{host} takes events")),
        }
    }

    fn preview(&self, event: &Event) -> Preview {
        let request = request_of(&self.events_url, body_of([event].into_iter()));
        let shown =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut headers: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), shown(value)))
            .collect();
        if let Some(name) = &self.credential {
            headers.push((name.clone(), MASK.to_owned()));
        }
        Preview {
            method: request.method().to_string(),
            url: self.events_url.to_string(),
            headers,
            body: body_of([event].into_iter()),
        }
    }
}

/// A batch in parts, the next one last: what comes before the event that is at fault, that one, and the rest;
/// halves where it is not known.
fn apart(mut batch: Vec<Attempt>, at_fault: Option<usize>) -> Vec<Vec<Attempt>> {
    let mut parts = Vec::with_capacity(3);
    match at_fault {
        None => parts.push(batch.split_off(batch.len() / 2)),
        Some(index) => {
            parts.push(batch.split_off((index + 1).min(batch.len())));
            parts.push(batch.split_off(index.min(batch.len())));
        }
    }
    parts.push(batch);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Reads a body to its end; `None` where it breaks off or is longer than `most` bytes.
async fn read_whole(mut response: Response, most: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > most {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}
