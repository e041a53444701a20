//! The way to one HTTP destination: which addresses may be reached, as whom, over which connections. What
//! is asked there, and what an answer means, is the business of whoever uses it.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;
use reqwest::{Request, Response};
use tokio::time::Instant;
use url::Url;
use wayhold_model::{Failure, FailureClass, Outcome};

use super::address::Guard;
use super::auth::config::AuthConfig;
use super::auth::{Auth, NoToken};
use super::classify::{
    outcome_of_denial, outcome_of_error, outcome_of_no_token, outcome_of_timeout,
};
use super::client::config::ClientConfig;
use super::client::{Client, Names, NoAnswer};
use crate::sink::BuildError;

/// How long a probe waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a line is made of.
#[derive(Clone, Copy, Debug)]
pub(in crate::sink) struct Way<'a> {
    /// A URL at the destination's host: all its requests go there.
    pub(in crate::sink) base: &'a Url,
    /// Networks that it may reach although they are not public.
    pub(in crate::sink) allow_networks: &'a [IpNet],
    /// How it knows who asks.
    pub(in crate::sink) auth: &'a AuthConfig,
    /// How its client connects and how long it waits.
    pub(in crate::sink) client: &'a ClientConfig,
}

/// The way to one destination.
pub(in crate::sink) struct Line {
    base: Url,
    host: String,
    guard: Guard,
    auth: Auth,
    client: Client,
}

impl Line {
    /// Builds the client, with at most `window` idle connections. It reaches nothing yet.
    ///
    /// # Errors
    /// When the system's certificate roots cannot be read.
    pub(in crate::sink) fn open(
        way: Way<'_>,
        window: usize,
        names: Arc<dyn Names>,
    ) -> Result<Self, BuildError> {
        let guard = Guard::new(way.base, way.allow_networks);
        let auth = Auth::start(way.auth, way.allow_networks, &names)?;
        let identity = way.auth.identity.as_ref();
        let client = Client::new(way.base, guard.clone(), way.client, identity, names, window)?;
        Ok(Self {
            base: way.base.clone(),
            host: way.base.host_str().unwrap_or_default().to_owned(),
            guard,
            auth,
            client,
        })
    }

    /// The destination's host, which reasons may name.
    pub(in crate::sink) fn host(&self) -> &str {
        &self.host
    }

    /// Sends a request with its credential and waits for the head of the answer, at most for `timeout`.
    ///
    /// # Errors
    /// The outcome of a request that got no answer.
    pub(in crate::sink) async fn ask(
        &self,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, Outcome> {
        if let Err(denied) = self.guard.check_literal(&self.base) {
            return Err(outcome_of_denial(&self.host, denied));
        }
        let deadline = Instant::now() + timeout;
        self.send(request, deadline)
            .await
            .map_err(|unanswered| match unanswered {
                Unanswered::NoToken(error) => outcome_of_no_token(&error),
                Unanswered::NoAnswer(NoAnswer::Late(wait)) => {
                    outcome_of_timeout(&self.host, wait.unwrap_or(timeout))
                }
                Unanswered::NoAnswer(NoAnswer::Failed(error)) => {
                    outcome_of_error(&self.host, &error)
                }
            })
    }

    /// Sends a request that changes nothing there, and says whether an answer came.
    ///
    /// # Errors
    /// Says why none did.
    pub(in crate::sink) async fn probe(&self, request: Request) -> Result<Response, Failure> {
        let no_answer = || Failure::new(FailureClass::Connect, "no answer");
        self.ask(request, PROBE_TIMEOUT)
            .await
            .map_err(|outcome| outcome.failure().cloned().unwrap_or_else(no_answer))
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

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
