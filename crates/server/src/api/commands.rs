//! `/v1/commands`: proposing what is to be done outside, looking at it, waiting for it, taking it back.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State as Shared};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use wayhold_model::approval::Digest;
use wayhold_model::command::State;
use wayhold_model::ledger::canonical;
use wayhold_store::commands::{AttemptRow, Command, CommandFilter};

use super::body::{Wish, whole};
use super::caller::{Caller, Operate, Propose, Read};
use super::list::List;
use crate::app::App;
use crate::command::CommandError;
use crate::command::assign::OWNER_BYTES_MAX;
use crate::command::cancel::detail_of;
use crate::command::desk::id_of;
use crate::command::keys::Key;
use crate::command::proposal::{InvalidProposal, Proposal};
use crate::command::propose::{Proposed, Proposer};
use crate::command::reconcile::{Reconciled, Word};
use crate::command::records::actor;
use crate::http::{Problem, ProblemType};

/// Largest body of a proposal, in bytes: arguments, input and everything else at their bounds.
const BODY_BYTES_MAX: usize = 512 * 1024;

/// Longest wait for a command: what stands between rarely keeps a connection without a byte for longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Most attempts shown, the newest.
const ATTEMPTS_SHOWN: u32 = 100;

/// Most commands on a page, and how many where nobody says.
const PAGE: (u32, u32) = (500, 50);

/// The header of `draft-ietf-httpapi-idempotency-key-header`.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Marks an answer that was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/commands", get(list).post(propose))
        .route("/v1/commands/{id}", get(show))
        .route("/v1/commands/{id}/assign", post(assign))
        .route("/v1/commands/{id}/cancel", post(cancel))
        .route("/v1/commands/{id}/undo", post(undo))
        .route("/v1/commands/{id}/replay", post(replay))
        .route("/v1/commands/{id}/reconcile", post(reconcile))
        .route("/v1/commands/reconcile", post(reconcile_all))
}

/// Who proposes, from a principal.
fn proposer<R>(caller: &Caller<R>, on_behalf_of: Option<&str>) -> Proposer {
    Proposer {
        actor: actor(&caller.principal, on_behalf_of),
        labels: caller.principal.roles.clone(),
    }
}

async fn propose(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Propose>,
    request: Request,
) -> Result<Response, Problem> {
    let key = request.headers().get(&KEY).cloned();
    let body = whole(request, BODY_BYTES_MAX).await?;
    let mut rest = canonical::parse(&body)
        .map_err(|error| Problem::new(ProblemType::MalformedBody, format!("body: {error}")))?;
    let arguments = Proposal::take_arguments(&mut rest).map_err(CommandError::from)?;
    let key = key.map(|key| {
        let canonical = canonical::of_foreign(&rest)
            .map_err(|error| InvalidProposal::new("body", error.to_string()))?;
        Key::of_header(key.as_bytes(), &caller.principal.name, &canonical).ok_or_else(|| {
            InvalidProposal::new("Idempotency-Key", "expected 1 to 255 visible characters")
        })
    });
    let key = key.transpose().map_err(CommandError::from)?;
    let (proposal, dry_run) = Proposal::read(rest, arguments).map_err(CommandError::from)?;
    let by = proposer(&caller, proposal.on_behalf_of.as_deref());
    if dry_run {
        let weighed = app.commands.weigh(&by, &proposal)?;
        let body = json!({
            "dry_run": true,
            "kind": weighed.new.kind,
            "destination": weighed.new.destination,
            "digest": Digest(weighed.new.digest).to_string(),
            "requirement": weighed.verdict.requirement.to_json(),
            "policy": weighed.verdict.policy,
            "reasons": weighed.verdict.reasons,
        });
        return Ok(Json(body).into_response());
    }
    // In a place of its own: what serves the request is moved more than once before it runs.
    let proposed = Box::pin(app.commands.propose(&by, proposal, key)).await?;
    Ok(answer(&proposed))
}

fn answer(proposed: &Proposed) -> Response {
    let mut response = (StatusCode::ACCEPTED, proposed.body()).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/commands/{}", proposed.id)) {
        headers.insert(LOCATION, location);
    }
    if proposed.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// What is asked for beside a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Look {
    /// How long to wait for it.
    wait: Option<String>,
    /// The state that is known: the answer comes once it is another one. Without it, once the command has ended.
    since: Option<String>,
}

fn invalid(field: &'static str, detail: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemType::InvalidRequest, format!("{field}: {detail}")).with("field", field)
}

fn state_of(field: &'static str, name: &str) -> Result<State, Problem> {
    State::named(name).ok_or_else(|| invalid(field, format!("expected a state, not {name:?}")))
}

