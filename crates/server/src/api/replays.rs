//! `/v1/replays`: old events, delivered anew to a destination.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use wayhold_store::DestinationRecord;
use wayhold_store::catalog::{ReplayState, SelectedSize};

use super::body::Wish;
use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::redelivery::replays::{ReplayRequest, ShownReplay, name_of};
use crate::redelivery::selection::SelectionText;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/replays", get(list).post(begin))
        .route("/v1/replays/{id}", get(show))
        .route("/v1/replays/{id}/pause", post(pause))
        .route("/v1/replays/{id}/resume", post(resume))
        .route("/v1/replays/{id}/cancel", post(cancel))
}

/// What is asked for: a replay, or what one would deliver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    select: SelectionText,
    destination: Option<String>,
    to: Option<String>,
    rate: Option<String>,
    /// Only count.
    #[serde(default)]
    dry_run: bool,
}

/// How much a selection takes.
#[derive(Debug, Serialize)]
struct SizeBody {
    selected: u64,
    /// Bytes of data.
    bytes: u64,
    oldest: Option<String>,
    newest: Option<String>,
    /// Whether everything that was accepted in the time that is asked for is still held.
    complete: bool,
}

impl From<SelectedSize> for SizeBody {
    fn from(size: SelectedSize) -> Self {
        Self {
            selected: size.events,
            bytes: size.bytes,
            oldest: size.oldest.map(|at| at.to_string()),
            newest: size.newest.map(|at| at.to_string()),
            complete: size.complete,
        }
    }
}

/// A replay. `selected` is `delivered`, `dead`, `skipped`, `missing` and `remaining` together.
#[derive(Debug, Serialize)]
struct ReplayBody {
    id: u64,
    /// `running`, `paused`, `cancelled` or `done`.
    state: &'static str,
    /// Why it is in that state, or why nothing starts.
    reason: Option<String>,
    by: String,
    since: String,
    /// Where the events go.
    to: String,
    /// What was asked for.
    request: serde_json::Value,
    from: Option<String>,
    until: String,
    created_at: String,
    created_by: String,
    /// `null` until they are counted.
    #[serde(flatten)]
    size: MaybeSize,
    delivered: u64,
    dead: u64,
    /// Left out, since their own delivery to the destination was still owed.
    skipped: u64,
    /// Damaged or gone since they were counted.
    missing: u64,
    remaining: Option<u64>,
    /// Attempts that failed.
    failed: u64,
    in_flight: usize,
    /// Events resolved a second.
    rate: f64,
    /// Seconds until everything is resolved, at this rate.
    eta_seconds: Option<u64>,
    last_error: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct MaybeSize {
    selected: Option<u64>,
    bytes: Option<u64>,
    oldest: Option<String>,
    newest: Option<String>,
    complete: Option<bool>,
}

impl From<SizeBody> for MaybeSize {
    fn from(size: SizeBody) -> Self {
        Self {
            selected: Some(size.selected),
            bytes: Some(size.bytes),
            oldest: size.oldest,
            newest: size.newest,
            complete: Some(size.complete),
        }
    }
}

impl ReplayBody {
    fn new(shown: ShownReplay, names: &[DestinationRecord]) -> Self {
        let ShownReplay { record, live } = shown;
        let has_ended = record.state.has_ended();
        let live = live
            .filter(|_| record.state != ReplayState::Done)
            .unwrap_or_default();
        let is_known = live.size.is_some();
        // What the lane says is newer than what is on record, once it says anything.
        let (size, counts) = match is_known {
            true => (live.size, live.counts),
            false => (record.size, record.progress.counts),
        };
        let remaining = size.map(|size| size.events.saturating_sub(counts.resolved()));
        let from = record.range.from;
        Self {
            id: record.id,
            state: record.state.name(),
            reason: record.reason.or(live.waits_for),
            by: record.by,
            since: record.since.to_string(),
            to: name_of(record.destination, names),
            request: serde_json::from_str(&record.request).unwrap_or_default(),
            from: (from.as_micros() > 0).then(|| from.to_string()),
            until: record.range.until.to_string(),
            created_at: record.created_at.to_string(),
            created_by: record.created_by,
            size: size.map_or_else(MaybeSize::default, |size| SizeBody::from(size).into()),
            delivered: counts.delivered,
            dead: counts.dead,
            skipped: counts.skipped,
            missing: counts.missing,
            remaining,
            failed: counts.failed,
            in_flight: live.in_flight,
            rate: (live.speed * 10.0).round() / 10.0,
            eta_seconds: remaining
                .filter(|_| !has_ended)
                .and_then(|left| eta(left, live.speed)),
            last_error: live.last_error,
        }
    }
}

/// Seconds that so many events take; `None` while nothing moves.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, and neither is negative"
)]
fn eta(left: u64, speed: f64) -> Option<u64> {
    match left {
        0 => Some(0),
        _ if speed < 0.1 => None,
        left => Some((left as f64 / speed).ceil() as u64),
    }
}

async fn begin(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(wanted): Wish<Wanted>,
) -> Result<Response, Problem> {
    let request = ReplayRequest {
        select: wanted.select,
        destination: wanted.destination,
        to: wanted.to,
        rate: wanted.rate,
    };
    if wanted.dry_run {
        let size = app.replays.size_of(request).await?;
        return Ok(Json(SizeBody::from(size)).into_response());
    }
    let shown = app.replays.begin(request, &caller.principal.name).await?;
    let location = format!("/v1/replays/{}", shown.record.id);
    let body = body(&app, shown);
    let mut response = (StatusCode::ACCEPTED, body).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

async fn list(State(app): State<Arc<App>>, _: Caller<Read>) -> Json<List<ReplayBody>> {
    let names = app.store.catalog().destinations();
    let all = app.replays.list().into_iter();
    Json(List::whole(
        all.map(|shown| ReplayBody::new(shown, &names)).collect(),
    ))
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Json<ReplayBody>, Problem> {
    Ok(body(&app, app.replays.show(number(&id)?)?))
}

/// Why an operator does it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Why {
    reason: Option<String>,
}

async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<ReplayBody>, Problem> {
    let by = &caller.principal.name;
    let shown = app.replays.pause(number(&id)?, by, why.reason.as_deref());
    Ok(body(&app, shown.await?))
}

async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<ReplayBody>, Problem> {
    let by = &caller.principal.name;
    let shown = app.replays.resume(number(&id)?, by, why.reason.as_deref());
    Ok(body(&app, shown.await?))
}

async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<ReplayBody>, Problem> {
    let by = &caller.principal.name;
    let shown = app.replays.cancel(number(&id)?, by, why.reason.as_deref());
    Ok(body(&app, shown.await?))
}

fn body(app: &App, shown: ShownReplay) -> Json<ReplayBody> {
    Json(ReplayBody::new(shown, &app.store.catalog().destinations()))
}

fn number(id: &str) -> Result<u64, Problem> {
    let detail = || format!("no replay is called {id:?}; expected a number");
    id.parse()
        .map_err(|_| Problem::new(ProblemType::NotFound, detail()))
}
