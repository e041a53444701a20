//! `/v1/config`: what the configuration file says that is not in force, and following it.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

use super::caller::{Caller, Operate};
use crate::app::{App, ReloadError};
use crate::config::{Change, Problems};
use crate::http::{Problem, ProblemType};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/config/diff", get(diff))
        .route("/v1/config/reload", post(reload))
}

/// What differs, or was changed.
#[derive(Debug, Serialize)]
struct ChangesBody {
    /// The file as the server was started with it; `null` where there is none.
    file: Option<String>,
    /// Since when the configuration that is in force is.
    since: String,
    changes: Vec<ChangeBody>,
}

/// A value that is another one now.
#[derive(Debug, Serialize)]
struct ChangeBody {
    path: String,
    /// As the file would write it; secrets are left out.
    from: Value,
    to: Value,
    /// Whether what changed lies behind a value that reads as before: the content of a secret or file.
    content: bool,
    /// `applied` by a reload, or `needs a restart`.
    effect: &'static str,
}

impl From<&Change> for ChangeBody {
    fn from(change: &Change) -> Self {
        Self {
            path: change.path.clone(),
            from: change.from.clone(),
            to: change.to.clone(),
            content: change.content,
            effect: change.effect.name(),
        }
    }
}

fn bodies(changes: &[Change]) -> Vec<ChangeBody> {
    changes.iter().map(ChangeBody::from).collect()
}

async fn diff(
    State(app): State<Arc<App>>,
    _: Caller<Operate>,
) -> Result<Json<ChangesBody>, Problem> {
    let changes = app.difference().await?;
    Ok(Json(ChangesBody {
        file: app.file(),
        since: app.in_force().since.to_string(),
        changes: bodies(&changes),
    }))
}

async fn reload(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
) -> Result<Json<ChangesBody>, Problem> {
    let reloaded = app.reload(&caller.principal.name).await?;
    Ok(Json(ChangesBody {
        file: app.file(),
        since: reloaded.since.to_string(),
        changes: bodies(&reloaded.changes),
    }))
}

impl From<ReloadError> for Problem {
    fn from(error: ReloadError) -> Self {
        let detail = error.to_string();
        match error {
            ReloadError::Invalid(problems) => {
                let detail = "the configuration is wrong; nothing has changed";
                Self::new(ProblemType::InvalidConfiguration, detail)
                    .with("problems", told(&problems))
            }
            ReloadError::Sink { name, reason } => {
                let key = format!("destinations.{name}");
                let problem = json!({ "at": null, "key": key, "message": reason, "add": null });
                Self::new(ProblemType::InvalidConfiguration, detail)
                    .with("problems", json!([problem]))
            }
            ReloadError::NeedsRestart(changes) => Self::new(ProblemType::RestartNeeded, detail)
                .with("changes", json!(bodies(&changes))),
            ReloadError::Dispatch(error) => error.into(),
            ReloadError::Interrupted(error) => error.into(),
        }
    }
}

/// Problems as `config check --json` tells them.
fn told(problems: &Problems) -> Value {
    let body = |problem: &crate::config::Problem| {
        json!({
            "at": problem.origin.to_string(),
            "key": problem.key,
            "message": problem.message,
            "add": problem.add,
        })
    };
    problems.0.iter().take(PROBLEMS_MAX).map(body).collect()
}

/// Most problems of one answer; whoever has more begins with these.
const PROBLEMS_MAX: usize = 50;
