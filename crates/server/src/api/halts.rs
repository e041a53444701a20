//! `POST /v1/commands/halt` and `/v1/commands/continue`: the brake on everything of a principal, a kind or a
//! destination that has not left; `GET /v1/commands/halts` says what is halted.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wayhold_model::approval::Per;
use wayhold_store::commands::Halt;

use super::body::Wish;
use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};

/// Longest name and reason, in bytes: they stand in records.
const TEXT_BYTES_MAX: usize = 512;

/// The routes of the brake.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/commands/halt", post(halt))
        .route("/v1/commands/continue", post(go_on))
        .route("/v1/commands/halts", get(list))
}

/// One of the three, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    principal: Option<String>,
    kind: Option<String>,
    destination: Option<String>,
    reason: Option<String>,
}

impl Wanted {
    fn read(self) -> Result<((Per, String), String), Problem> {
        let malformed = |detail: String| Problem::new(ProblemType::MalformedBody, detail);
        let named = [
            (Per::Principal, self.principal),
            (Per::Kind, self.kind),
            (Per::Destination, self.destination),
        ];
        let mut named = named
            .into_iter()
            .filter_map(|(per, name)| Some((per, name?)));
        let (Some(what), None) = (named.next(), named.next()) else {
            let detail = "body: expected one of principal, kind and destination";
            return Err(malformed(detail.to_owned()));
        };
        let reason = self.reason.unwrap_or_default();
        if reason.trim().is_empty() {
            return Err(malformed("reason: expected why".to_owned()).with("field", "reason"));
        }
        if what.1.is_empty() || what.1.len().max(reason.len()) > TEXT_BYTES_MAX {
            let detail = format!("body: expected texts of 1 to {TEXT_BYTES_MAX} bytes");
            return Err(malformed(detail));
        }
        Ok((what, reason))
    }
}

async fn halt(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(wanted): Wish<Wanted>,
) -> Result<Json<Answer>, Problem> {
    set(&app, &caller, wanted, true).await
}

async fn go_on(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(wanted): Wish<Wanted>,
) -> Result<Json<Answer>, Problem> {
    set(&app, &caller, wanted, false).await
}

async fn set(
    app: &Arc<App>,
    caller: &Caller<Operate>,
    wanted: Wanted,
    halted: bool,
) -> Result<Json<Answer>, Problem> {
    let (what, reason) = wanted.read()?;
    let by = caller.principal.actor();
    let (changed, action) = if halted {
        let changed = app.approvals.halt(what.clone(), by, reason.clone());
        (changed.await?, "commands.halted")
    } else {
        let changed = app.approvals.go_on(what.clone(), by, reason.clone());
        (changed.await?, "commands.continued")
    };
    note(app, &caller.principal.name, action, &what, reason).await?;
    let (scope, name) = what;
    Ok(Json(Answer {
        scope: scope.name(),
        name,
        halted,
        changed,
    }))
}

async fn list(State(app): State<Arc<App>>, _: Caller<Read>) -> Result<Json<List<Value>>, Problem> {
    let shown = |halt: Halt| {
        json!({
            "scope": halt.scope.name(),
            "name": halt.name,
            "by": halt.by,
            "reason": halt.reason,
            "since": halt.since.to_string(),
        })
    };
    let halts = app.approvals.halts().await?;
    Ok(Json(List::whole(halts.into_iter().map(shown).collect())))
}

/// What is so now.
#[derive(Serialize)]
struct Answer {
    scope: &'static str,
    name: String,
    halted: bool,
    /// Whether it was not so before.
    changed: bool,
}

/// Puts it into the audit trail beside the ledger: whoever looks there for what operators did finds it.
async fn note(
    app: &Arc<App>,
    by: &str,
    action: &'static str,
    (per, name): &(Per, String),
    reason: String,
) -> Result<(), Problem> {
    let (store, by) = (app.store.clone(), by.to_owned());
    let subject = format!("{}:{name}", per.name());
    let audit = move || store.catalog().audit(&by, action, &subject, Some(&reason));
    blocking(audit).await??;
    Ok(())
}
