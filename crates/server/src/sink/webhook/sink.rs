//! The sink of webhooks and HTTP APIs: one task per attempt over a pooled client that is told to do nothing
//! on its own. A crash loses only what was in flight, which is then sent again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use reqwest::{Request, Response};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use wayhold_model::{Clock, Event, Failure, FailureClass, Outcome};

use super::address::Guard;
use super::auth::{Auth, NoToken};
use super::classify::{
    outcome_of_denial, outcome_of_error, outcome_of_no_token, outcome_of_status, outcome_of_timeout,
};
use super::client::{Client, Names, NoAnswer, SystemNames};
use super::retry_after::retry_after;
use super::shape::Shape;
use crate::sink::{Attempt, BoxFuture, BuildError, Preview, Sink};

/// Most bytes of an answer's body that are read, so that the connection can be used again.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// How long the body of an answer may take once its status has come; the status alone decides.
const ANSWER_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a probe waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends to one HTTP receiver.
#[derive(Debug)]
pub struct WebhookSink {
    target: Arc<Target>,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

struct Target {
    shape: Shape,
    auth: Auth,
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
        let guard = Guard::new(shape.base(), shape.allow_networks());
        let auth = Auth::start(shape.auth(), shape.allow_networks(), &names)?;
        let identity = shape.auth().identity.as_ref();
        let client = Client::new(
            shape.base(),
            guard.clone(),
            shape.client(),
            identity,
            names,
            window,
        )?;
        Ok(Self {
            target: Arc::new(Target {
                host: shape.base().host_str().unwrap_or_default().to_owned(),
                shape,
                auth,
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
    /// One attempt, from the event to its outcome, within the attempt's timeout.
    async fn post(&self, attempt: &Attempt) -> Outcome {
        let event = &attempt.event.event;
        if let Err(denied) = self.guard.check_literal(self.shape.base()) {
            return outcome_of_denial(&self.host, denied);
        }
        let request = match self.shape.request_of(event, self.clock.now()) {
            Ok(request) => request,
            Err(failure) => return Outcome::Refused(failure),
        };
        let deadline = Instant::now() + attempt.timeout;
        let response = match self.send(request, deadline).await {
            Err(Unanswered::NoToken(error)) => return outcome_of_no_token(&error),
            Err(Unanswered::NoAnswer(NoAnswer::Late(wait))) => {
                return outcome_of_timeout(&self.host, wait.unwrap_or(attempt.timeout));
            }
            Err(Unanswered::NoAnswer(NoAnswer::Failed(error))) => {
                return outcome_of_error(&self.host, &error);
            }
            Ok(response) => response,
        };
        let wait = retry_after(response.headers(), self.clock.now());
        let status = response.status();
        let outcome = self
            .shape
            .outcome_of(&self.host, status)
            .unwrap_or_else(|| outcome_of_status(&self.host, status, wait));
        let body_deadline = deadline.min(Instant::now() + ANSWER_BODY_TIMEOUT);
        drop(timeout_at(body_deadline, read_some(response)).await);
        outcome
    }

    /// Sends a request with its credential. A token that is not accepted is fetched anew once, and the
    /// request sent once more: a 401 says that it had no effect, and tokens end before their time.
    async fn send(&self, mut request: Request, deadline: Instant) -> Result<Response, Unanswered> {
        self.auth.apply(request.headers_mut(), deadline).await?;
        let again = if self.auth.is_renewable() {
            request.try_clone()
        } else {
            None
        };
        let response = self.client.execute(request, deadline).await?;
        let refused = response.status() == StatusCode::UNAUTHORIZED;
        let Some(mut again) = again.filter(|_| refused) else {
            return Ok(response);
        };
        drop(response);
        self.auth.refused(again.headers()).await;
        self.auth.apply(again.headers_mut(), deadline).await?;
        Ok(self.client.execute(again, deadline).await?)
    }

    async fn probe(&self) -> Result<String, Failure> {
        let failure_of = |outcome: &Outcome| outcome.failure().cloned();
        if let Err(denied) = self.guard.check_literal(self.shape.base()) {
            let outcome = outcome_of_denial(&self.host, denied);
            return Err(failure_of(&outcome)
                .unwrap_or_else(|| Failure::new(FailureClass::BlockedAddress, "not allowed")));
        }
        let host = &self.host;
        let deadline = Instant::now() + PROBE_TIMEOUT;
        match self.send(self.shape.probe(), deadline).await {
            Ok(response) => {
                let status = response.status().as_u16();
                Ok(format!(
                    "{host} can be reached; it answered {status} to OPTIONS"
                ))
            }
            Err(Unanswered::NoToken(error)) => Err(error.failure()),
            Err(Unanswered::NoAnswer(NoAnswer::Failed(error))) => {
                let outcome = outcome_of_error(host, &error);
                Err(failure_of(&outcome)
                    .unwrap_or_else(|| Failure::new(FailureClass::Connect, "no answer")))
            }
            Err(Unanswered::NoAnswer(NoAnswer::Late(wait))) => {
                let wait = wait.unwrap_or(PROBE_TIMEOUT);
                let reason = format!("no answer from {host} within {wait:?}");
                Err(Failure::new(FailureClass::Timeout, reason))
            }
        }
    }
}

/// Why there is no answer.
enum Unanswered {
    /// There was no credential to send it with.
    NoToken(NoToken),
    /// It was sent, or could not be.
    NoAnswer(NoAnswer),
}

impl From<NoToken> for Unanswered {
    fn from(error: NoToken) -> Self {
        Self::NoToken(error)
    }
}

impl From<NoAnswer> for Unanswered {
    fn from(error: NoAnswer) -> Self {
        Self::NoAnswer(error)
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
