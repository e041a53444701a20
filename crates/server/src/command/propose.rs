//! Proposing: what is asked for is read, held against its kind, judged, and kept with its records in one change. The
//! answer comes after the sync and before any call to the outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use wayhold_model::approval::{Digest, Facts, Verdict};
use wayhold_model::command::{CommandId, State, digest};
use wayhold_model::ledger::{Actor, Draft};
use wayhold_store::CommandsError;
use wayhold_store::commands::{Change, NewCommand, Payload, Transition};

use super::desk::{CommandDesk, CommandError};
use super::gate::{Asked, Subject};
use super::keys::Key;
use super::kinds::Kind;
use super::proposal::{InvalidProposal, Proposal};
use super::records::{self, Held, made_up_for, moved, write};
use super::resolve;

/// Who proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposer {
    /// As records name them.
    pub actor: Actor,
    /// Roles and labels.
    pub labels: Vec<String>,
}

/// A command that was accepted, or an answer that is given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Its id.
    pub id: CommandId,
    /// Its kind.
    pub kind: String,
    /// Where it stood when it was accepted.
    pub state: State,
    /// Whether this is the answer to an earlier request.
    pub replayed: bool,
}

impl Proposed {
    /// The body of the answer.
    pub fn body(&self) -> String {
        let body = Body {
            id: &self.id.to_string(),
            kind: &self.kind,
            state: self.state.name(),
        };
        // Texts always become JSON.
        serde_json::to_string(&body).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    kind: &'a str,
    state: &'a str,
}

/// What would become of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed {
    /// What it would be as a command.
    pub new: NewCommand,
    /// What the policies say.
    pub verdict: Verdict,
}

/// What a change takes along, in one place, for it is moved from hand to hand; its caller lets go of it, for the thread that
/// writes has more to do.
type Baggage = Box<(Asked, NewCommand, Draft, Vec<Payload>)>;

/// Status of the answer to a proposal that was accepted.
const ACCEPTED: u16 = 202;

impl CommandDesk {
    /// Says what would become of a proposal, and keeps nothing.
    ///
    /// # Errors
    /// As of `propose`.
    pub fn weigh(&self, by: &Proposer, proposal: &Proposal) -> Result<Weighed, CommandError> {
        let arguments = Value::Object(proposal.arguments.clone());
        let (kind, new) = self.prepare(by, proposal, &arguments)?;
        let asked = self.ask(by, proposal, arguments, (&kind, &new))?;
        Ok(Weighed {
            new,
            verdict: asked.verdict,
        })
    }

