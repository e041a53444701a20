//! `/v1/shards`: over how many shards new events are spread, and how older generations of shards drain.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use wayhold_model::shard_map::SHARDS_MAX;
use wayhold_store::GenerationFigures;

use super::body::Wish;
use super::caller::{Caller, Operate, Read};
use super::list::List;
use crate::app::App;
use crate::blocking::blocking;
use crate::http::{Problem, ProblemType};

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/shards", get(list).put(set))
}

/// A generation of shards.
#[derive(Debug, Serialize)]
struct GenerationBody {
    generation: u32,
    shards: u16,
    since: String,
    state: &'static str,
    /// Deliveries that are not resolved.
    pending: u64,
    /// In how many seconds it will be drained at the rate of the last minute; `null` where nothing drains.
    drained_in_seconds: Option<f64>,
}

impl GenerationBody {
    fn new(figures: &GenerationFigures) -> Self {
        Self {
            generation: figures.generation.0,
            shards: figures.shards,
            since: figures.since.to_string(),
            state: figures.state.name(),
            pending: figures.pending,
            drained_in_seconds: figures.drained_in.map(|wait| wait.as_secs_f64()),
        }
    }
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
) -> Result<Json<List<GenerationBody>>, Problem> {
    all(&app).await
}

async fn all(app: &App) -> Result<Json<List<GenerationBody>>, Problem> {
    let store = app.store.clone();
    let generations = blocking(move || store.generations()).await?;
    let bodies = generations.iter().map(GenerationBody::new);
    Ok(Json(List::whole(bodies.collect())))
}

/// What an operator wants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    count: u64,
    reason: Option<String>,
}

async fn set(
    State(app): State<Arc<App>>,
    caller: Caller<Operate>,
    Wish(wanted): Wish<Wanted>,
) -> Result<Json<List<GenerationBody>>, Problem> {
    let count = u16::try_from(wanted.count).ok();
    let count = count.filter(|count| (1..=SHARDS_MAX).contains(count));
    let count = count.ok_or_else(|| {
        let detail = format!("count: {}; expected 1 to {SHARDS_MAX}", wanted.count);
        Problem::new(ProblemType::InvalidRequest, detail).with("field", "count")
    })?;
    let (store, by) = (app.store.clone(), caller.principal.name.clone());
    let change = move || store.set_shards(count, &by, wanted.reason.as_deref());
    blocking(change).await??;
    all(&app).await
}