async fn show(
    Shared(app): Shared<Arc<App>>,
    _: Caller<Read>,
    Path(id): Path<String>,
    Query(look): Query<Look>,
) -> Result<Json<Value>, Problem> {
    let id = id_of(&id)?;
    let wait = match &look.wait {
        None => Duration::ZERO,
        Some(text) => crate::config::quantity::parse_duration(text)
            .map_err(|error| invalid("wait", error))?
            .min(WAIT_MAX),
    };
    let since = look.since.as_deref().map(|name| state_of("since", name));
    let since = since.transpose()?;
    let is_over = move |state: State| match since {
        Some(known) => state != known,
        None => state.is_ended(),
    };
    if !wait.is_zero() {
        app.commands.wait_for(id, wait, is_over).await?;
    }
    let (command, attempts, needs) = app
        .commands
        .look(move |view| {
            let command = view.command(id)?;
            Ok((command, view.attempts(id, ATTEMPTS_SHOWN)?, view.needs(id)?))
        })
        .await?;
    let not_found = || CommandError::NotFound { id: id.to_string() };
    let command = command.ok_or_else(not_found)?;
    let mut body = body(&command);
    if let Value::Object(fields) = &mut body {
        let attempts = attempts.iter().map(attempt_body);
        fields.insert("attempts".to_owned(), attempts.collect::<Vec<_>>().into());
        let needs = needs.iter().map(|(id, _)| Value::from(id.to_string()));
        fields.insert("depends_on".to_owned(), needs.collect::<Vec<_>>().into());
    }
    Ok(Json(body))
}

/// A command; the first three fields are those of the answer to its proposal.
pub(super) fn body(command: &Command) -> Value {
    let new = &command.new;
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    json!({
        "id": new.id.to_string(),
        "kind": new.kind,
        "state": command.state.name(),
        "reason": command.reason,
        "destination": new.destination,
        "principal": new.principal,
        "risk": new.risk.name(),
        "reversibility": new.reversibility.name(),
        "digest": Digest(new.digest).to_string(),
        "kind_version": new.kind_version,
        "arguments": json(&new.arguments),
        "proposed_at": command.proposed_at.to_string(),
        "changed_at": command.changed_at.to_string(),
        "expires_at": new.expires_at.map(|at| at.to_string()),
        "not_before": command.not_before.map(|at| at.to_string()),
        "order_key": new.order_key,
        "handed_over": command.handed_over,
        "compensates": new.compensates.map(|id| id.to_string()),
        "replays": new.replays.map(|id| id.to_string()),
        "result": command.result.as_deref().map(json),
        "said": detail_of(command),
    })
}

fn attempt_body(attempt: &AttemptRow) -> Value {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let end = attempt.end.as_ref();
    json!({
        "n": attempt.n,
        "started_at": attempt.started_at.to_string(),
        "request": json(&attempt.request),
        "finished_at": end.map(|(at, _)| at.to_string()),
        "outcome": end.map(|(_, end)| end.outcome.name()),
        "class": end.and_then(|(_, end)| end.class.clone()),
        "status": end.and_then(|(_, end)| end.status),
        "answer": end.map(|(_, end)| json(&end.answer)),
    })
}

/// Which commands are listed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// States, with commas between.
    state: Option<String>,
    kind: Option<String>,
    destination: Option<String>,
    principal: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    Shared(app): Shared<Arc<App>>,
    _: Caller<Read>,
    Query(which): Query<Which>,
) -> Result<Json<List<Value>>, Problem> {
    let states = which.state.as_deref().unwrap_or_default();
    let states = states.split(',').filter(|name| !name.is_empty());
    let filter = CommandFilter {
        states: states
            .map(|name| state_of("state", name))
            .collect::<Result<_, _>>()?,
        kind: which.kind,
        destination: which.destination,
        principal: which.principal,
    };
    let before = which.after.as_deref().map(|after| {
        let number = after.parse::<u64>();
        number.map_err(|_| invalid("after", "expected what next was"))
    });
    let before = before.transpose()?;
    let limit = which.limit.unwrap_or(PAGE.1).clamp(1, PAGE.0);
    let found = app
        .commands
        .look(move |view| view.commands(&filter, before, limit + 1))
        .await?;
    let shown = found.len().min(limit as usize);
    let page = found.get(..shown).unwrap_or_default();
    let more = found.len() > shown;
    Ok(Json(List {
        items: page.iter().map(body).collect(),
        next: page
            .last()
            .filter(|_| more)
            .map(|last| last.number.to_string()),
    }))
}

/// Why somebody does it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Why {
    reason: Option<String>,
}

/// Who is to look after a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Assignment {
    owner: String,
    comment: Option<String>,
}

async fn assign(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(to): Wish<Assignment>,
) -> Result<Json<Value>, Problem> {
    let owner = to.owner.trim();
    if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
        return Err(invalid(
            "owner",
            format!("expected 1 to {OWNER_BYTES_MAX} bytes"),
        ));
    }
    let (by, owner) = (actor(&caller.principal, None), owner.to_owned());
    let command = app.commands.assign(id_of(&id)?, by, owner, to.comment);
    Ok(Json(body(&command.await?)))
}

