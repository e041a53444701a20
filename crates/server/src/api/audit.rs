//! `/v1/audit`: who did what, to what, when and why, newest first. Entries are added by what is done, and never
//! changed or removed.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use wayhold_store::catalog::AuditEntry;

use super::caller::{Audit, Caller};
use super::list::List;
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};

/// Most entries of one page: a reason may be as long as a request lets it be.
const LISTED_MAX: usize = 100;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/audit", get(list))
}

/// An entry of the audit trail.
#[derive(Debug, Serialize)]
struct EntryBody {
    /// Counts up, never reused.
    number: u64,
    at: String,
    /// Name of the principal; `configuration` or `wayhold` where nobody was asked.
    by: String,
    /// `noun.verb`.
    action: String,
    /// To what it was done.
    subject: String,
    reason: Option<String>,
}

impl From<AuditEntry> for EntryBody {
    fn from(entry: AuditEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at.to_string(),
            by: entry.by,
            action: entry.action,
            subject: entry.subject,
            reason: entry.reason,
        }
    }
}

/// Which entries to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Selection {
    /// `next` of the page before.
    after: Option<u64>,
    limit: Option<usize>,
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    selection: Result<Query<Selection>, QueryRejection>,
) -> Result<Json<List<EntryBody>>, Problem> {
    let Query(selection) =
        selection.map_err(|error| Problem::new(ProblemType::InvalidRequest, error.body_text()))?;
    let limit = selection.limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
    let read = move || {
        let catalog = app.store.catalog();
        catalog.audit_trail(selection.after, limit)
    };
    let entries = blocking(read).await??;
    // A full page may be the last one; the next is empty then.
    let last = entries.last().filter(|_| entries.len() == limit);
    let next = last.map(|entry| entry.number.to_string());
    let items = entries.into_iter().map(EntryBody::from).collect();
    Ok(Json(List { items, next }))
}
