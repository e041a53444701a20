//! `/v1/destinations`: what is configured, how it is doing, and whether it runs. The configuration
//! defines destinations; here only their run state changes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use wayhold_model::Timestamp;
use wayhold_store::PendingFate;

use super::body::Wish;
use super::caller::{Caller, Operate, Read};
use super::list::List;
use super::trial;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::telemetry::report::DestinationReport;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/destinations", get(list))
        .route("/v1/destinations/{name}", get(show))
        .route("/v1/destinations/{name}/pause", post(pause))
        .route("/v1/destinations/{name}/disable", post(disable))
        .route("/v1/destinations/{name}/resume", post(resume))
        .route("/v1/destinations/{name}/retire", post(retire))
        .route("/v1/destinations/{name}/test", post(trial::test))
}

/// A destination.
#[derive(Debug, Serialize)]
pub struct DestinationBody {
    name: String,
    /// `null` once it left the configuration.
    kind: Option<&'static str>,
    state: &'static str,
    reason: Option<String>,
    since: String,
    /// Who set the state, where a person did.
    by: Option<String>,
    pending: u64,
    in_flight: usize,
    dead_letters: u64,
    last_error: Option<LastErrorBody>,
    next_attempt: Option<String>,
}

/// The last attempt that failed.
#[derive(Debug, Serialize)]
struct LastErrorBody {
    at: String,
    /// Since when attempts fail without one that succeeded; `null` once one did.
    failing_since: Option<String>,
    position: String,
    outcome: &'static str,
    class: &'static str,
    status: Option<i32>,
    reason: String,
}

impl DestinationBody {
    /// How it is.
    pub fn new(report: &DestinationReport) -> Self {
        let (lane, totals) = (&report.lane, &report.accounting.totals);
        Self {
            name: lane.name.clone(),
            kind: report.kind,
            state: lane.state.name(),
            reason: lane.reason.clone(),
            since: lane.since.to_string(),
            by: report.by.clone(),
            pending: totals.pending,
            in_flight: lane.in_flight,
            dead_letters: totals.dead,
            last_error: lane.last_error.as_ref().map(|error| LastErrorBody {
                at: error.at.to_string(),
                failing_since: error.failing_since.as_ref().map(Timestamp::to_string),
                position: error.position.to_string(),
                outcome: error.outcome.name(),
                class: error.class.name(),
                status: error.status,
                reason: error.reason.clone(),
            }),
            next_attempt: lane.next_attempt.as_ref().map(Timestamp::to_string),
        }
    }
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
) -> Result<Json<List<DestinationBody>>, Problem> {
    let report = app.report().await?;
    Ok(Json(List::whole(
        report
            .destinations
            .iter()
            .map(DestinationBody::new)
            .collect(),
    )))
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(name): Path<String>,
) -> Result<Json<DestinationBody>, Problem> {
    one(&app, &name).await
}

async fn one(app: &App, name: &str) -> Result<Json<DestinationBody>, Problem> {
    let report = app.report().await?;
    let found = report
        .destinations
        .iter()
        .find(|destination| destination.lane.name == name);
    found
        .map(|destination| Json(DestinationBody::new(destination)))
        .ok_or_else(|| unknown(name))
}

/// Why an operator wants it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Why {
    reason: Option<String>,
}

async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(name): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<DestinationBody>, Problem> {
    app.dispatcher
        .pause(&name, &caller.principal.name, why.reason.as_deref())
        .await?;
    one(&app, &name).await
}

async fn disable(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(name): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<DestinationBody>, Problem> {
    app.dispatcher
        .disable(&name, &caller.principal.name, why.reason.as_deref())
        .await?;
    one(&app, &name).await
}

async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(name): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<DestinationBody>, Problem> {
    app.dispatcher
        .resume(&name, &caller.principal.name, why.reason.as_deref())
        .await?;
    one(&app, &name).await
}

/// What becomes of the deliveries that a destination is still owed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ending {
    pending: String,
}

/// A destination of which everything was ended.
#[derive(Debug, Serialize)]
struct RetiredBody {
    #[serde(flatten)]
    destination: DestinationBody,
    /// Deliveries that this request ended; 0 where an earlier one had ended them.
    ended: u64,
}

async fn retire(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(name): Path<String>,
    Wish(ending): Wish<Ending>,
) -> Result<Json<RetiredBody>, Problem> {
    let pending = PendingFate::from_name(&ending.pending).ok_or_else(|| {
        let detail = format!(
            "pending: expected \"dead-letter\" or \"discard\", found {:?}",
            ending.pending
        );
        Problem::new(ProblemType::InvalidRequest, detail).with("field", "pending")
    })?;
    let retired = app
        .dispatcher
        .retire(&name, pending, &caller.principal.name)
        .await?;
    let Json(destination) = one(&app, &name).await?;
    Ok(Json(RetiredBody {
        destination,
        ended: retired.ended,
    }))
}

pub(super) fn unknown(name: &str) -> Problem {
    Problem::new(
        ProblemType::NotFound,
        format!("no destination is called {name:?}"),
    )
}
