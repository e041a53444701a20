//! What is done with many dead letters together: they are selected, counted, and the count is confirmed.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use wayhold_model::rate::Rate;

use super::body::LetterBody;
use super::{named, selection};
use crate::api::body::Wish;
use crate::api::caller::{Caller, Operate, Read};
use crate::api::list::List;
use crate::app::App;
use crate::http::{Problem, ProblemType};
use crate::redelivery::LettersMeant;
use crate::redelivery::feeding::Running;
use crate::redelivery::many::Tally;

/// The routes of this part.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/dead-letters/redrive", post(redrive))
        .route("/v1/dead-letters/discard", post(discard))
        .route("/v1/dead-letters/redrives", get(running))
        .route("/v1/dead-letters/redrives/{destination}/stop", post(stop))
}

/// Which dead letters are acted on together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    destination: Option<String>,
    class: Option<String>,
    fingerprint: Option<String>,
    filter: Option<String>,
    /// How many the caller expects there to be.
    expect: Option<u64>,
    /// Say how many there are, and do nothing.
    #[serde(default)]
    dry_run: bool,
    /// At most so many begin in a time.
    #[serde(default, deserialize_with = "rate")]
    rate: Option<Rate>,
    /// Why, where they are ended.
    #[serde(default)]
    reason: String,
}

fn rate<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Rate>, D::Error> {
    let text = Option::<String>::deserialize(text)?;
    let parsed = text.map(|text| text.parse::<Rate>()).transpose();
    parsed.map_err(serde::de::Error::custom)
}

impl Many {
    fn selection(&self, app: &App) -> Result<LettersMeant, Problem> {
        let (class, fingerprint) = (self.class.clone(), self.fingerprint.clone());
        let (destination, filter) = (self.destination.as_deref(), self.filter.as_deref());
        selection(app, destination, class, fingerprint, filter)
    }

    /// How many the caller expects: nobody acts on many letters without having counted them.
    fn expected(&self) -> Result<u64, Problem> {
        let detail =
            "expect: expected the number of dead letters that you mean; \"dry_run\": true says it";
        self.expect.ok_or_else(|| {
            Problem::new(ProblemType::InvalidRequest, detail).with("field", "expect")
        })
    }

    fn refuse_rate(&self) -> Result<(), Problem> {
        let detail = "rate: expected none; discarding takes no time";
        match self.rate {
            Some(_) => Err(Problem::new(ProblemType::InvalidRequest, detail).with("field", "rate")),
            None => Ok(()),
        }
    }
}

/// What an action takes, or would take.
#[derive(Debug, Serialize)]
struct TalliedBody {
    destination: Option<String>,
    dry_run: bool,
    selected: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    redriven: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    discarded: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// The first and the last of them, where nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<LetterBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newest: Option<LetterBody>,
}

impl TalliedBody {
    fn new(many: &Many, tally: Tally) -> Self {
        Self {
            destination: many.destination.clone(),
            dry_run: many.dry_run,
            selected: tally.count,
            redriven: None,
            discarded: None,
            rate: many.rate.map(|rate| rate.to_string()),
            oldest: None,
            newest: None,
        }
    }
}

/// What would be done.
async fn rehearse(app: &App, many: &Many, which: LettersMeant) -> Result<TalliedBody, Problem> {
    let tally = app.letters.tally(which).await?;
    let mut body = TalliedBody::new(many, tally);
    for (id, shown) in [
        (tally.oldest, &mut body.oldest),
        (tally.newest, &mut body.newest),
    ] {
        let Some(id) = id else { continue };
        // One that has just ended, or is damaged, is not shown.
        let letter = app.letters.show(id).await.ok();
        *shown = letter.map(|letter| LetterBody::new(app, &letter));
    }
    Ok(body)
}

async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(many): Wish<Many>,
) -> Result<(StatusCode, Json<TalliedBody>), Problem> {
    let which = many.selection(&app)?;
    if many.dry_run {
        return Ok((StatusCode::OK, Json(rehearse(&app, &many, which).await?)));
    }
    let (expected, by) = (many.expected()?, &caller.principal.name);
    let redrive = app.letters.redrive_selected(which, expected, many.rate, by);
    let tally = redrive.await?;
    let body = TalliedBody {
        redriven: Some(tally.count),
        ..TalliedBody::new(&many, tally)
    };
    Ok((StatusCode::ACCEPTED, Json(body)))
}

async fn discard(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(many): Wish<Many>,
) -> Result<Json<TalliedBody>, Problem> {
    many.refuse_rate()?;
    let which = many.selection(&app)?;
    if many.dry_run {
        return Ok(Json(rehearse(&app, &many, which).await?));
    }
    let (expected, by) = (many.expected()?, &caller.principal.name);
    let discard = app
        .letters
        .discard_selected(which, expected, by, &many.reason);
    let tally = discard.await?;
    Ok(Json(TalliedBody {
        discarded: Some(tally.count),
        ..TalliedBody::new(&many, tally)
    }))
}

/// A redrive of many that is under way.
#[derive(Debug, Serialize)]
struct RunningBody {
    destination: String,
    selected: u64,
    /// How many were handed over to be sent again; the others are still dead letters.
    redriven: u64,
    rate: Option<String>,
    by: String,
    since: String,
}

impl RunningBody {
    fn new(app: &App, running: &Running) -> Self {
        let destination = app.store.catalog().destination(running.destination);
        Self {
            destination: destination.map(|record| record.name).unwrap_or_default(),
            selected: running.selected,
            redriven: running.redriven(),
            rate: running.rate.map(|rate| rate.to_string()),
            by: running.by.clone(),
            since: running.since.to_string(),
        }
    }
}

async fn running(State(app): State<Arc<App>>, _: Caller<Read>) -> Json<List<RunningBody>> {
    let running = app.letters.running();
    let bodies = running.iter().map(|one| RunningBody::new(&app, one));
    Json(List::whole(bodies.collect()))
}

async fn stop(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Path(name): Path<String>,
) -> Result<Json<RunningBody>, Problem> {
    let stopped = app
        .letters
        .stop_running(named(&app, &name)?, &caller.principal.name)
        .await?;
    let none = || {
        let detail = format!("no redrive of many dead letters is under way at {name}");
        Problem::new(ProblemType::NotFound, detail)
    };
    let running = stopped.ok_or_else(none)?;
    Ok(Json(RunningBody::new(&app, &running)))
}
