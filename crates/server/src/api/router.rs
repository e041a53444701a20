//! Which path leads where, for each kind of listener.

use std::sync::Arc;

use axum::Router;
use http::{Method, Uri};

use super::{dead_letters, destinations, health, lookup, status, tokens};
use crate::app::App;
use crate::http::{Problem, ProblemType, pages};

/// Listeners of the API. `POST /v1/events` does not come this way: the front takes it before.
pub fn api(app: &Arc<App>) -> Router {
    Router::new()
        .merge(lookup::routes())
        .merge(destinations::routes())
        .merge(dead_letters::routes())
        .merge(status::routes())
        .merge(tokens::routes())
        .merge(health::routes())
        .merge(pages::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(Arc::clone(app))
}

/// The listener of `--ops-listen`.
pub fn ops(app: &Arc<App>) -> Router {
    Router::new()
        .merge(health::ops_routes())
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(Arc::clone(app))
}

async fn unknown(uri: Uri) -> Problem {
    Problem::new(
        ProblemType::NotFound,
        format!("nothing is served at {}", uri.path()),
    )
}

async fn not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::new(
        ProblemType::MethodNotAllowed,
        format!("{method} is not for {}", uri.path()),
    )
}
