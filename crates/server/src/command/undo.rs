//! Making up for what was done, and doing it again. Whatever rests on a command is made up for before it, the newest
//! first; each step is a command of its own, with its own approval, and waits for the one before. Asking twice plans
//! the same steps, since their ids follow from what they make up for.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use wayhold_model::command::{CommandId, State};
use wayhold_store::CommandsError;
use wayhold_store::commands::{Command, View};

use super::desk::{CommandDesk, CommandError};
use super::proposal::{Proposal, Rationale};
use super::propose::{Proposed, Proposer};
use super::records::write;

/// Most commands that one undo makes up for: beyond, a person should look at them one by one.
const STEPS_MAX: usize = 64;

/// Why a command is neither done again nor made up for.
const ERASED: &str = "and its arguments were erased";

/// A command that is made up for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    command: Command,
    /// Commands that were to make up for it so far.
    tried: usize,
    /// The one that is at it, or has.
    at_work: Option<CommandId>,
}

impl CommandDesk {
    /// Has a command made up for, and before it whatever rests on it. The commands that do so, in the order in which
    /// they are sent; the last one makes up for the command itself.
    ///
    /// # Errors
    /// Something of it cannot be made up for; then nothing was proposed.
    pub async fn undo(
        &self,
        id: CommandId,
        by: &Proposer,
        reason: Option<String>,
    ) -> Result<Vec<Proposed>, CommandError> {
        let steps = self.look(move |view| steps_of(view, id)).await?;
        let Some(steps) = steps else {
            return Err(CommandError::NotFound { id: id.to_string() });
        };
        let kinds = self.kinds();
        let mut planned = Vec::new();
        for step in &steps {
            let command = &step.command;
            let wrong = |why| CommandError::WrongState {
                id: command.new.id,
                state: command.state,
                why,
            };
            match command.state {
                State::Succeeded
                | State::CompensationFailed
                | State::Compensating
                | State::Compensated => {}
                state if state.is_cancellable() => {
                    return Err(wrong("so it is not undone but taken back: commands cancel"));
                }
                State::Dead => {
                    return Err(wrong(
                        "so find out whether it was executed: commands reconcile",
                    ));
                }
                _ => return Err(wrong("so it has to end first")),
            }
            let compensation = kinds
                .get(&command.new.kind)
                .and_then(|kind| kind.config.compensation.clone())
                .ok_or_else(|| wrong("and its kind names no compensation"))?;
            if command.new.is_erased() {
                return Err(wrong(ERASED));
            }
            let arguments = arguments_of(command, &compensation.arguments).ok_or_else(|| {
                wrong("and it has not what the compensation's arguments are made of")
            })?;
            planned.push((step, compensation.kind, arguments));
        }
        if planned.iter().any(|(step, ..)| step.at_work.is_none()) {
            let plan = planned.iter().map(|(step, kind, _)| {
                json!({
                    "of_command": step.command.new.id.to_string(),
                    "kind": kind,
                })
            });
            let plan = json!({ "plan": plan.collect::<Vec<_>>(), "reason": reason });
            let actor = by.actor.clone();
            let written = self
                .commands()?
                .change(move |change| write(change, id, "compensation.planned", &actor, &plan));
            written.await?;
        }
        let mut proposed: Vec<Proposed> = Vec::new();
        for (step, kind, arguments) in planned {
            if let Some(at_work) = step.at_work {
                proposed.push(self.proposed_before(at_work).await?);
                continue;
            }
            let of = step.command.new.id;
            let mut proposal = Proposal::of(kind, arguments);
            proposal.id = Some(id_of_step(of, step.tried));
            proposal.compensates = Some(of);
            proposal.on_behalf_of.clone_from(&by.actor.on_behalf_of);
            proposal.rationale = reason.clone().map(Rationale::Summary);
            proposal.depends_on = proposed
                .last()
                .map(|before| before.id)
                .into_iter()
                .collect();
            proposed.push(self.propose(by, proposal, None).await?);
        }
        Ok(proposed)
    }

