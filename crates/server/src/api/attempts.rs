//! `/v1/events/{position}/attempts`: what is on record of the attempts to deliver an event.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use wayhold_model::{FailureClass, Position, Receipt, Timestamp};
use wayhold_store::attempt_log::{AttemptEntry, RecordFigures, RecordOptions};

use super::caller::{Caller, Read};
use super::list::List;
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/events/{position}/attempts", get(list))
}

/// An attempt that ended.
#[derive(Debug, Serialize)]
struct AttemptBody {
    destination: String,
    number: u32,
    at: String,
    duration_seconds: f64,
    outcome: &'static str,
    /// `null` of a delivery.
    class: Option<&'static str>,
    status: Option<i32>,
    /// What the receiver calls what it took: of HTTP where it can be found, of Kafka its place.
    location: Option<Box<str>>,
    partition: Option<i32>,
    offset: Option<i64>,
    /// The replay that it was made for; `null` for the event's own delivery.
    replay: Option<u64>,
}

impl AttemptBody {
    fn new(app: &App, entry: AttemptEntry) -> Self {
        let destination = app.store.catalog().destination(entry.destination);
        let (location, partition, offset) = match entry.receipt {
            Some(Receipt::Http { location, .. }) => (location, None, None),
            Some(Receipt::Kafka { partition, offset }) => (None, Some(partition), Some(offset)),
            None => (None, None, None),
        };
        Self {
            destination: destination.map(|record| record.name).unwrap_or_default(),
            number: entry.number,
            at: entry.at.to_string(),
            duration_seconds: entry.duration.as_secs_f64(),
            outcome: entry.outcome.name(),
            class: entry.class.map(FailureClass::name),
            status: entry.status,
            location,
            partition,
            offset,
            replay: entry.replay,
        }
    }
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(position): Path<String>,
) -> Result<Json<List<AttemptBody>>, Problem> {
    let position: Position = position
        .parse()
        .map_err(|error| Problem::new(ProblemType::InvalidRequest, format!("position: {error}")))?;
    let attempts = app.attempts.clone();
    let entries = blocking(move || attempts.of(position)).await?;
    let entries = entries.map_err(|error| Problem::new(ProblemType::Unavailable, error))?;
    let bodies = entries.into_iter();
    Ok(Json(List::whole(
        bodies.map(|entry| AttemptBody::new(&app, entry)).collect(),
    )))
}

/// How much of the record of attempts there is, and will be.
#[derive(Debug, Serialize)]
pub(super) struct RecordBody {
    /// Bytes on disk.
    bytes: u64,
    bytes_max: u64,
    /// Bytes that it will hold once it reaches back as far as `retention.attempts`, if things go on as they are;
    /// `null` until a minute of it can tell.
    bytes_expected: Option<u64>,
    /// Since when there is one.
    since: Option<String>,
    written: u64,
    /// Attempts that are not in it, since more ended than the disk took.
    dropped: u64,
}

impl RecordBody {
    pub(super) fn new(figures: RecordFigures, options: RecordOptions, now: Timestamp) -> Self {
        Self {
            bytes: figures.bytes,
            bytes_max: options.bytes,
            bytes_expected: figures.expected(options, now),
            since: figures.since.map(|since| since.to_string()),
            written: figures.written,
            dropped: figures.dropped,
        }
    }
}
