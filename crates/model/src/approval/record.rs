//! What approvals write into the ledger: one record for each step, refused ones included. Bodies hold digests and
//! names, never arguments.

use serde_json::{Value, json};

use super::Digest;
use super::policy::Verdict;
use super::request::{Approver, Refusal, Request, Void};
use super::requirement::Requirement;
use crate::ledger::Actor;

/// A record to be written in the change that it describes.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its type, such as `approval.granted`.
    pub kind: &'static str,
    /// Who caused it.
    pub actor: Actor,
    /// What it says.
    pub body: Value,
}

/// The server, where time or configuration caused something.
fn system() -> Actor {
    Actor::system("approvals")
}

/// A policy was asked; a denial is evidence too.
pub(super) fn evaluated(verdict: &Verdict, policies: &Digest, facts: &Digest) -> Record {
    let name = match verdict.requirement {
        Requirement::Auto => "allow",
        Requirement::Delayed { .. } | Requirement::Approvers(_) => "require_approval",
        Requirement::Deny { .. } => "deny",
    };
    let faults = verdict.faults.iter();
    let faults: Vec<_> = faults
        .map(|fault| json!({ "policy": fault.policy, "reason": fault.reason.to_string() }))
        .collect();
    Record {
        kind: "policy.evaluated",
        actor: system(),
        body: json!({
            "policy": { "sha256": policies.to_string() },
            "matched_rule": verdict.policy,
            "verdict": name,
            "reason_codes": verdict.reasons,
            "facts_sha256": facts.to_string(),
            "obligations": [verdict.requirement.to_json()],
            "faults": faults,
        }),
    }
}

pub(super) fn requested(request: &Request) -> Record {
    step(
        request,
        "approval.requested",
        system(),
        json!({
            "policy": request.policy,
            "requirement": request.requirement.to_json(),
            "forbid": request.excluded,
            "expires_at": request.due_at.to_string(),
            "presented_sha256": request.presented.to_string(),
        }),
    )
}

pub(super) fn granted(request: &Request, by: &Approver, comment: &str) -> Record {
    decided(request, "approval.granted", "granted", by, comment)
}

pub(super) fn denied(request: &Request, by: &Approver, comment: &str) -> Record {
    decided(request, "approval.denied", "denied", by, comment)
}

pub(super) fn refused(
    request: &Request,
    decision: &'static str,
    by: &Approver,
    seen: &Digest,
    refusal: Refusal,
) -> Record {
    step(
        request,
        "approval.refused",
        by.actor.clone(),
        json!({
            "decision": decision,
            "approver": by.actor.id,
            "channel": by.channel,
            "seen_sha256": seen.to_string(),
            "reason": refusal.code(),
            "state": request.state.name(),
        }),
    )
}

pub(super) fn consumed(request: &Request) -> Record {
    let people: Vec<_> = request.grants.iter().map(|grant| &grant.who).collect();
    let body = json!({ "approvers": people });
    step(request, "approval.consumed", system(), body)
}

pub(super) fn expired(request: &Request) -> Record {
    step(request, "approval.expired", system(), json!({}))
}

pub(super) fn escalated(request: &Request, to: &str) -> Record {
    let body = json!({ "to": to, "expires_at": request.due_at.to_string() });
    step(request, "approval.escalated", system(), body)
}

pub(super) fn void(request: &Request, why: &Void) -> Record {
    match why {
        Void::Cancelled { by, reason } => step(
            request,
            "approval.cancelled",
            by.clone(),
            json!({ "reason": reason }),
        ),
        Void::Edited { by, new } => step(
            request,
            "approval.edited",
            by.clone(),
            json!({ "old_sha256": request.bound.to_string(), "new_sha256": new.to_string() }),
        ),
        Void::PolicyChanged => invalidated(request, "policy_changed"),
        Void::DestinationChanged => invalidated(request, "destination_changed"),
        Void::FactsChanged => invalidated(request, "facts_changed"),
    }
}

fn invalidated(request: &Request, reason: &str) -> Record {
    let body = json!({ "reason": reason });
    step(request, "approval.invalidated", system(), body)
}

fn decided(
    request: &Request,
    kind: &'static str,
    decision: &'static str,
    by: &Approver,
    comment: &str,
) -> Record {
    step(
        request,
        kind,
        by.actor.clone(),
        json!({
            "decision": decision,
            "approver": by.actor.id,
            "labels": by.labels,
            "channel": by.channel,
            "assurance": "token",
            "comment": comment,
        }),
    )
}

/// A record of a request: what it is and to which command it is bound, and what is special to the step.
fn step(request: &Request, kind: &'static str, actor: Actor, special: Value) -> Record {
    let mut body = json!({
        "approval_id": request.id,
        "command_id": request.command,
        "bound_sha256": request.bound.to_string(),
    });
    if let (Some(body), Value::Object(special)) = (body.as_object_mut(), special) {
        body.extend(special);
    }
    Record { kind, actor, body }
}
