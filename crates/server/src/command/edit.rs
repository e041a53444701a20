//! Edits of commands that wait for approval: the new arguments are held against the kind as a proposal's are, before
//! anything is written.

use serde_json::Value;
use wayhold_model::approval::{Digest, Facts};
use wayhold_model::command::{CommandId, digest};
use wayhold_model::ledger::Actor;

use super::approvals::Edit;
use super::desk::{CommandDesk, CommandError};
use super::proposal::InvalidProposal;
use super::resolve;

/// An edit that fits its kind.
#[derive(Clone, Debug)]
pub struct Edited {
    facts: Facts,
    arguments: String,
    digest: Digest,
    order_key: Option<String>,
}

impl Edited {
    /// By whom, and what they saw.
    pub fn into_edit(self, by: Actor, seen: Digest) -> Edit {
        Edit {
            by,
            seen,
            facts: self.facts,
            arguments: self.arguments,
            digest: self.digest,
            order_key: self.order_key,
        }
    }
}

impl CommandDesk {
    /// Holds other arguments of a command against its kind. What it refers to stays what it needed before.
    ///
    /// # Errors
    /// There is no such command or kind any more, or the arguments do not fit.
    pub async fn edited(&self, id: CommandId, arguments: Value) -> Result<Edited, CommandError> {
        let found = self.look(move |view| {
            let command = view.command(id)?;
            Ok((command, view.verdict(id)?, view.needs(id)?))
        });
        let (command, verdict, needs) = found.await?;
        let not_found = || CommandError::NotFound { id: id.to_string() };
        let command = command.ok_or_else(not_found)?;
        let verdict = verdict.ok_or_else(not_found)?;
        let kinds = self.kinds();
        let kind = kinds
            .get(&command.new.kind)
            .ok_or_else(|| CommandError::NoSuchKind {
                kind: command.new.kind.clone(),
            })?;
        for wanted in resolve::references(&arguments)? {
            if !needs.iter().any(|(needed, _)| *needed == wanted) {
                let expected = format!("expected only what it depends on, not {wanted}");
                return Err(InvalidProposal::new("arguments", expected).into());
            }
        }
        let text = kind.canonical(&arguments, !needs.is_empty())?;
        let new = &command.new;
        let summary = serde_json::from_str(&verdict.facts).unwrap_or_default();
        let facts = Facts::of_summary(&summary, arguments).ok_or_else(not_found)?;
        Ok(Edited {
            facts: Facts {
                amount: kind.amount_of(&text),
                ..facts
            },
            digest: Digest(digest(
                &new.kind,
                &new.kind_version,
                &new.destination,
                &text,
            )),
            order_key: kind.order_key_of(&text),
            arguments: text,
        })
    }
}
