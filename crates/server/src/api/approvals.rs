//! `/v1/approvals`: what waits for a person, and what they decide. What is shown first is what would be sent, what it
//! moves and what was changed; what a model says of it comes last.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wayhold_model::approval::request::COMMENT_BYTES_MAX;
use wayhold_model::approval::{Approver, Digest, Refusal, Requirement, State as RequestState};
use wayhold_model::command::CommandId;
use wayhold_store::CommandsError;
use wayhold_store::commands::{Command, CommandFilter, EditRow, RequestRow, View};

use super::body::{Wish, read, whole as whole_body};
use super::caller::{Approve, Caller, Read};
use super::list::List;
use crate::app::App;
use crate::auth::Principal;
use crate::command::approvals::{ApprovalError, Decision, differences};
use crate::config::policies_of;
use crate::http::{Problem, ProblemType};

/// Requests on a page.
const PAGE: u32 = 100;

/// Largest text of policies, in bytes: that of a configuration file.
const POLICIES_BYTES_MAX: usize = 1024 * 1024;

/// Requests that one call decides on: what a person reads in one sitting.
pub(crate) const TOGETHER_MAX: usize = 100;

/// Commands of the same kind and principal that the history counts.
const HISTORY: u32 = 100;

/// The routes of this noun.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/approvals", get(list))
        .route("/v1/approvals/approve", post(approve_together))
        .route("/v1/approvals/reject", post(reject_together))
        .route("/v1/approvals/simulate", post(simulate))
        .route("/v1/approvals/{id}", get(show))
        .route("/v1/approvals/{id}/approve", post(approve))
        .route("/v1/approvals/{id}/reject", post(reject))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// One state; `pending` where nothing is said, `any` for all.
    state: Option<String>,
    limit: Option<u32>,
    after: Option<u64>,
}

/// A text of policies, as a configuration file has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tried {
    policies: String,
}

/// A decision: the digest that was seen, and what is said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    digest: Option<String>,
    comment: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Together {
    /// The policy that all of them were asked for by; null for the default of their risk.
    policy: Option<String>,
    approvals: Vec<One>,
    comment: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    id: String,
    digest: String,
}

/// A request in a list.
#[derive(Debug, Serialize)]
struct Item {
    id: String,
    state: &'static str,
    command: String,
    kind: String,
    destination: String,
    amount: Option<String>,
    /// SHA-256 of the canonical command; a decision names it.
    digest: String,
    policy: Option<String>,
    requirement: Value,
    /// Seats that are taken.
    approved: usize,
    requested_at: String,
    due_at: String,
    escalated: bool,
}

/// A request with what it is about.
#[derive(Debug, Serialize)]
struct Whole {
    #[serde(flatten)]
    item: Item,
    /// What would be sent.
    arguments: Value,
    /// What was changed since it was proposed, by JSON pointer.
    changes: Vec<Value>,
    risk: &'static str,
    reversibility: &'static str,
    principal: String,
    on_behalf_of: Option<String>,
    /// Who may not decide.
    excluded: Vec<String>,
    approvals: Vec<Value>,
    /// Other requests of this command.
    earlier: Vec<Value>,
    /// What became of the latest commands of this kind by this principal, by state.
    history: Value,
    /// What the proposer says; nobody has checked it.
    said: Value,
}

async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Item>>, Problem> {
    let state = match wanted.state.as_deref() {
        None => Some(RequestState::Pending),
        Some("any") => None,
        Some(name) => Some(RequestState::from_name(name).ok_or_else(|| {
            let names = RequestState::ALL.map(RequestState::name).join(", ");
            let detail = format!("state: expected any or one of {names}, not {name:?}");
            Problem::new(ProblemType::InvalidRequest, detail)
        })?),
    };
    let after = wanted.after;
    let limit = wanted.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let page = app.approvals.look(move |view| {
        let rows = view.requests(state, after, limit)?;
        let next = (rows.len() == limit as usize).then(|| rows.last().map(|row| row.number));
        let items = rows.iter().map(|row| item(view, row));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        Ok((items, next.flatten()))
    });
    let (items, next) = page.await?;
    Ok(Json(List {
        items,
        next: next.map(|number| number.to_string()),
    }))
}

