//! `/v1/ledger`: the record of commands and decisions, and what proves it. Checkpoint and tiles lie where C2SP's `tlog-tiles` wants
//! them below this path.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use wayhold_model::ledger::note::Note;
use wayhold_model::ledger::tile::{Tile, TilePath};
use wayhold_model::ledger::tlog_proof::TlogProof;
use wayhold_model::ledger::{Actor, ActorKind, Auth, Checkpoint, Hash};
use wayhold_store::commands::{Commands, CommandsError, RecordRow, View};

use super::body::Wish;
use super::caller::{Admin, Audit, Caller};
use super::list::List;
use crate::app::App;
use crate::auth::{Principal, PrincipalKind};
use crate::blocking::blocking;
use crate::command::anchors::AnchorState;
use crate::command::ledger::{Erasure, LedgerError};
use crate::http::{Problem, ProblemType};
use crate::telemetry::report::Report;

/// Most records of a page: each has at most 64 KiB.
const LISTED_MAX: u32 = 100;

/// Longest reason of an erasure, in bytes.
const REASON_BYTES_MAX: usize = 2_000;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/ledger", get(list))
        .route("/v1/ledger/checkpoint", get(checkpoint))
        .route("/v1/ledger/keys", get(keys))
        .route("/v1/ledger/anchors", get(anchors))
        .route("/v1/ledger/consistency", get(consistency))
        .route("/v1/ledger/exports", post(export))
        .route("/v1/ledger/tile/{*path}", get(tile))
        .route("/v1/ledger/{idx}", get(show))
        .route("/v1/ledger/{idx}/proof", get(proof))
        .route("/v1/ledger/{idx}/erase", post(erase))
}

/// Which records to list, from the oldest on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Selection {
    /// `next` of the page before.
    after: Option<u64>,
    limit: Option<u32>,
    /// Only those of this stream, such as `cmd:<id>`.
    stream: Option<String>,
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    selection: Result<Query<Selection>, QueryRejection>,
) -> Result<Json<List<Box<RawValue>>>, Problem> {
    let Query(selection) = selection.map_err(|error| invalid(error.body_text()))?;
    let limit = selection.limit.unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
    let Some(commands) = app.ledger.commands() else {
        return Ok(Json(List::whole(Vec::new())));
    };
    // Where the next page begins: a place in the tree, or in the stream.
    let from = selection.after.unwrap_or(0);
    let is_of_stream = selection.stream.is_some();
    let rows = look(commands, move |view| match &selection.stream {
        None => view.records(from, limit),
        Some(stream) => view.records_of(stream, from, limit),
    })
    .await?;
    let is_full = u32::try_from(rows.len()) == Ok(limit);
    let next = rows
        .last()
        .filter(|_| is_full)
        .map(|last| match is_of_stream {
            false => last.idx + 1,
            true => from + u64::from(limit),
        });
    let items = rows.into_iter().map(raw).collect::<Result<_, _>>()?;
    Ok(Json(List {
        items,
        next: next.map(|next| next.to_string()),
    }))
}

/// The record as it was written: reading and writing it again must give the bytes that were hashed.
fn raw(row: RecordRow) -> Result<Box<RawValue>, Problem> {
    let text = String::from_utf8(row.record).ok();
    text.and_then(|text| RawValue::from_string(text).ok())
        .ok_or_else(|| Problem::new(ProblemType::Internal, "a record of the ledger is damaged"))
}

/// A record, and what is known beside it.
#[derive(Debug, Serialize)]
struct RecordBody {
    record: Box<RawValue>,
    leaf: String,
    payloads: Vec<PayloadBody>,
}

#[derive(Debug, Serialize)]
struct PayloadBody {
    commit: String,
    bytes: usize,
    /// The payload, where it is text; JSON is a text too.
    text: Option<String>,
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    Path(idx): Path<u64>,
) -> Result<Json<RecordBody>, Problem> {
    let (row, payloads) = look(opened(&app)?, move |view| {
        Ok((record(view, idx)?, view.payloads(idx)?))
    })
    .await?;
    let row = row.ok_or_else(|| no_record(idx))?;
    let leaf = row.leaf.to_string();
    let payload = |payload: wayhold_store::commands::Payload| PayloadBody {
        commit: payload.commitment.to_string(),
        bytes: payload.bytes.len(),
        text: String::from_utf8(payload.bytes).ok(),
    };
    Ok(Json(RecordBody {
        record: raw(row)?,
        leaf,
        payloads: payloads.into_iter().map(payload).collect(),
    }))
}

async fn checkpoint(State(app): State<Arc<App>>, _: Caller<Audit>) -> Result<Response, Problem> {
    let note = look(opened(&app)?, |view| view.checkpoint()).await?;
    let (_, _, note) = note.ok_or_else(no_checkpoint)?;
    Ok(text(note))
}

#[derive(Debug, Serialize)]
struct KeyBody {
    verifier: String,
    retired: bool,
}

async fn keys(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
) -> Result<Json<List<KeyBody>>, Problem> {
    let keys = look(opened(&app)?, |view| view.ledger_keys()).await?;
    let body = |key: wayhold_store::commands::KeyOfLedger| KeyBody {
        verifier: key.verifier,
        retired: key.is_retired,
    };
    Ok(Json(List::whole(keys.into_iter().map(body).collect())))
}