    /// Does a command again that has ended, as a new one with its own approval.
    ///
    /// # Errors
    /// There is none of that id, it has not ended, or its kind does not take it any more.
    pub async fn replay(
        &self,
        id: CommandId,
        by: &Proposer,
        reason: Option<String>,
    ) -> Result<Proposed, CommandError> {
        let command = self.look(move |view| view.command(id)).await?;
        let command = command.ok_or_else(|| CommandError::NotFound { id: id.to_string() })?;
        if command.new.is_erased() {
            return Err(CommandError::WrongState {
                id,
                state: command.state,
                why: ERASED,
            });
        }
        if !command.state.is_ended() {
            return Err(CommandError::WrongState {
                id,
                state: command.state,
                why: "so it is not done again before it has ended",
            });
        }
        let needs = self.look(move |view| view.needs(id)).await?;
        let arguments = serde_json::from_str(&command.new.arguments).unwrap_or_default();
        let mut proposal = Proposal::of(command.new.kind, arguments);
        proposal.depends_on = needs.into_iter().map(|(id, _)| id).collect();
        proposal.replays = Some(id);
        proposal.on_behalf_of.clone_from(&by.actor.on_behalf_of);
        proposal.rationale = reason.map(Rationale::Summary);
        self.propose(by, proposal, None).await
    }

    async fn proposed_before(&self, id: CommandId) -> Result<Proposed, CommandError> {
        let command = self.look(move |view| view.command(id)).await?;
        let command = command.ok_or_else(|| CommandError::NotFound { id: id.to_string() })?;
        Ok(Proposed {
            id,
            kind: command.new.kind,
            state: command.state,
            replayed: true,
        })
    }
}

/// A command and whatever rests on it and was done, the newest first. `None` where there is no such command.
fn steps_of(view: &View<'_>, id: CommandId) -> Result<Option<Vec<Step>>, CommandsError> {
    let Some(first) = view.command(id)? else {
        return Ok(None);
    };
    let mut found = vec![first];
    let mut next = 0;
    while let Some(id) = found.get(next).map(|command| command.new.id) {
        next += 1;
        for resting in view.needed_by(id)? {
            let is_new = found.iter().all(|command| command.new.id != resting);
            // What makes up for something rests on nothing that is to be undone.
            if let Some(command) = view.command(resting)?.filter(|_| is_new)
                && command.new.compensates.is_none()
                && !command.state.is_never_done()
            {
                found.push(command);
            }
        }
        if found.len() > STEPS_MAX {
            return Err(CommandsError::Unfit {
                reason: format!("more than {STEPS_MAX} commands rest on {id}; undo those first"),
            });
        }
    }
    found.sort_by_key(|command| std::cmp::Reverse(command.number));
    let mut steps = Vec::new();
    for command in found {
        let tried = view.compensating(command.new.id)?;
        let at_work = match command.state {
            State::Compensating | State::Compensated => tried.first().copied(),
            _ => None,
        };
        steps.push(Step {
            command,
            tried: tried.len(),
            at_work,
        });
    }
    Ok(Some(steps))
}

/// The id of the `nth` command that makes up for another: the same whoever asks, however often.
fn id_of_step(of: CommandId, nth: usize) -> CommandId {
    let hash = Sha256::digest(format!("wayhold compensation {nth} of {of}").as_bytes());
    let mut bytes = of.to_bytes();
    // Time of the first, so that it lies close to it; the rest follows from what it makes up for.
    for (byte, new) in bytes.iter_mut().zip(hash).skip(6) {
        *byte = new;
    }
    CommandId::of_version_7(bytes)
}

/// The arguments of a compensation, out of what is known of the command.
fn arguments_of(
    command: &Command,
    wanted: &[(String, wayhold_model::pointer::Pointer)],
) -> Option<Map<String, Value>> {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let known = json!({
        "command": command.new.id.to_string(),
        "arguments": json(&command.new.arguments),
        "result": command.result.as_deref().map(json),
    });
    if wanted.is_empty() {
        return known.as_object().cloned();
    }
    let text = known.to_string();
    let take = |(name, at): &(String, wayhold_model::pointer::Pointer)| {
        let value = serde_json::from_str(at.raw_in(text.as_bytes())?).ok()?;
        Some((name.clone(), value))
    };
    wanted.iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_ids_of_their_own_that_do_not_change() {
        let of = |n: u8| CommandId::at(wayhold_model::Timestamp::from_micros(1_000_000), [n; 10]);
        let first = id_of_step(of(1), 0);
        assert_eq!(first, id_of_step(of(1), 0));
        assert!(first != id_of_step(of(1), 1) && first != id_of_step(of(2), 0) && first != of(1));
        assert_eq!(first.to_string().parse(), Ok(first));
        assert_eq!(first.to_string().as_bytes()[14], b'7');
    }
}
