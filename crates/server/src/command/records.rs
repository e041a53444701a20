//! What is written of a command into the ledger, in the change that it describes. Bodies hold digests and commitments;
//! what may have to be erased lies outside the tree.

use serde_json::{Map, Value, json};
use wayhold_model::command::{CommandId, State};
use wayhold_model::ledger::{Actor, Draft, Hash, NotCanonical, Trace};
use wayhold_store::CommandsError;
use wayhold_store::commands::{Change, NewCommand, Payload, Transition, random_salt};

use super::proposal::{Input, Proposal};
use crate::auth::Principal;

/// The stream of a command's records.
pub fn stream(id: CommandId) -> String {
    format!("cmd:{id}")
}

/// A principal as records name it, where it acts for somebody else.
pub fn actor(principal: &Principal, on_behalf_of: Option<&str>) -> Actor {
    Actor {
        on_behalf_of: on_behalf_of.map(str::to_owned),
        ..principal.actor()
    }
}

/// Wayhold itself, where it acts on a command.
pub fn ourselves() -> Actor {
    Actor::system("commands")
}

/// A record of a stream. One that does not fit into the ledger is a fault of ours: bounds keep every body far smaller.
fn draft(
    stream: String,
    kind: &'static str,
    by: &Actor,
    body: &Value,
) -> Result<Draft, CommandsError> {
    Draft::new(stream, kind, by, &Trace::default(), body).map_err(|error| CommandsError::Unfit {
        reason: format!("a record cannot be written: {error}"),
    })
}

/// A record of a command.
///
/// # Errors
/// It does not fit into the ledger.
pub fn record(
    id: CommandId,
    kind: &'static str,
    by: &Actor,
    body: &Value,
) -> Result<Draft, CommandsError> {
    draft(stream(id), kind, by, body)
}

/// Puts a record into the stream of a command.
///
/// # Errors
/// The file takes no change.
pub fn write(
    change: &mut Change<'_>,
    id: CommandId,
    kind: &'static str,
    by: &Actor,
    body: &Value,
) -> Result<(), CommandsError> {
    append(change, stream(id), kind, by, body)
}

/// Puts a record into any stream.
///
/// # Errors
/// The file takes no change.
pub fn append(
    change: &mut Change<'_>,
    stream: String,
    kind: &'static str,
    by: &Actor,
    body: &Value,
) -> Result<(), CommandsError> {
    change.append(&draft(stream, kind, by, body)?).map(drop)
}

/// Takes a command from one state to another, with all that belongs to it, whoever does it: the records, what limits
/// took where it will never leave, and the end of a compensation where it was one. `false` where it does not stand in
/// the first.
///
/// # Errors
/// There is no such way, or the file takes no change.
pub fn moved(
    change: &mut Change<'_>,
    id: CommandId,
    step: Transition<'_>,
    by: &Actor,
) -> Result<bool, CommandsError> {
    if !change.move_command(id, step)? {
        return Ok(false);
    }
    let Transition { from, to, reason } = step;
    let body = body_of(step);
    write(change, id, "command.state", by, &body)?;
    if from == State::Dead {
        let body = json!({ "resolution": to.name(), "reason": reason });
        write(change, id, "dlq.resolved", by, &body)?;
    }
    match to {
        State::Cancelled => write(change, id, "command.cancelled", by, &body)?,
        State::Expired => write(change, id, "command.expired", by, &body)?,
        State::Dead => {
            let body = json!({ "reason": reason.unwrap_or_default() });
            write(change, id, "dlq.entered", by, &body)?;
        }
        _ => {}
    }
    if to.is_never_done() {
        change.give_back(id)?;
    }
    let made_up = match to {
        State::Succeeded => State::Compensated,
        to if to.is_never_done() || to == State::Dead => State::CompensationFailed,
        _ => return Ok(true),
    };
    made_up_for(change, change.compensates(id)?, made_up)?;
    Ok(true)
}

/// The record of a step that leaves nothing else behind, before it is taken.
///
/// # Errors
/// It does not fit into the ledger.
pub fn of_step(id: CommandId, step: Transition<'_>, by: &Actor) -> Result<Draft, CommandsError> {
    record(id, "command.state", by, &body_of(step))
}

fn body_of(Transition { from, to, reason }: Transition<'_>) -> Value {
    let mut body = json!({ "from": from.name(), "to": to.name() });
    if let (Some(reason), Value::Object(body)) = (reason, &mut body) {
        body.insert("reason".to_owned(), reason.into());
    }
    body
}

