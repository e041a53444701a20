//! The sink of webhooks and HTTP APIs: one task per attempt over a pooled client that is told to do nothing
//! on its own. A crash loses only what was in flight, which is then sent again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::LOCATION;
use reqwest::Response;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use wayhold_model::receipt::LOCATION_BYTES_MAX;
use wayhold_model::{Clock, Event, Failure, Outcome, Receipt};

use super::classify::outcome_of_status;
use super::client::{Names, SystemNames};
use super::line::Line;
use super::rate_limit::quotas_of;
use super::retry_after::retry_after;
use super::shape::Shape;
use crate::sink::{Answer, Attempt, BoxFuture, BuildError, Preview, REPLAY_HEADER, Said, Sink};

/// Most bytes of an answer's body that are read, so that the connection can be used again.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// How long the body of an answer may take once its status has come; the status alone decides.
const ANSWER_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends to one HTTP receiver.
#[derive(Debug)]
pub struct WebhookSink {
    target: Arc<Target>,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

struct Target {
    shape: Shape,
    line: Line,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl WebhookSink {
    /// Builds the client. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read.
    pub fn start(
        shape: impl Into<Shape>,
        window: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        Self::start_with(shape, window, clock, Arc::new(SystemNames))
    }

    /// The same with another way to look names up.
    pub(super) fn start_with(
        shape: impl Into<Shape>,
        window: usize,
        clock: Arc<dyn Clock>,
        names: Arc<dyn Names>,
    ) -> Result<Self, BuildError> {
        let shape = shape.into();
        let line = Line::open(shape.way(), window, names)?;
        Ok(Self {
            target: Arc::new(Target { shape, line, clock }),
            runtime: Handle::current(),
            tasks: Mutex::new(JoinSet::new()),
        })
    }
}

impl Sink for WebhookSink {
    fn submit(&self, attempts: &mut Vec<Attempt>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        for attempt in attempts.drain(..) {
            let target = Arc::clone(&self.target);
            tasks.spawn_on(
                async move {
                    let (outcome, said) = target.post(&attempt).await;
                    attempt.finish_with(outcome, said);
                },
                &self.runtime,
            );
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(self.target.probe())
    }

    fn preview(&self, event: &Event) -> Option<Result<Preview, Failure>> {
        Some(self.target.shape.preview(event, self.target.clock.now()))
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        let mut tasks = {
            let mut held = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *held)
        };
        Box::pin(async move {
            let all_ended = async { while tasks.join_next().await.is_some() {} };
            if timeout(grace, all_ended).await.is_err() {
                // Dropping what is left reports each attempt as unknown.
                tasks.shutdown().await;
            }
        })
    }
}

impl Target {
    /// One attempt, from the event to its outcome and what the receiver said besides, within the attempt's
    /// timeout.
    async fn post(&self, attempt: &Attempt) -> (Outcome, Said) {
        let event = &attempt.event.event;
        let host = self.line.host();
        let mut request = match self.shape.request_of(event, self.clock.now()) {
            Ok(request) => request,
            Err(failure) => return (Outcome::Refused(failure), Said::default()),
        };
        if let Some(replay) = attempt.replay {
            request.headers_mut().insert(REPLAY_HEADER, replay.into());
        }
        let deadline = Instant::now() + attempt.timeout;
        let response = match self.line.ask(request, attempt.timeout).await {
            Ok(response) => response,
            Err(outcome) => return (outcome, Said::default()),
        };
        let wait = retry_after(response.headers(), self.clock.now());
        let quotas = quotas_of(response.headers());
        let status = response.status();
        let outcome = self
            .shape
            .outcome_of(host, status)
            .unwrap_or_else(|| outcome_of_status(host, status, wait));
        let receipt = receipt_of(&response);
        let body_deadline = deadline.min(Instant::now() + ANSWER_BODY_TIMEOUT);
        let keep = match (attempt.keeps_answer, status.is_success()) {
            (true, _) => ANSWER_BYTES_MAX,
            (false, true) => 0,
            (false, false) => wayhold_model::outcome::ANSWER_BYTES_MAX,
        };
        let mut answer = Answer::default();
        drop(timeout_at(body_deadline, read_some(response, keep, &mut answer)).await);
        let outcome = outcome.with_answer(&answer.bytes);
        let said = Said {
            quotas,
            receipt: Some(receipt),
            answer: attempt.keeps_answer.then_some(answer),
            ..Said::default()
        };
        (outcome, said)
    }

    async fn probe(&self) -> Result<String, Failure> {
        let response = self.line.probe(self.shape.probe()).await?;
        let (host, status) = (self.line.host(), response.status().as_u16());
        Ok(format!(
            "{host} can be reached; it answered {status} to OPTIONS"
        ))
    }
}

/// What an answer calls what was taken: its status, and where that can be found.
fn receipt_of(response: &Response) -> Receipt {
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|value| value.to_str().ok());
    Receipt::Http {
        status: response.status().as_u16(),
        location: location
            .filter(|text| !text.is_empty() && text.len() <= LOCATION_BYTES_MAX)
            .map(Into::into),
    }
}

/// Reads an answer's body so far that its connection may be used again; beyond that, dropping it
/// closes the connection. Its first `keep` bytes go to `answer`.
async fn read_some(mut response: Response, keep: usize, answer: &mut Answer) {
    let mut left = ANSWER_BYTES_MAX;
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = keep.saturating_sub(answer.bytes.len()).min(chunk.len());
        answer
            .bytes
            .extend_from_slice(chunk.get(..room).unwrap_or_default());
        answer.cut |= room < chunk.len();
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
