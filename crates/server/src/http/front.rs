//! What every request passes first. Events take the short way to `api::events`; everything else goes
//! to the router. A panic ends one request, not the process.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use super::problem::{Problem, ProblemType};
use super::server::Stop;
use super::watchdog::Watch;
use crate::api;
use crate::auth::{Auth, Openness, Peer};
use crate::ingest::Accept;
use crate::telemetry::metrics::Metrics;

/// `Retry-After` while stopping: a restart takes about this long.
pub(super) const STOP_RETRY_AFTER: Duration = Duration::from_secs(2);

/// Header of every answer while nobody is asked for a token.
const AUTH_HEADER: &str = "wayhold-auth";

/// Most long NDJSON streams at a time: each holds its answer, which lists every line.
const STREAMS_MAX: usize = 32;

/// Answers requests.
pub struct Front {
    events: Option<Events>,
    router: Router,
    openness: Openness,
    metrics: Arc<Metrics>,
}

/// What `POST /v1/events` needs.
pub struct Events {
    pub(crate) accept: Accept,
    pub(crate) auth: Auth,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) streams: Semaphore,
}

/// The connection that a request came over.
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(super) watch: Arc<Watch>,
    pub(super) stop: Stop,
}

impl Events {
    /// Events for `accept` from whoever `auth` lets in.
    pub fn new(accept: Accept, auth: Auth, metrics: Arc<Metrics>) -> Self {
        Self {
            accept,
            auth,
            metrics,
            streams: Semaphore::new(STREAMS_MAX),
        }
    }
}

impl Front {
    /// Answers events and whatever `router` knows.
    pub fn new(events: Events, router: Router) -> Self {
        Self {
            openness: events.auth.openness(),
            metrics: Arc::clone(&events.metrics),
            events: Some(events),
            router,
        }
    }

    /// Answers only what `router` knows: the listener for operations.
    pub fn without_events(router: Router, openness: Openness, metrics: Arc<Metrics>) -> Self {
        Self {
            events: None,
            router,
            openness,
            metrics,
        }
    }

    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        client: &Client,
    ) -> Response<Answer> {
        // Nothing of a request outlives it but what the store was given, so a half-done one is whole
        // again once it is dropped.
        let answered = AssertUnwindSafe(self.route(request, client))
            .catch_unwind()
            .await;
        let mut response = answered.unwrap_or_else(|_panic| {
            self.metrics.panics.inc();
            tracing::error!("a request panicked and was answered 500");
            Problem::new(ProblemType::Internal, "the request was given up").to_response()
        });
        if self.openness == Openness::Open {
            response
                .headers_mut()
                .insert(AUTH_HEADER, HeaderValue::from_static("off"));
        }
        response
    }

    async fn route(&self, request: Request<Incoming>, client: &Client) -> Response<Answer> {
        if client.stop.has_begun() {
            return Problem::new(ProblemType::Stopping, "the server is stopping")
                .with_retry_after(STOP_RETRY_AFTER)
                .to_response();
        }
        if let Some(events) = &self.events
            && request.method() == Method::POST
            && request.uri().path() == "/v1/events"
        {
            return api::events::post(events, request, client).await;
        }
        // In a box, so that events do not carry the router's larger future with them.
        Box::pin(self.ask_router(request, client.peer)).await
    }

    async fn ask_router(&self, request: Request<Incoming>, peer: Peer) -> Response<Answer> {
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(peer);
        match self.router.clone().oneshot(request).await {
            Ok(response) => response.map(Answer::Router),
            Err(never) => match never {},
        }
    }
}

/// The body of an answer.
#[derive(Debug)]
pub enum Answer {
    /// A text that is ready.
    Text(Full<Bytes>),
    /// Whatever the router made.
    Router(axum::body::Body),
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self::Text(Full::new(Bytes::from(text)))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Text(text) => Pin::new(text)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Self::Router(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Router(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Router(body) => body.size_hint(),
        }
    }
}