async fn cancel(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Json<Value>, Problem> {
    let by = actor(&caller.principal, None);
    let command = app.commands.cancel(id_of(&id)?, by, why.reason).await?;
    Ok(Json(body(&command)))
}

async fn undo(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Propose>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Response, Problem> {
    let by = proposer(&caller, None);
    let steps = app.commands.undo(id_of(&id)?, &by, why.reason).await?;
    let items = steps.iter().map(
        |step| json!({ "id": step.id.to_string(), "kind": step.kind, "state": step.state.name() }),
    );
    let items = List::whole(items.collect());
    Ok((StatusCode::ACCEPTED, Json(items)).into_response())
}

async fn replay(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Propose>,
    Path(id): Path<String>,
    Wish(why): Wish<Why>,
) -> Result<Response, Problem> {
    let by = proposer(&caller, None);
    let proposed = app.commands.replay(id_of(&id)?, &by, why.reason).await?;
    Ok(answer(&proposed))
}

/// What somebody knows of a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// `succeeded` or `absent`, where a person found out.
    #[serde(rename = "as")]
    word: Option<String>,
}

async fn reconcile(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Operate>,
    Path(id): Path<String>,
    Wish(known): Wish<Known>,
) -> Result<Json<Value>, Problem> {
    let word = match known.word.as_deref() {
        None => None,
        Some("succeeded") => Some(Word::Succeeded),
        Some("absent") => Some(Word::Absent),
        Some(other) => {
            let detail = format!("as: expected \"succeeded\" or \"absent\", not {other:?}");
            return Err(Problem::new(ProblemType::InvalidRequest, detail).with("field", "as"));
        }
    };
    let by = actor(&caller.principal, None);
    let found = app.commands.reconcile(id_of(&id)?, word, by).await?;
    Ok(Json(reconciled(&found)))
}

/// Which commands targets are asked about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lately {
    /// Those that came into their state within this long; a day where nobody says.
    within: Option<String>,
    kind: Option<String>,
}

async fn reconcile_all(
    Shared(app): Shared<Arc<App>>,
    caller: Caller<Operate>,
    Wish(which): Wish<Lately>,
) -> Result<Json<List<Value>>, Problem> {
    let within = which.within.as_deref().unwrap_or("24h");
    let within = crate::config::quantity::parse_duration(within).map_err(|error| {
        let detail = format!("within: {error}");
        Problem::new(ProblemType::InvalidRequest, detail).with("field", "within")
    })?;
    let since = app.clock.now().before(within);
    let by = actor(&caller.principal, None);
    let found = app.commands.reconcile_all(since, which.kind, &by).await?;
    Ok(Json(List::whole(found.iter().map(reconciled).collect())))
}

fn reconciled(found: &Reconciled) -> Value {
    json!({
        "id": found.id.to_string(),
        "kind": found.kind,
        "state": found.state.name(),
        "result": found.result,
        "as_expected": found.as_expected,
        "detail": found.detail,
    })
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        use wayhold_store::CommandsError;
        let detail = error.to_string();
        match error {
            CommandError::Invalid(invalid) => {
                Self::new(ProblemType::InvalidRequest, detail).with("field", invalid.field)
            }
            CommandError::Arguments { faults, .. } => {
                let faults = faults.into_iter().map(
                    |(at, what)| json!({ "pointer": format!("#/arguments{at}"), "detail": what }),
                );
                Self::new(ProblemType::InvalidCommand, detail)
                    .with("errors", faults.collect::<Vec<_>>())
            }
            CommandError::NoSuchKind { .. } => {
                Self::new(ProblemType::InvalidCommand, detail).with("field", "kind")
            }
            CommandError::NotFound { .. } => Self::new(ProblemType::NotFound, detail),
            CommandError::OtherBody => Self::new(ProblemType::KeyReused, detail),
            CommandError::KeyInUse => Self::new(ProblemType::StateConflict, detail),
            CommandError::Exists { id } => {
                Self::new(ProblemType::StateConflict, detail).with("command", id.to_string())
            }
            CommandError::WrongState { state, .. } => {
                Self::new(ProblemType::StateConflict, detail).with("state", state.name())
            }
            CommandError::NoSpace | CommandError::Store(CommandsError::NoSpace) => {
                Self::new(ProblemType::NoSpace, detail)
            }
            CommandError::Store(CommandsError::Busy) => Self::new(ProblemType::Busy, detail),
            CommandError::Store(CommandsError::Stopping) => {
                Self::new(ProblemType::Stopping, detail)
            }
            CommandError::Store(CommandsError::Unfit { .. }) => {
                tracing::error!(%detail, "a command was not recorded");
                Self::new(
                    ProblemType::Internal,
                    "the command was not recorded; see the log",
                )
            }
            // Paths of the server's disk are for its log, which has them already.
            CommandError::Store(CommandsError::Closed { .. }) | CommandError::Closed(_) => {
                Self::new(
                    ProblemType::Unavailable,
                    "commands take no changes now; ask again with the same Idempotency-Key, which tells whether \
                     this one was made; see degraded at /readyz",
                )
            }
        }
    }
}
