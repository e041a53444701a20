//! `/v1/sources`: tables that the server reads, how they are doing, and what they lack.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use wayhold_model::Timestamp;

use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::source::SourceReport;
use crate::source::outbox_table::{Finding, RefusedRow};

/// How long a database may take to say what is missing.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/sources", get(list))
        .route("/v1/sources/{name}", get(show))
        .route("/v1/sources/{name}/check", post(check))
}

/// A source.
#[derive(Debug, Serialize)]
pub struct SourceBody {
    name: String,
    kind: &'static str,
    database: &'static str,
    table: String,
    mode: &'static str,
    state: &'static str,
    reason: Option<String>,
    since: String,
    /// Rows that became events since the server started.
    accepted: u64,
    /// Rows that wait in the table as they were counted last; `null` before that.
    lag_rows: Option<u64>,
    oldest_row_age_seconds: f64,
    /// Bytes of the database's log that are kept for the source; `null` where it reads none.
    log_bytes: Option<u64>,
    counted_at: Option<String>,
    /// Rows that were refused and stay in the table.
    refused: usize,
    /// The first of them.
    refused_rows: Vec<RefusedRowBody>,
}

#[derive(Debug, Serialize)]
struct RefusedRowBody {
    id: String,
    /// Later rows of this key wait for it.
    key: Option<String>,
    reason: String,
    since: String,
}

/// What a source lacks.
#[derive(Debug, Serialize)]
struct CheckBody {
    name: String,
    /// Whether nothing keeps it from reading.
    ready: bool,
    findings: Vec<FindingBody>,
}

#[derive(Debug, Serialize)]
struct FindingBody {
    /// `missing`, without which nothing is read, or `advice`.
    kind: &'static str,
    problem: String,
    /// What mends it.
    sql: Option<String>,
}

impl SourceBody {
    /// How it is.
    pub fn new(report: &SourceReport, now: Timestamp) -> Self {
        let snapshot = &report.snapshot;
        Self {
            name: report.name.clone(),
            kind: "outbox_table",
            database: report.database,
            table: report.table.clone(),
            mode: report.mode.name(),
            state: snapshot.state.name(),
            reason: snapshot.reason.clone(),
            since: snapshot.since.to_string(),
            accepted: snapshot.accepted,
            lag_rows: snapshot.lag.map(|lag| lag.rows),
            oldest_row_age_seconds: snapshot.oldest_row_age(now).as_secs_f64(),
            log_bytes: snapshot.lag.and_then(|lag| lag.log_bytes),
            counted_at: snapshot.counted_at.as_ref().map(Timestamp::to_string),
            refused: snapshot.refused,
            refused_rows: snapshot.refused_rows.iter().map(refused).collect(),
        }
    }
}

fn refused(row: &RefusedRow) -> RefusedRowBody {
    RefusedRowBody {
        id: row.id.clone(),
        key: row.key.clone(),
        reason: row.reason.clone(),
        since: row.since.to_string(),
    }
}

fn finding(finding: Finding) -> FindingBody {
    FindingBody {
        kind: if finding.advice { "advice" } else { "missing" },
        problem: finding.problem,
        sql: finding.remedy,
    }
}

async fn list(State(app): State<Arc<App>>, _: Caller<Read>) -> Json<List<SourceBody>> {
    let now = app.clock.now();
    let sources = app.tables.report();
    let bodies = sources.iter().map(|report| SourceBody::new(report, now));
    Json(List::whole(bodies.collect()))
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(name): Path<String>,
) -> Result<Json<SourceBody>, Problem> {
    let sources = app.tables.report();
    let found = sources.iter().find(|report| report.name == name);
    let report = found.ok_or_else(|| unknown(&name))?;
    Ok(Json(SourceBody::new(report, app.clock.now())))
}

async fn check(
    State(app): State<Arc<App>>,
    _: Caller<Operate>,
    Path(name): Path<String>,
) -> Result<Json<CheckBody>, Problem> {
    let checked = app.tables.check(&name, CHECK_TIMEOUT).await;
    let findings = match checked.ok_or_else(|| unknown(&name))? {
        Ok(findings) => findings,
        // That it cannot be asked is what is missing.
        Err(trouble) => vec![Finding {
            problem: trouble.to_string(),
            remedy: None,
            advice: false,
        }],
    };
    Ok(Json(CheckBody {
        name,
        ready: findings.iter().all(|finding| finding.advice),
        findings: findings.into_iter().map(finding).collect(),
    }))
}

fn unknown(name: &str) -> Problem {
    let detail = format!("no table that is read is configured as source {name:?}");
    Problem::new(ProblemType::NotFound, detail)
}
