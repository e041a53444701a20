//! `/v1/backups`: copies of the running store into directories of its machine. A request begins one and does
//! not wait; the list says how far it is and what the last ones hold.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use wayhold_model::Timestamp;
use wayhold_store::backup::{Manifest, ShardCopy};

use super::body::Wish;
use super::caller::{Admin, Caller};
use super::list::List;
use crate::app::App;
use crate::backups::BackupRun;
use crate::http::Problem;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/backups", get(list).post(begin))
}

/// A backup.
#[derive(Debug, Serialize)]
pub struct BackupBody {
    number: u64,
    to: String,
    /// `running`, `done` or `failed`.
    state: &'static str,
    by: String,
    begun_at: String,
    ended_at: Option<String>,
    /// Bytes copied so far, of about so many.
    bytes: u64,
    bytes_expected: u64,
    /// Why it failed.
    reason: Option<String>,
    /// What it holds, once it is done.
    #[serde(flatten)]
    holds: Option<HoldsBody>,
}

/// What a backup holds.
#[derive(Debug, Serialize)]
pub struct HoldsBody {
    node: String,
    files: usize,
    shards: Vec<ShardBody>,
    left_out: Vec<String>,
}

/// How far the copy of a shard reaches.
#[derive(Debug, Serialize)]
struct ShardBody {
    shard: String,
    last_sequence: u64,
    /// What was accepted later is not in the backup.
    last_accepted_at: Option<String>,
}

impl HoldsBody {
    /// What this manifest says.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            node: manifest.node_id.clone(),
            files: manifest.files.len(),
            shards: manifest.shards.iter().map(ShardBody::new).collect(),
            left_out: manifest.left_out.clone(),
        }
    }
}

impl ShardBody {
    fn new(shard: &ShardCopy) -> Self {
        let at = shard.last_accepted_at.map(Timestamp::from_micros);
        Self {
            shard: format!("g{}.s{}", shard.generation, shard.shard),
            last_sequence: shard.last_sequence,
            last_accepted_at: at.as_ref().map(Timestamp::to_string),
        }
    }
}

impl BackupBody {
    fn new(run: &BackupRun) -> Self {
        let ended = run.ended();
        let made = ended.map(|(_, made)| made);
        Self {
            number: run.number,
            to: run.to.display().to_string(),
            state: match made {
                None => "running",
                Some(Ok(_)) => "done",
                Some(Err(_)) => "failed",
            },
            by: run.by.clone(),
            begun_at: run.begun_at.to_string(),
            ended_at: ended.map(|(at, _)| at.to_string()),
            bytes: run.progress.copied(),
            bytes_expected: run.progress.expected(),
            reason: made.and_then(|made| made.as_ref().err().cloned()),
            holds: made.and_then(|made| made.as_ref().ok().map(HoldsBody::new)),
        }
    }
}

/// Where to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Where {
    to: PathBuf,
}

async fn begin(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Wish(wish): Wish<Where>,
) -> Result<(StatusCode, Json<BackupBody>), Problem> {
    let run = app.backups.begin(&wish.to, &caller.principal.name).await?;
    Ok((StatusCode::ACCEPTED, Json(BackupBody::new(&run))))
}

async fn list(State(app): State<Arc<App>>, _: Caller<Admin>) -> Json<List<BackupBody>> {
    let runs = app.backups.list();
    Json(List::whole(
        runs.iter().map(|run| BackupBody::new(run)).collect(),
    ))
}
