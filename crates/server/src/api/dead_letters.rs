//! `/v1/dead-letters`: deliveries that were given up, and an operator's second thought on them.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use wayhold_model::{DestinationId, FailureClass, Fault};
use wayhold_store::{AttemptRecord, DeadLetter, LetterSelection};

use super::body::Wish;
use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::redelivery::letters::LISTED_MAX;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/dead-letters", get(list))
        .route("/v1/dead-letters/redrive", post(redrive_many))
        .route("/v1/dead-letters/discard", post(discard_many))
        .route("/v1/dead-letters/{id}", get(show))
        .route("/v1/dead-letters/{id}/redrive", post(redrive))
        .route("/v1/dead-letters/{id}/discard", post(discard))
}

/// A dead letter.
#[derive(Debug, Serialize)]
struct LetterBody {
    id: u64,
    source: String,
    event_id: String,
    position: String,
    destination: String,
    class: String,
    /// Who has to do something about it: `receiver` or `ours`; absent where nobody said.
    fault: Option<&'static str>,
    /// What the receiver answered, where it answered with a number.
    status: Option<i32>,
    reason: String,
    attempts: Vec<AttemptBody>,
    at: String,
    redriving: bool,
    /// Whether it refers to its event, which stays in the store for it, and has no copy.
    by_reference: bool,
}

#[derive(Debug, Serialize)]
struct AttemptBody {
    number: u32,
    at: String,
    outcome: &'static str,
    class: &'static str,
    status: Option<i32>,
    reason: String,
}

impl From<&AttemptRecord> for AttemptBody {
    fn from(attempt: &AttemptRecord) -> Self {
        Self {
            number: attempt.number,
            at: attempt.at.to_string(),
            outcome: attempt.outcome.name(),
            class: attempt.class.name(),
            status: attempt.status,
            reason: attempt.reason.clone(),
        }
    }
}

impl LetterBody {
    fn new(app: &App, letter: &DeadLetter) -> Self {
        let event = &letter.event.event;
        let destination = app.store.catalog().destination(letter.destination);
        Self {
            id: letter.id,
            source: event.source().to_owned(),
            event_id: event.id().to_owned(),
            position: letter.event.position.to_string(),
            destination: destination.map(|record| record.name).unwrap_or_default(),
            class: letter.class.clone(),
            fault: FailureClass::from_name(&letter.class)
                .and_then(FailureClass::fault)
                .map(Fault::name),
            status: letter.status,
            reason: letter.reason.clone(),
            attempts: letter.attempts.iter().map(AttemptBody::from).collect(),
            at: letter.at.to_string(),
            redriving: letter.redriving,
            by_reference: letter.referred,
        }
    }
}

/// Which dead letters to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Selection {
    destination: Option<String>,
    /// `next` of the page before.
    after: Option<u64>,
    limit: Option<usize>,
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    selection: Result<Query<Selection>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<List<LetterBody>>, Problem> {
    let Query(selection) =
        selection.map_err(|error| Problem::new(ProblemType::InvalidRequest, error.body_text()))?;
    let destination = match &selection.destination {
        None => None,
        Some(name) => Some(named(&app, name)?),
    };
    let limit = selection.limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
    let letters = app
        .letters
        .list(destination, selection.after, limit)
        .await?;
    // A full page may be the last one; the next is empty then.
    let last = letters.last().filter(|_| letters.len() == limit);
    let next = last.map(|letter| letter.id.to_string());
    let items = letters
        .iter()
        .map(|letter| LetterBody::new(&app, letter))
        .collect();
    Ok(Json(List { items, next }))
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Json<LetterBody>, Problem> {
    let letter = app.letters.show(number(&id)?).await?;
    Ok(Json(LetterBody::new(&app, &letter)))
}

async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<LetterBody>), Problem> {
    let letter = app
        .letters
        .redrive(number(&id)?, &caller.principal.name)
        .await?;
    Ok((StatusCode::ACCEPTED, Json(LetterBody::new(&app, &letter))))
}

/// Why an operator ends a delivery.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Why {
    reason: String,
}

#[derive(Debug, Serialize)]
struct DiscardedBody {
    id: u64,
    discarded: bool,
}

async fn discard(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<DiscardedBody>, Problem> {
    let id = number(&id)?;
    app.letters
        .discard(id, &caller.principal.name, &why.reason)
        .await?;
    Ok(Json(DiscardedBody {
        id,
        discarded: true,
    }))
}

/// Which dead letters are acted on together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    destination: String,
    /// Only those of this class.
    class: Option<String>,
    /// Why, where they are ended.
    #[serde(default)]
    reason: String,
}

impl Many {
    fn selection(&self, app: &App) -> Result<LetterSelection, Problem> {
        Ok(LetterSelection {
            destination: named(app, &self.destination)?,
            class: self.class.clone(),
        })
    }
}

#[derive(Debug, Serialize)]
struct RedrivenBody {
    destination: String,
    redriven: u64,
}

async fn redrive_many(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(many): Wish<Many>,
) -> Result<(StatusCode, Json<RedrivenBody>), Problem> {
    let which = many.selection(&app)?;
    let redriven = app
        .letters
        .redrive_many(which, &caller.principal.name)
        .await?;
    let destination = many.destination;
    Ok((
        StatusCode::ACCEPTED,
        Json(RedrivenBody {
            destination,
            redriven,
        }),
    ))
}

#[derive(Debug, Serialize)]
struct ManyDiscardedBody {
    destination: String,
    discarded: u64,
}

async fn discard_many(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(many): Wish<Many>,
) -> Result<Json<ManyDiscardedBody>, Problem> {
    let which = many.selection(&app)?;
    let discarded = app
        .letters
        .discard_many(which, &caller.principal.name, &many.reason)
        .await?;
    Ok(Json(ManyDiscardedBody {
        destination: many.destination,
        discarded,
    }))
}

fn named(app: &App, name: &str) -> Result<DestinationId, Problem> {
    let records = app.store.catalog().destinations();
    let found = records.into_iter().find(|record| record.name == *name);
    Ok(found.ok_or_else(|| super::destinations::unknown(name))?.id)
}

fn number(id: &str) -> Result<u64, Problem> {
    let detail = || format!("no dead letter is called {id:?}; expected a number");
    id.parse()
        .map_err(|_| Problem::new(ProblemType::NotFound, detail()))
}
