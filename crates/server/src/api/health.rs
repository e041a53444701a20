//! `/livez`, `/readyz` and `/metrics`: what machines ask. Answers name neither keys nor payloads, so the
//! listener of `--ops-listen` serves them to anybody; elsewhere `/metrics` needs the role `read`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::caller::{Caller, Read};
use crate::app::App;
use crate::http::Problem;
use crate::telemetry::exposition;
use crate::telemetry::report::Readiness;

/// When to ask again whether the server is ready, in seconds.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("1");

/// The routes on listeners of the API.
pub fn routes() -> Router<Arc<App>> {
    open_routes().route(
        "/metrics",
        get(async |app, _: Caller<Read>| metrics(app).await),
    )
}

/// The routes on the listener of `--ops-listen`, where nobody needs a token.
pub fn ops_routes() -> Router<Arc<App>> {
    open_routes().route("/metrics", get(metrics))
}

fn open_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(ready))
}

#[derive(Debug, Serialize)]
struct ReadinessBody {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    degraded: Vec<String>,
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    let Readiness { unready, degraded } = app.readiness().await;
    let ready = unready.is_none();
    let body = Json(ReadinessBody {
        ready,
        reason: unready,
        degraded,
    });
    if ready {
        body.into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            [(RETRY_AFTER, ASK_AGAIN)],
            body,
        )
            .into_response()
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let page = exposition::render(&app.metrics, app.report().await?);
    let content_type = HeaderValue::from_static(exposition::CONTENT_TYPE);
    Ok(([(CONTENT_TYPE, content_type)], page).into_response())
}
