//! The webhook sink: one task per attempt over a pooled client that is told to do nothing on its own. A
//! crash loses only what was in flight, which is then sent again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Method, Request, Response};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use wayhold_model::{Clock, Failure, FailureClass, Outcome};

use super::address::Guard;
use super::classify::{outcome_of_denial, outcome_of_error, outcome_of_status, outcome_of_timeout};
use super::client::{Client, Names, NoAnswer, SystemNames};
use super::config::WebhookConfig;
use super::request::request_of;
use super::retry_after::retry_after;
use super::sign;
use crate::sink::{Attempt, BoxFuture, BuildError, Sink};

/// Most bytes of an answer's body that are read, so that the connection can be used again.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// How long the body of an answer may take once its status has come; the status alone decides.
const ANSWER_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a probe waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Posts to a URL.
#[derive(Debug)]
pub struct WebhookSink {
    target: Arc<Target>,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

struct Target {
    config: WebhookConfig,
    host: String,
    guard: Guard,
    client: Client,
    clock: Arc<dyn Clock>,
}

impl WebhookSink {
    /// Builds the client. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read.
    pub fn start(
        config: &WebhookConfig,
        window: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        Self::start_with(config, window, clock, Arc::new(SystemNames))
    }

    /// The same with another way to look names up.
    pub(super) fn start_with(
        config: &WebhookConfig,
        window: usize,
        clock: Arc<dyn Clock>,
        names: Arc<dyn Names>,
    ) -> Result<Self, BuildError> {
        let guard = Guard::new(&config.url, &config.allow_networks);
        let client = Client::new(&config.url, guard.clone(), &config.client, names, window)?;
        Ok(Self {
            target: Arc::new(Target {
                host: config.url.host_str().unwrap_or_default().to_owned(),
                config: config.clone(),
                guard,
                client,
                clock,
            }),
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
                    let outcome = target.post(&attempt).await;
                    attempt.finish(outcome);
                },
                &self.runtime,
            );
        }
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(self.target.probe())
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
    /// One attempt, from the event to its outcome, within the attempt's timeout.
    async fn post(&self, attempt: &Attempt) -> Outcome {
        let event = &attempt.event.event;
        if let Err(denied) = self.guard.check_literal(&self.config.url) {
            return outcome_of_denial(&self.host, denied);
        }
        let request = request_of(event, self.config.mode, &self.config.headers);
        let (mut headers, body) = match request {
            Ok(parts) => parts,
            Err(error) => {
                let failure = Failure::new(FailureClass::Mapping, error.to_string());
                return Outcome::Refused(failure);
            }
        };
        let keys = &self.config.signing_keys;
        sign::set_headers(keys, event, &body, self.clock.now(), &mut headers);
        let mut request = Request::new(Method::POST, self.config.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        let deadline = Instant::now() + attempt.timeout;
        match self.client.execute(request, deadline).await {
            Err(NoAnswer::Late(wait)) => {
                outcome_of_timeout(&self.host, wait.unwrap_or(attempt.timeout))
            }
            Err(NoAnswer::Failed(error)) => outcome_of_error(&self.host, &error),
            Ok(response) => {
                let wait = retry_after(response.headers(), self.clock.now());
                let outcome = outcome_of_status(&self.host, response.status(), wait);
                let body_deadline = deadline.min(Instant::now() + ANSWER_BODY_TIMEOUT);
                drop(timeout_at(body_deadline, read_some(response)).await);
                outcome
            }
        }
    }

    async fn probe(&self) -> Result<String, Failure> {
        let failure_of = |outcome: &Outcome| outcome.failure().cloned();
        if let Err(denied) = self.guard.check_literal(&self.config.url) {
            let outcome = outcome_of_denial(&self.host, denied);
            return Err(failure_of(&outcome)
                .unwrap_or_else(|| Failure::new(FailureClass::BlockedAddress, "not allowed")));
        }
        let mut request = Request::new(Method::OPTIONS, self.config.url.clone());
        *request.headers_mut() = self.config.headers.clone();
        let host = &self.host;
        let deadline = Instant::now() + PROBE_TIMEOUT;
        match self.client.execute(request, deadline).await {
            Ok(response) => {
                let status = response.status().as_u16();
                Ok(format!(
                    "{host} can be reached; it answered {status} to OPTIONS"
                ))
            }
            Err(NoAnswer::Failed(error)) => {
                let outcome = outcome_of_error(host, &error);
                Err(failure_of(&outcome)
                    .unwrap_or_else(|| Failure::new(FailureClass::Connect, "no answer")))
            }
            Err(NoAnswer::Late(wait)) => {
                let wait = wait.unwrap_or(PROBE_TIMEOUT);
                let reason = format!("no answer from {host} within {wait:?}");
                Err(Failure::new(FailureClass::Timeout, reason))
            }
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Reads an answer's body so far that its connection may be used again; beyond that, dropping it
/// closes the connection.
async fn read_some(mut response: Response) {
    let mut left = ANSWER_BYTES_MAX;
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