/// Ends the compensation of a command, where one is under way.
///
/// # Errors
/// The file takes no change.
pub fn made_up_for(
    change: &mut Change<'_>,
    of: Option<CommandId>,
    to: State,
) -> Result<(), CommandsError> {
    let Some(of) = of else {
        return Ok(());
    };
    let step = Transition {
        from: State::Compensating,
        to,
        reason: None,
    };
    if moved(change, of, step, &ourselves())? {
        let body = json!({ "status": to.name() });
        write(change, of, "compensation.finished", &ourselves(), &body)?;
    }
    Ok(())
}

/// What is kept beside the tree, where it can be erased.
#[derive(Clone, Debug)]
pub struct Held {
    /// The arguments.
    pub arguments: Payload,
    /// The input.
    pub input: Option<Payload>,
}

impl Held {
    /// Salts what a proposal brings.
    ///
    /// # Errors
    /// There is no randomness to be had.
    pub fn of(arguments: &str, proposal: &Proposal) -> Result<Self, CommandsError> {
        let salted = |bytes: &[u8]| {
            let salt = random_salt().map_err(|error| CommandsError::Unfit {
                reason: format!("no salt can be drawn: {error}"),
            })?;
            Ok::<_, CommandsError>(Payload::new(salt, bytes.to_vec()))
        };
        Ok(Self {
            arguments: salted(arguments.as_bytes())?,
            input: match &proposal.input {
                Some(Input::Held(bytes)) => Some(salted(bytes)?),
                Some(Input::NotHeld(_)) | None => None,
            },
        })
    }

    /// All of it.
    pub fn into_payloads(self) -> Vec<Payload> {
        let mut payloads = vec![self.arguments];
        payloads.extend(self.input);
        payloads
    }
}

/// The record that a command was accepted.
///
/// # Errors
/// What was said of the model cannot be written: a number with a fraction, say.
pub fn accepted(
    new: &NewCommand,
    proposal: &Proposal,
    held: &Held,
    key: Option<&str>,
    by: &Actor,
) -> Result<Draft, NotCanonical> {
    let mut body = Map::new();
    let mut say = |name: &str, value: Value| {
        body.insert(name.to_owned(), value);
    };
    say("command_id", new.id.to_string().into());
    say("kind", new.kind.clone().into());
    say("kind_version", new.kind_version.clone().into());
    say("destination", new.destination.clone().into());
    say("command_sha256", Hash(new.digest).to_string().into());
    say("args", held.arguments.reference());
    say("risk", new.risk.name().into());
    say("reversibility", new.reversibility.name().into());
    if let Some(key) = key {
        say(
            "idempotency_key_sha256",
            Hash::of(key.as_bytes()).to_string().into(),
        );
    }
    if let Some(at) = new.expires_at {
        say("expires_at", at.to_string().into());
    }
    if let Some(key) = &new.order_key {
        say(
            "order_key_sha256",
            Hash::of(key.as_bytes()).to_string().into(),
        );
    }
    if !proposal.trigger.events.is_empty() {
        let events = proposal.trigger.events.iter();
        let events = events.map(|event| json!({ "source": event.source, "id": event.id }));
        say("trigger", json!({ "events": events.collect::<Vec<_>>() }));
    }
    if let Some(input) = &held.input {
        say("input", input.reference());
    } else if let Some(Input::NotHeld(sha256)) = &proposal.input {
        say("input", json!({ "sha256": sha256, "held": false }));
    }
    if let Some(model) = &proposal.model {
        say("model", Value::Object(model.clone()));
    }
    if let Some(rationale) = &proposal.rationale {
        let summary = rationale.summary();
        say(
            "rationale",
            json!({
                "summary": summary,
                "sha256": Hash::of(summary.as_bytes()).to_string(),
                "evidence_refs": rationale.evidence(),
            }),
        );
    }
    if !new.needs.is_empty() {
        let needs = new.needs.iter().map(ToString::to_string);
        say("depends_on", needs.collect::<Vec<_>>().into());
    }
    if let Some(of) = new.compensates {
        say("compensates", of.to_string().into());
    }
    if let Some(of) = new.replays {
        say("replay", json!({ "of": of.to_string() }));
    }
    let trace = Trace {
        correlation_id: proposal.correlation_id.clone(),
        causation_id: proposal
            .trigger
            .events
            .first()
            .map(|event| event.id.clone()),
        traceparent: None,
    };
    Draft::new(
        stream(new.id),
        "command.accepted",
        by,
        &trace,
        &Value::Object(body),
    )
}

#[cfg(test)]
mod tests;