    /// Accepts a command: durable, judged and on record when this returns.
    ///
    /// # Errors
    /// Says what to do; nothing was kept.
    pub async fn propose(
        &self,
        by: &Proposer,
        mut proposal: Proposal,
        key: Option<Key>,
    ) -> Result<Proposed, CommandError> {
        let in_use = match &key {
            Some(key) => Some(self.0.keys.take(key.scoped).ok_or(CommandError::KeyInUse)?),
            None => None,
        };
        let arguments = Value::Object(std::mem::take(&mut proposal.arguments));
        let (kind, new) = self.prepare(by, &proposal, &arguments)?;
        let asked = self.ask(by, &proposal, arguments, (&kind, &new))?;
        let held = Held::of(&new.arguments, &proposal)?;
        let key_text = key.as_ref().map(|key| key.text.as_str());
        let fingerprint = key.as_ref().map(|key| key.fingerprint(&new.arguments));
        let accepted = records::accepted(&new, &proposal, &held, key_text, &by.actor)
            .map_err(|error| InvalidProposal::new("model", error.to_string()))?;
        let commands = self.commands()?;
        let has_room = self.0.store.has_room();
        let kind = new.kind.clone();
        let by_whom = by.actor.clone();
        let payloads = held.into_payloads();
        // One that was drawn is nobody else's.
        let may_exist = proposal.id.is_some();
        // Whether what is made up for can be is known only when that is done.
        let refuses_first = new.compensates.is_none();
        let key = key.map(|key| key.scoped).zip(fingerprint);
        let baggage: Baggage = Box::new((asked, new, accepted, payloads));
        let work = move |change: &mut Change<'_>| {
            let (asked, new, accepted, payloads) = &*baggage;
            if let Some((key, fingerprint)) = &key
                && let Some(row) = change.key(key)?
            {
                return match row.fingerprint == *fingerprint {
                    true => Ok((again(&row.answer, row.command, kind)?, None)),
                    false => Err(CommandError::OtherBody),
                };
            }
            if may_exist && let Some(known) = change.command(new.id)? {
                return match known.new.digest == new.digest {
                    true => {
                        let proposed = Proposed {
                            id: new.id,
                            kind,
                            state: known.state,
                            replayed: true,
                        };
                        Ok((proposed, None))
                    }
                    false => Err(CommandError::Exists { id: new.id }),
                };
            }
            if !has_room {
                return Err(CommandError::NoSpace);
            }
            for needs in &new.needs {
                if change.state(*needs)?.is_none() {
                    let expected = format!("expected a command that exists, not {needs}");
                    return Err(InvalidProposal::new("depends_on", expected).into());
                }
            }
            let state = asked.keep(change, new, (accepted, payloads))?;
            if let Some(of) = new.compensates {
                begin_compensation(change, of, new.id, state, &by_whom)?;
            }
            if let Some(of) = new.replays {
                let body = json!({ "by_command": new.id.to_string() });
                write(change, of, "command.superseded", &by_whom, &body)?;
            }
            let proposed = Proposed {
                id: new.id,
                kind,
                state,
                replayed: false,
            };
            if let Some((key, fingerprint)) = &key {
                let body = proposed.body();
                change.keep_key(key, (fingerprint, new.id), (ACCEPTED, &body))?;
            }
            wayhold_store::failpoint!("commands.proposed");
            Ok((proposed, Some(baggage)))
        };
        let done = match refuses_first {
            true => commands.change_once_checked(work).await,
            false => commands.change(work).await,
        };
        drop(in_use);
        done.map(|(proposed, _baggage)| proposed)
    }

    /// Holds a command against limits and policies.
    fn ask(
        &self,
        by: &Proposer,
        proposal: &Proposal,
        arguments: Value,
        (kind, new): (&Kind, &NewCommand),
    ) -> Result<Asked, CommandsError> {
        let subject = Subject {
            command: new.id,
            digest: Digest(new.digest),
            editors: BTreeSet::new(),
        };
        let facts = Facts {
            kind: new.kind.clone(),
            arguments,
            amount: kind.amount_of(&new.arguments),
            principal: by.actor.clone(),
            labels: by.labels.clone(),
            on_behalf_of: proposal.on_behalf_of.clone().unwrap_or_default(),
            model: proposal.model_name().to_owned(),
            risk: new.risk,
            reversibility: new.reversibility,
            destination: new.destination.clone(),
        };
        self.0.gate.ask(facts, subject, self.0.clock.now())
    }

    /// Holds a proposal against its kind, and makes a command of it.
    fn prepare(
        &self,
        by: &Proposer,
        proposal: &Proposal,
        arguments: &Value,
    ) -> Result<(Arc<Kind>, NewCommand), CommandError> {
        let kinds = self.kinds();
        let kind = kinds
            .get(&proposal.kind)
            .ok_or_else(|| CommandError::NoSuchKind {
                kind: proposal.kind.clone(),
            })?;
        let config = &kind.config;
        for needs in resolve::references(arguments)? {
            if !proposal.depends_on.contains(&needs) {
                let expected = format!("expected {needs}, to whose result an argument refers");
                return Err(InvalidProposal::new("depends_on", expected).into());
            }
        }
        let text = kind.canonical(arguments, !proposal.depends_on.is_empty())?;
        let now = self.0.clock.now();
        if proposal.expires_at.is_some_and(|at| at <= now) {
            return Err(InvalidProposal::new("expires_at", "expected a time to come").into());
        }
        let id = match proposal.id {
            Some(id) => id,
            None => draw_id(now)?,
        };
        let new = NewCommand {
            id,
            kind: config.name.clone(),
            kind_version: config.version.clone(),
            destination: config.destination.clone(),
            principal: by.actor.id.clone(),
            risk: config.risk,
            reversibility: config.reversibility,
            order_key: kind.order_key_of(&text),
            digest: digest(&config.name, &config.version, &config.destination, &text),
            arguments: text,
            detail: Detail::of(by, proposal).text(),
            expires_at: proposal.expires_at,
            needs: proposal.depends_on.clone(),
            compensates: proposal.compensates,
            replays: proposal.replays,
        };
        Ok((Arc::clone(kind), new))
    }
}

