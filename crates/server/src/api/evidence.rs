//! `/v1/commands/{id}/evidence`: one page about a command, from the ledger alone; for programs, for people, and for
//! browsers.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use serde::Deserialize;

use super::caller::{Audit, Caller};
use super::ledger::look;
use crate::app::App;
use crate::command::evidence::{collect, html, text};
use crate::http::{Problem, ProblemType};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/commands/{id}/evidence", get(show))
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    #[default]
    Json,
    Text,
    Html,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    format: Form,
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    Path(id): Path<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Wanted { format }) =
        wanted.map_err(|error| Problem::new(ProblemType::InvalidRequest, error.body_text()))?;
    let unknown = || {
        let words = "the ledger has no record of such a command, or it is older than the retention";
        Problem::new(ProblemType::NotFound, words)
    };
    let commands = app.ledger.commands().ok_or_else(unknown)?;
    let evidence = look(commands, move |view| collect(view, &id)).await?;
    let evidence = evidence.ok_or_else(unknown)?;
    let page = |kind: &'static str, body: String| {
        let headers = [
            (CONTENT_TYPE, kind),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'; sandbox",
            ),
        ];
        (headers, body).into_response()
    };
    Ok(match format {
        Form::Json => Json(evidence).into_response(),
        Form::Text => page("text/plain; charset=utf-8", text(&evidence)),
        Form::Html => page("text/html; charset=utf-8", html(&evidence)),
    })
}