/// How the ledger stands, in status.
#[derive(Debug, Serialize)]
pub(super) struct LedgerBody {
    /// Records that were ever written.
    records: u64,
    /// Bytes on disk of commands, ledger and payloads, which are one file.
    bytes: u64,
    /// The newest signed checkpoint; `null` before the first.
    checkpoint: Option<CheckpointBody>,
    /// Second places.
    anchors: Vec<AnchorBody>,
}

#[derive(Debug, Serialize)]
struct CheckpointBody {
    /// Records that it covers.
    size: u64,
    at: String,
}

impl LedgerBody {
    pub(super) fn new(report: &Report) -> Option<Self> {
        let standing = report.ledger.as_ref()?;
        Some(Self {
            records: standing.records,
            bytes: standing.bytes,
            checkpoint: standing.signed.map(|signed| CheckpointBody {
                size: signed.size,
                at: signed.at.to_string(),
            }),
            anchors: report.anchors.iter().map(AnchorBody::new).collect(),
        })
    }
}

#[derive(Debug, Serialize)]
struct AnchorBody {
    name: String,
    /// Records that the last checkpoint put there covers.
    size: Option<u64>,
    /// When that was.
    at: Option<String>,
    /// Tries that failed since the start.
    failures: u64,
    failure: Option<String>,
}

impl AnchorBody {
    fn new(state: &AnchorState) -> Self {
        Self {
            name: state.name.clone(),
            size: state.size,
            at: state.at.map(|at| at.to_string()),
            failures: state.failures,
            failure: state.failure.clone(),
        }
    }
}

async fn anchors(State(app): State<Arc<App>>, _: Caller<Audit>) -> Json<List<AnchorBody>> {
    let states = app.anchors.states();
    Json(List::whole(states.iter().map(AnchorBody::new).collect()))
}

/// The proof that a record is in the tree of the newest checkpoint, as one text to carry.
async fn proof(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    Path(idx): Path<u64>,
) -> Result<Response, Problem> {
    let proof = look(opened(&app)?, move |view| {
        let Some((_, _, note)) = view.checkpoint()? else {
            return Ok(None);
        };
        let unfit = |reason: String| CommandsError::Unfit { reason };
        let checkpoint: Note = note
            .parse()
            .map_err(|error: wayhold_model::ledger::note::InvalidNote| unfit(error.to_string()))?;
        let signed: Checkpoint = checkpoint.text.parse().map_err(
            |error: wayhold_model::ledger::checkpoint::InvalidCheckpoint| unfit(error.to_string()),
        )?;
        let path = view.inclusion(idx, signed.head.size)?;
        Ok(path.map(|path| TlogProof {
            index: idx,
            path,
            checkpoint,
        }))
    })
    .await?;
    let proof = proof.ok_or_else(|| {
        let words = format!("no checkpoint covers record {idx} yet; ask again after ten seconds");
        Problem::new(ProblemType::NotFound, words)
    })?;
    Ok(text(proof.to_string()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    old: u64,
    new: u64,
}

#[derive(Debug, Serialize)]
struct ConsistencyBody {
    old: u64,
    new: u64,
    /// In base64, as RFC 9162 orders them.
    hashes: Vec<String>,
}

async fn consistency(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    sizes: Result<Query<Sizes>, QueryRejection>,
) -> Result<Json<ConsistencyBody>, Problem> {
    let Query(Sizes { old, new }) = sizes.map_err(|error| invalid(error.body_text()))?;
    let path = look(opened(&app)?, move |view| view.consistency(old, new)).await?;
    let path = path.ok_or_else(|| {
        invalid("old, new: expected 1 <= old <= new <= the number of records".to_owned())
    })?;
    let hashes = path.into_iter().map(Hash::to_base64).collect();
    Ok(Json(ConsistencyBody { old, new, hashes }))
}

async fn tile(
    State(app): State<Arc<App>>,
    _: Caller<Audit>,
    Path(path): Path<String>,
) -> Result<Response, Problem> {
    let wanted: TilePath =
        path.parse()
            .map_err(|error: wayhold_model::ledger::tile::InvalidTilePath| {
                invalid(error.to_string())
            })?;
    let bytes = look(opened(&app)?, move |view| match wanted {
        TilePath::Hashes(tile) => {
            let hashes = view.tile(tile)?;
            Ok(hashes.map(|hashes| hashes.iter().flat_map(|hash| hash.0).collect()))
        }
        TilePath::Entries(tile) => entries(view, tile),
    })
    .await?;
    let bytes: Vec<u8> = bytes.ok_or_else(|| {
        let words = "the tree has no such tile, or its records are older than the retention";
        Problem::new(ProblemType::NotFound, words)
    })?;
    let (TilePath::Hashes(tile) | TilePath::Entries(tile)) = wanted;
    let caching = match tile.is_full() {
        true => "private, max-age=31536000, immutable",
        false => "private, max-age=60",
    };
    let headers = [
        (CONTENT_TYPE, "application/octet-stream"),
        (CACHE_CONTROL, caching),
    ];
    Ok((headers, Bytes::from(bytes)).into_response())
}

/// Records of a tile, each with its length in front.
fn entries(view: &View<'_>, tile: Tile) -> Result<Option<Vec<u8>>, CommandsError> {
    let Some(first) = tile.nodes().next() else {
        return Ok(None);
    };
    let width = u32::try_from(tile.width).unwrap_or(u32::MAX);
    let rows = view.records(first.index, width)?;
    let is_whole =
        rows.len() as u64 == tile.width && rows.first().is_some_and(|row| row.idx == first.index);
    Ok(is_whole.then(|| {
        let mut bytes = Vec::new();
        for row in rows {
            // A record has at most 65,535 bytes.
            let length = u16::try_from(row.record.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&row.record);
        }
        bytes
    }))
}

/// An export that is about to be made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportBody {
    /// A key of the ledger that is exported, so that no other server records it.
    key: String,
}

/// What was done.
#[derive(Debug, Serialize)]
struct RecordedBody {
    /// The record that says so.
    idx: u64,
}

async fn export(
    State(app): State<Arc<App>>,
    caller: Caller<Audit>,
    Wish(body): Wish<ExportBody>,
) -> Result<Json<RecordedBody>, Problem> {
    let idx = app.ledger.export(actor(&caller.principal), body.key).await;
    let idx = idx.map_err(|error| refused(&error))?;
    Ok(Json(RecordedBody { idx }))
}

/// A payload to erase.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErasureBody {
    /// Its commitment.
    commit: String,
    reason: String,
    legal_basis: Option<String>,
}