/// What is made up for waits from now on for the command that does so, unless that may not.
fn begin_compensation(
    change: &mut Change<'_>,
    of: CommandId,
    by: CommandId,
    state: State,
    actor: &Actor,
) -> Result<(), CommandError> {
    let from = change
        .state(of)?
        .ok_or_else(|| CommandError::NotFound { id: of.to_string() })?;
    let reason = format!("{by} makes up for it");
    let step = Transition {
        from,
        to: State::Compensating,
        reason: Some(&reason),
    };
    if !from.may_become(State::Compensating) {
        return Err(CommandError::WrongState {
            id: of,
            state: from,
            why: "so it cannot be made up for",
        });
    }
    moved(change, of, step, actor)?;
    let body = json!({ "compensating_command_id": by.to_string() });
    write(change, of, "compensation.started", actor, &body)?;
    // It was denied before there was anything that waited for it.
    if state == State::Denied {
        made_up_for(change, Some(of), State::CompensationFailed)?;
    }
    Ok(())
}

/// The answer that was given to a key.
fn again(answer: &str, id: CommandId, kind: String) -> Result<Proposed, CommandError> {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let said = |name: &str| answer.get(name).and_then(Value::as_str);
    Ok(Proposed {
        id,
        state: said("state")
            .and_then(State::named)
            .unwrap_or(State::Accepted),
        kind: said("kind").map_or(kind, str::to_owned),
        replayed: true,
    })
}

fn draw_id(now: wayhold_model::Timestamp) -> Result<CommandId, CommandsError> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| CommandsError::Unfit {
        reason: format!("no id can be drawn: {error}"),
    })?;
    Ok(CommandId::at(now, random))
}

/// What is kept of a proposal beside what is looked for.
#[derive(Serialize)]
struct Detail<'a> {
    proposed_by: ProposedBy<'a>,
    on_behalf_of: Option<&'a str>,
    labels: &'a [String],
    trigger: Trigger<'a>,
    model: Option<&'a Map<String, Value>>,
    rationale: Option<Why<'a>>,
    correlation_id: Option<&'a str>,
}

#[derive(Serialize)]
struct ProposedBy<'a> {
    r#type: &'a str,
    id: &'a str,
}

#[derive(Serialize)]
struct Trigger<'a> {
    events: Vec<Occasion<'a>>,
}

#[derive(Serialize)]
struct Occasion<'a> {
    source: &'a str,
    id: &'a str,
}

#[derive(Serialize)]
struct Why<'a> {
    summary: &'a str,
    evidence: &'a [String],
}

impl<'a> Detail<'a> {
    fn of(by: &'a Proposer, proposal: &'a Proposal) -> Self {
        let events = proposal.trigger.events.iter();
        let events = events.map(|event| Occasion {
            source: &event.source,
            id: &event.id,
        });
        Self {
            proposed_by: ProposedBy {
                r#type: by.actor.kind.name(),
                id: &by.actor.id,
            },
            on_behalf_of: proposal.on_behalf_of.as_deref(),
            labels: &by.labels,
            trigger: Trigger {
                events: events.collect(),
            },
            model: proposal.model.as_ref(),
            rationale: proposal.rationale.as_ref().map(|why| Why {
                summary: why.summary(),
                evidence: why.evidence(),
            }),
            correlation_id: proposal.correlation_id.as_deref(),
        }
    }

    fn text(&self) -> String {
        // Texts and JSON always become JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}
