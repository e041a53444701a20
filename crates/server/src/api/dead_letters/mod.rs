//! `/v1/dead-letters`: deliveries that were given up, and an operator's second thought on them.

mod body;
mod many;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use wayhold_model::DestinationId;
use wayhold_store::{LetterError, LetterQuery};

use self::body::{EndedBody, GroupBody, LetterBody};
use super::body::{Wish, read as parse, whole};
use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::redelivery::edit::{self, Edit};
use crate::redelivery::letter_filter::compile;
use crate::redelivery::letters::LISTED_MAX;
use crate::redelivery::{LettersMeant, RedeliveryError};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/dead-letters", get(list))
        .route("/v1/dead-letters/groups", get(groups))
        .route("/v1/dead-letters/{id}", get(show))
        .route("/v1/dead-letters/{id}/redrive", post(redrive))
        .route("/v1/dead-letters/{id}/discard", post(discard))
        .merge(many::routes())
}

/// Longest body of a redrive, in bytes: an event of the largest size, with its data in base64.
const EDIT_BYTES_MAX: usize = 16 << 20;

/// Which dead letters are meant.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    destination: Option<String>,
    class: Option<String>,
    fingerprint: Option<String>,
    /// A CEL expression over the event, its data and what is known of the letter.
    filter: Option<String>,
    /// `next` of the page before.
    after: Option<u64>,
    limit: Option<usize>,
}

fn selection(
    app: &App,
    destination: Option<&str>,
    class: Option<String>,
    fingerprint: Option<String>,
    filter: Option<&str>,
) -> Result<LettersMeant, Problem> {
    let destination = destination.map(|name| named(app, name)).transpose()?;
    let filter = filter.map(compile).transpose().map_err(|error| {
        let detail = format!("filter: {error}");
        Problem::new(ProblemType::InvalidRequest, detail).with("field", "filter")
    })?;
    Ok(LettersMeant {
        query: LetterQuery {
            destination,
            class,
            fingerprint,
        },
        filter,
    })
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<List<LetterBody>>, Problem> {
    let Which {
        destination,
        class,
        fingerprint,
        filter,
        after,
        limit,
    } = read(which)?;
    let which = selection(
        &app,
        destination.as_deref(),
        class,
        fingerprint,
        filter.as_deref(),
    )?;
    let limit = limit.unwrap_or(LISTED_MAX);
    let page = app.letters.list(which, after, limit).await?;
    let bodies = page.letters.iter();
    Ok(Json(List {
        items: bodies.map(|letter| LetterBody::new(&app, letter)).collect(),
        next: page.next.map(|next| next.to_string()),
    }))
}

/// Whose dead letters are grouped.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whose {
    destination: Option<String>,
}

/// The largest groups, and how many there are.
#[derive(Debug, Serialize)]
struct GroupsBody {
    #[serde(flatten)]
    list: List<GroupBody>,
    groups: usize,
}

async fn groups(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    whose: Result<Query<Whose>, QueryRejection>,
) -> Result<Json<GroupsBody>, Problem> {
    let Whose { destination } = read(whose)?;
    let destination = destination.map(|name| named(&app, &name)).transpose()?;
    let (largest, groups) = app.letters.groups(destination).await?;
    let bodies = largest.iter().map(|group| GroupBody::new(&app, group));
    Ok(Json(GroupsBody {
        list: List::whole(bodies.collect()),
        groups,
    }))
}

fn read<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let malformed =
        |error: QueryRejection| Problem::new(ProblemType::InvalidRequest, error.body_text());
    query.map(|Query(query)| query).map_err(malformed)
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = number(&id)?;
    match app.letters.show(id).await {
        Ok(letter) => Ok(Json(LetterBody::whole(&app, &letter)?).into_response()),
        Err(error @ RedeliveryError::Letter(LetterError::NotFound { .. })) => {
            // What was sent in the place of an event is told as long as it is known.
            let edited = app.letters.edit(id).await?.ok_or(error)?;
            Ok(Json(EndedBody::new(&app, &edited)?).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

/// How one letter is sent again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Again {
    /// What is replaced of its event.
    #[serde(default)]
    edit: Option<Edit>,
    /// Why, where something is.
    #[serde(default)]
    reason: String,
}

async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    request: Request,
) -> Result<(StatusCode, Json<LetterBody>), Problem> {
    let (id, by) = (number(&id)?, &caller.principal.name);
    // An edit may hold a whole event's data.
    let body = whole(request, EDIT_BYTES_MAX).await?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    let Again { edit, reason } = parse(text)?;
    let letter = match edit {
        None => app.letters.redrive(id, by).await?,
        Some(edit) => {
            let letter = app.letters.show(id).await?;
            let read = |text: &[u8]| app.accept.read_event(text);
            let edited = edit::apply(&letter.to_send().event, &edit, read)?;
            app.letters.redrive_edited(id, edited, &reason, by).await?
        }
    };
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
