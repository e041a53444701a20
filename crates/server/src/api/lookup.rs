//! `GET /v1/events`: one event by identity or position, and where each of its deliveries stands. Lists are in
//! `event_list`.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::value::RawValue;
use wayhold_model::{DestinationId, Event, Position, StoredEvent};
use wayhold_store::{DeliveryState, Found, ReadError, Store};

use super::caller::{Caller, Read};
use super::event_list::{self, Wanted};
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};
use crate::redelivery::RedeliveryError;
use crate::sink::cloudevents::write_structured;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/events", get(get_events))
        .route("/v1/events/{position}", get(by_position))
        .merge(super::attempts::routes())
}

/// An event and its deliveries.
#[derive(Debug, Serialize)]
struct EventBody {
    /// `null` once its content is gone and it was asked for by position.
    id: Option<String>,
    source: Option<String>,
    position: String,
    accepted_at: String,
    /// What order is kept by; `null` where there is none, or the content is gone.
    key: Option<String>,
    /// The event in CloudEvents' JSON format; `null` once everything of its segment is resolved and the
    /// retention is over.
    event: Option<Box<RawValue>>,
    deliveries: Vec<DeliveryBody>,
}

/// Where one delivery stands.
#[derive(Debug, Serialize)]
struct DeliveryBody {
    destination: String,
    /// `delivered`, `pending`, `retrying` or `dead`.
    state: &'static str,
    /// The event of the same key that must be resolved first, by position.
    behind: Option<String>,
    /// Attempts so far, where the delivery failed.
    attempts: Option<u32>,
    retry_at: Option<String>,
    /// What the last attempt said.
    reason: Option<String>,
    /// Number of the dead letter.
    dead_letter: Option<u64>,
}

/// One event by identity, or a list of many.
async fn get_events(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(mut wanted) =
        wanted.map_err(|error| Problem::new(ProblemType::InvalidRequest, error.body_text()))?;
    match wanted.identity()? {
        Some((id, source)) => Ok(by_identity(&app, id, source).await?.into_response()),
        None => Ok(event_list::page(&app, wanted).await?.into_response()),
    }
}

/// The configured source of plain JSON counts where `source` is absent.
async fn by_identity(
    app: &App,
    id: String,
    source: Option<String>,
) -> Result<Json<EventBody>, Problem> {
    let source = source.unwrap_or_else(|| app.in_force().config.ingest.source.clone());
    let missing = format!("no event of id {id} and source {source} is known");
    let (wanted_id, wanted_source) = (id.clone(), source.clone());
    let body = look_up(app, missing, move |store| {
        store.find(&wanted_source, &wanted_id)
    })
    .await?;
    Ok(Json(EventBody {
        id: Some(id),
        source: Some(source),
        ..body
    }))
}

async fn by_position(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(position): Path<String>,
) -> Result<Json<EventBody>, Problem> {
    let position: Position = position
        .parse()
        .map_err(|error| Problem::new(ProblemType::InvalidRequest, format!("position: {error}")))?;
    let missing = format!("no event of position {position} is known");
    look_up(&app, missing, move |store| store.event(position))
        .await
        .map(Json)
}

/// What the store knows, and then what the lanes know of deliveries that wait; `missing` is said where
/// there is no such event.
async fn look_up(
    app: &App,
    missing: String,
    find: impl FnOnce(&Store) -> Result<Option<Found>, ReadError> + Send + 'static,
) -> Result<EventBody, Problem> {
    let store = app.store.clone();
    let read = move || {
        let found = find(&store)?;
        let states = found.iter().flat_map(|found| {
            let ids = found.destinations.ids().iter();
            ids.map(|id| Ok((*id, store.delivery_state(found.position, *id)?)))
        });
        let states: Vec<_> = states.collect::<Result<_, RedeliveryError>>()?;
        Ok::<_, Problem>((found, states))
    };
    let (found, states) = blocking(read).await??;
    let found = found.ok_or_else(|| Problem::new(ProblemType::NotFound, missing))?;
    let names = app.store.catalog().destinations();
    let mut deliveries = Vec::with_capacity(states.len());
    for (id, state) in states {
        let name = names.iter().find(|record| record.id == id);
        let name = name.map_or_else(|| id.0.to_string(), |record| record.name.clone());
        let behind = match (&state, &found.event) {
            (DeliveryState::Pending, Some(event)) => behind(app, event, id).await,
            _ => None,
        };
        deliveries.push(DeliveryBody::new(name, state, behind));
    }
    let event = found.event.as_deref().map(|stored| &*stored.event);
    Ok(EventBody {
        id: event.map(|event| event.id().to_owned()),
        source: event.map(|event| event.source().to_owned()),
        position: found.position.to_string(),
        accepted_at: found.accepted_at.to_string(),
        key: event.and_then(|event| event.key()).map(str::to_owned),
        event: event.map(structured).transpose()?,
        deliveries,
    })
}

async fn behind(app: &App, event: &StoredEvent, destination: DestinationId) -> Option<Position> {
    app.dispatcher.behind(event, destination).await
}

/// The event as text that is passed on untouched, so that no digit of its data is lost.
pub(super) fn structured(event: &Event) -> Result<Box<RawValue>, Problem> {
    let mut text = Vec::with_capacity(event.size() + 256);
    write_structured(event, &mut text);
    let text = String::from_utf8(text).ok();
    text.and_then(|text| RawValue::from_string(text).ok())
        .ok_or_else(|| Problem::new(ProblemType::Internal, "the event cannot be shown as JSON"))
}

/// A delivery's state in one word.
pub(super) fn state_name(state: &DeliveryState) -> &'static str {
    match state {
        DeliveryState::Pending => "pending",
        DeliveryState::Resolved => "delivered",
        DeliveryState::Retrying { .. }
        | DeliveryState::Dead {
            redriving: true, ..
        } => "retrying",
        DeliveryState::Dead { .. } => "dead",
    }
}

impl DeliveryBody {
    fn new(destination: String, state: DeliveryState, behind: Option<Position>) -> Self {
        let body = Self {
            destination,
            state: state_name(&state),
            behind: behind.map(|position| position.to_string()),
            attempts: None,
            retry_at: None,
            reason: None,
            dead_letter: None,
        };
        match state {
            DeliveryState::Pending | DeliveryState::Resolved => body,
            DeliveryState::Retrying { attempts, at, last } => Self {
                attempts: Some(attempts),
                retry_at: Some(at.to_string()),
                reason: Some(last.reason),
                ..body
            },
            DeliveryState::Dead { letter, .. } => Self {
                dead_letter: Some(letter),
                ..body
            },
        }
    }
}