async fn show(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Json<Whole>, Problem> {
    let wanted = id.clone();
    let found = app.approvals.look(move |view| match view.request(&id)? {
        Some(row) => whole(view, &row).map(Some),
        None => Ok(None),
    });
    shown_or_gone(found.await?, wanted)
}

fn shown_or_gone(found: Option<Whole>, id: String) -> Result<Json<Whole>, Problem> {
    let what = "request";
    Ok(Json(found.ok_or(ApprovalError::NotFound { what, id })?))
}

async fn approve(
    State(app): State<Arc<App>>,
    caller: Caller<Approve>,
    Path(id): Path<String>,
    Wish(said): Wish<Said>,
) -> Result<Json<Whole>, Problem> {
    decide(&app, &caller.principal, id, said, true).await
}

async fn reject(
    State(app): State<Arc<App>>,
    caller: Caller<Approve>,
    Path(id): Path<String>,
    Wish(said): Wish<Said>,
) -> Result<Json<Whole>, Problem> {
    decide(&app, &caller.principal, id, said, false).await
}

async fn decide(
    app: &Arc<App>,
    principal: &Principal,
    id: String,
    said: Said,
    yes: bool,
) -> Result<Json<Whole>, Problem> {
    let decision = Decision {
        yes,
        by: approver(principal),
        seen: digest("digest", said.digest.as_deref())?,
        comment: comment(said.comment, yes)?,
    };
    let row = app.approvals.decide(id.clone(), decision).await?;
    let shown = app.approvals.look(move |view| whole(view, &row).map(Some));
    shown_or_gone(shown.await?, id)
}

async fn approve_together(
    State(app): State<Arc<App>>,
    caller: Caller<Approve>,
    Wish(wanted): Wish<Together>,
) -> Result<Json<List<Value>>, Problem> {
    decide_together(&app, &caller.principal, wanted, true).await
}

async fn reject_together(
    State(app): State<Arc<App>>,
    caller: Caller<Approve>,
    Wish(wanted): Wish<Together>,
) -> Result<Json<List<Value>>, Problem> {
    decide_together(&app, &caller.principal, wanted, false).await
}

async fn decide_together(
    app: &Arc<App>,
    principal: &Principal,
    wanted: Together,
    yes: bool,
) -> Result<Json<List<Value>>, Problem> {
    if !(1..=TOGETHER_MAX).contains(&wanted.approvals.len()) {
        let detail = format!("approvals: expected 1 to {TOGETHER_MAX}");
        return Err(Problem::new(ProblemType::MalformedBody, detail).with("field", "approvals"));
    }
    let mut seen = Vec::new();
    for (index, one) in wanted.approvals.into_iter().enumerate() {
        let field = format!("approvals[{index}].digest");
        seen.push((one.id, digest(&field, Some(&one.digest))?));
    }
    let ids: Vec<_> = seen.iter().map(|(id, _)| id.clone()).collect();
    let decision = Decision {
        yes,
        by: approver(principal),
        seen: Digest([0; 32]),
        comment: comment(wanted.comment, yes)?,
    };
    let decided = app.approvals.decide_all(seen, wanted.policy, decision);
    let decided = decided.await?.into_iter().zip(ids);
    let items = decided.map(|(decided, id)| match decided {
        Ok(row) => json!({
            "id": id,
            "state": row.request.state.name(),
            "approved": row.request.seats_taken(),
        }),
        Err(ApprovalError::Refused { refusal, request }) => json!({
            "id": id,
            "state": request.request.state.name(),
            "refused": refusal.code(),
        }),
        Err(error) => json!({ "id": id, "refused": error.to_string() }),
    });
    Ok(Json(List::whole(items.collect())))
}

async fn simulate(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let body = whole_body(request, POLICIES_BYTES_MAX).await?;
    let Tried { policies } = read(&body)?;
    let policies = policies_of(&policies).map_err(|problems| {
        Problem::new(ProblemType::InvalidConfiguration, problems.to_string())
    })?;
    let digest = policies.digest();
    let found = app.approvals.simulate(policies).await?;
    let told = |(policy, requirement): &(Option<String>, Requirement)| json!({ "policy": policy, "requirement": requirement.to_json() });
    let items = found.differences.iter().map(|one| {
        json!({
            "command": one.command.to_string(),
            "kind": one.facts.kind,
            "amount": one.facts.amount.map(|amount| amount.to_string()),
            "principal": one.facts.principal.id,
            "direction": one.direction(),
            "then": told(&one.then),
            "now": told(&one.now),
            "faults": one.faults,
        })
    });
    Ok(Json(json!({
        "policies_sha256": digest.to_string(),
        "commands": found.commands,
        "stricter": found.stricter,
        "easier": found.easier,
        "other": found.other,
        "faults": found.faults,
        "items": items.collect::<Vec<_>>(),
        "next": null,
    })))
}

/// A principal as the one who decides.
fn approver(principal: &Principal) -> Approver {
    Approver {
        actor: principal.actor(),
        labels: principal.roles.clone(),
        channel: "api",
    }
}

fn digest(field: &str, text: Option<&str>) -> Result<Digest, Problem> {
    text.and_then(Digest::parse).ok_or_else(|| {
        let detail = format!("{field}: expected the digest that the request shows, 64 digits");
        Problem::new(ProblemType::MalformedBody, detail).with("field", field)
    })
}

fn comment(comment: Option<String>, yes: bool) -> Result<String, Problem> {
    let comment = comment.unwrap_or_default();
    let expected = match comment.trim().len() {
        0 if !yes => "expected why it is rejected".to_owned(),
        length if length > COMMENT_BYTES_MAX => {
            format!("expected at most {COMMENT_BYTES_MAX} bytes")
        }
        _ => return Ok(comment),
    };
    let detail = format!("comment: {expected}");
    Err(Problem::new(ProblemType::MalformedBody, detail).with("field", "comment"))
}

fn command(view: &View<'_>, row: &RequestRow) -> Result<Command, CommandsError> {
    let gone = || CommandsError::Unfit {
        reason: format!("command {} is not there", row.request.command),
    };
    let id: CommandId = row.request.command.parse().map_err(|_| gone())?;
    view.command(id)?.ok_or_else(gone)
}

fn item(view: &View<'_>, row: &RequestRow) -> Result<Item, CommandsError> {
    let command = command(view, row)?;
    item_of(view, row, &command)
}

fn item_of(view: &View<'_>, row: &RequestRow, command: &Command) -> Result<Item, CommandsError> {
    let request = &row.request;
    let facts = facts(view, command)?;
    Ok(Item {
        id: request.id.clone(),
        state: request.state.name(),
        command: request.command.clone(),
        kind: command.new.kind.clone(),
        destination: command.new.destination.clone(),
        amount: text_of(&facts, "amount"),
        digest: request.bound.to_string(),
        policy: request.policy.clone(),
        requirement: request.requirement.to_json(),
        approved: request.seats_taken(),
        requested_at: request.requested_at.to_string(),
        due_at: request.due_at.to_string(),
        escalated: request.escalated,
    })
}

fn text_of(facts: &Value, name: &str) -> Option<String> {
    Some(facts.get(name)?.as_str()?.to_owned())
}

/// What policies saw beside the arguments.
fn facts(view: &View<'_>, command: &Command) -> Result<Value, CommandsError> {
    let kept = view.verdict(command.new.id)?;
    let facts = kept.and_then(|row| serde_json::from_str(&row.facts).ok());
    Ok(facts.unwrap_or_default())
}

fn whole(view: &View<'_>, row: &RequestRow) -> Result<Whole, CommandsError> {
    let command = command(view, row)?;
    let new = &command.new;
    let facts = facts(view, &command)?;
    let arguments: Value = serde_json::from_str(&new.arguments).unwrap_or_default();
    let edits = view.edits_of(new.id)?;
    let (shown, changes) = as_asked(&arguments, &edits, row.request.bound);
    let request = &row.request;
    let earlier = view.requests_of(new.id)?.into_iter();
    let earlier = earlier.filter(|other| other.request.id != request.id);
    let filter = CommandFilter {
        kind: Some(new.kind.clone()),
        principal: Some(new.principal.clone()),
        ..CommandFilter::default()
    };
    let mut history = serde_json::Map::new();
    for other in view.commands(&filter, None, HISTORY)? {
        if other.new.id != new.id {
            let count = history.entry(other.state.name()).or_insert(json!(0));
            *count = json!(count.as_u64().unwrap_or_default() + 1);
        }
    }
    let detail: Value = serde_json::from_str(&new.detail).unwrap_or_default();
    Ok(Whole {
        item: item_of(view, row, &command)?,
        arguments: shown,
        changes,
        risk: new.risk.name(),
        reversibility: new.reversibility.name(),
        principal: new.principal.clone(),
        on_behalf_of: text_of(&facts, "on_behalf_of").filter(|name| !name.is_empty()),
        excluded: request.excluded.iter().cloned().collect(),
        approvals: request
            .grants
            .iter()
            .map(|grant| {
                json!({ "by": grant.who, "at": grant.at.to_string(), "comment": grant.comment })
            })
            .collect(),
        earlier: earlier
            .map(|other| {
                json!({
                    "id": other.request.id,
                    "state": other.request.state.name(),
                    "digest": other.request.bound.to_string(),
                    "requested_at": other.request.requested_at.to_string(),
                })
            })
            .collect(),
        history: Value::Object(history),
        said: json!({ "model": detail.get("model"), "rationale": detail.get("rationale") }),
    })
}

/// The arguments as a request was asked about them, and how they differ from what was proposed first.
fn as_asked(now: &Value, edits: &[EditRow], bound: Digest) -> (Value, Vec<Value>) {
    let read = |edit: &EditRow| serde_json::from_str(&edit.arguments).unwrap_or(Value::Null);
    let shown = edits.iter().find(|edit| edit.digest == bound).map(read);
    let shown = shown.unwrap_or_else(|| now.clone());
    let first = edits.first().map_or_else(|| shown.clone(), read);
    let changes = differences(&first, &shown);
    (shown, changes)
}

impl From<ApprovalError> for Problem {
    fn from(error: ApprovalError) -> Self {
        let detail = error.to_string();
        let kind = match &error {
            ApprovalError::NotFound { .. } => ProblemType::NotFound,
            ApprovalError::Refused { refusal, request } => {
                let request = &request.request;
                return Self::new(kind_of(*refusal), detail)
                    .with("refusal", refusal.code())
                    .with("state", request.state.name())
                    .with("digest", request.bound.to_string());
            }
            ApprovalError::Other { .. } | ApprovalError::OtherPolicy { .. } => {
                ProblemType::StateConflict
            }
            ApprovalError::Store(error) => match error {
                CommandsError::Busy => ProblemType::Busy,
                CommandsError::NoSpace => ProblemType::NoSpace,
                CommandsError::Closed { .. } => ProblemType::Unavailable,
                CommandsError::Stopping => ProblemType::Stopping,
                CommandsError::Unfit { .. } => ProblemType::Internal,
            },
            ApprovalError::Closed(_) => ProblemType::Unavailable,
        };
        Self::new(kind, detail)
    }
}

/// Whether somebody else could, or nobody can any more.
fn kind_of(refusal: Refusal) -> ProblemType {
    match refusal {
        Refusal::NotAPerson | Refusal::Requester | Refusal::NoSeat => ProblemType::Forbidden,
        Refusal::NotPending(_)
        | Refusal::Late
        | Refusal::OtherDigest
        | Refusal::NobodyAsked
        | Refusal::AlreadyGranted => ProblemType::StateConflict,
    }
}
