//! `POST /v1/commands/{id}/edit`: other arguments for a command that waits for approval.

use std::sync::Arc;

use axum::extract::{Path, State as Shared};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use wayhold_model::approval::Digest;

use super::body::Wish;
use super::caller::{Caller, Propose};
use crate::app::App;
use crate::command::desk::id_of;
use crate::http::{Problem, ProblemType};

/// The route.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/commands/{id}/edit", post(edit))
}

/// The whole arguments, and the digest of the command that was seen.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    digest: String,
    arguments: Map<String, Value>,
}

async fn edit(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Propose>,
    Path(id): Path<String>,
    Wish(wanted): Wish<Wanted>,
) -> Result<Json<Value>, Problem> {
    let id = id_of(&id)?;
    let seen = Digest::parse(&wanted.digest).ok_or_else(|| {
        let detail = "digest: expected the digest of the command that you saw, 64 digits";
        Problem::new(ProblemType::MalformedBody, detail).with("field", "digest")
    })?;
    let by = caller.principal.actor();
    let prepared = app
        .commands
        .edited(id, Value::Object(wanted.arguments))
        .await?;
    let edit = prepared.into_edit(by, seen);
    let digest = edit.digest;
    let state = app.approvals.edit(id, edit).await?;
    // What is asked now, where something is.
    let request = app.approvals.look(move |view| view.requests_of(id)).await?;
    let request = request.into_iter().next().map(|row| row.request);
    let pending = request.filter(|request| request.bound == digest);
    Ok(Json(json!({
        "id": id.to_string(),
        "state": state.name(),
        "digest": digest.to_string(),
        "approval": pending.map(|request| request.id),
    })))
}