async fn erase(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Path(idx): Path<u64>,
    Wish(body): Wish<ErasureBody>,
) -> Result<Json<RecordedBody>, Problem> {
    let commitment: Hash =
        body.commit
            .parse()
            .map_err(|error: wayhold_model::ledger::hash::InvalidHash| {
                invalid(format!("commit: {error}"))
            })?;
    let reasons = [Some(&body.reason), body.legal_basis.as_ref()];
    if body.reason.trim().is_empty()
        || reasons
            .into_iter()
            .flatten()
            .any(|text| text.len() > REASON_BYTES_MAX)
    {
        let words = format!("reason, legal_basis: expected 1 to {REASON_BYTES_MAX} bytes");
        return Err(invalid(words));
    }
    let erasure = Erasure {
        idx,
        commitment,
        reason: body.reason,
        legal_basis: body.legal_basis,
    };
    let idx = app
        .ledger
        .erase(actor(&caller.principal), erasure)
        .await
        .map_err(|error| refused(&error))?;
    Ok(Json(RecordedBody { idx }))
}

fn actor(principal: &Principal) -> Actor {
    Actor {
        kind: match principal.kind {
            PrincipalKind::Person => ActorKind::Person,
            PrincipalKind::Service => ActorKind::Service,
            PrincipalKind::Model => ActorKind::Model,
        },
        id: principal.name.clone(),
        on_behalf_of: None,
        auth: Some(Auth {
            method: "api".to_owned(),
            key_id: None,
        }),
    }
}

fn record(view: &View<'_>, idx: u64) -> Result<Option<RecordRow>, CommandsError> {
    Ok(view.records(idx, 1)?.into_iter().find(|row| row.idx == idx))
}

fn opened(app: &App) -> Result<Commands, Problem> {
    app.ledger.commands().ok_or_else(no_checkpoint)
}

/// Reads away from the threads that serve everybody.
pub(super) async fn look<T: Send + 'static>(
    commands: Commands,
    look: impl FnOnce(&View<'_>) -> Result<T, CommandsError> + Send + 'static,
) -> Result<T, Problem> {
    let read = blocking(move || commands.read(look)).await?;
    read.map_err(|error| refused(&error.into()))
}

fn text(body: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn invalid(words: String) -> Problem {
    Problem::new(ProblemType::InvalidRequest, words)
}

fn no_record(idx: u64) -> Problem {
    let words = format!("no record {idx}; it is not written yet, or older than the retention");
    Problem::new(ProblemType::NotFound, words)
}

fn no_checkpoint() -> Problem {
    let words = "there is no checkpoint yet: none is signed before the first command";
    Problem::new(ProblemType::NotFound, words)
}

fn refused(error: &LedgerError) -> Problem {
    let kind = match error {
        LedgerError::NoPayload { .. } => ProblemType::NotFound,
        LedgerError::Unfit(_) => ProblemType::InvalidRequest,
        LedgerError::NotEnded(_) | LedgerError::OtherLedger(_) => ProblemType::StateConflict,
        LedgerError::Commands(CommandsError::Busy) => ProblemType::Busy,
        LedgerError::Commands(CommandsError::NoSpace) => ProblemType::NoSpace,
        LedgerError::Commands(CommandsError::Stopping) => ProblemType::Stopping,
        LedgerError::Commands(CommandsError::Closed { .. }) => ProblemType::Unavailable,
        _ => ProblemType::Internal,
    };
    Problem::new(kind, error.to_string())
}
