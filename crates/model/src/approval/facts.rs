//! What a policy sees of a command: who wants what, how much of it, and how dangerous that is.

use serde_json::{Value, json};

use super::amount::Amount;
use crate::command::{Reversibility, Risk};
use crate::ledger::Actor;

/// The facts of a command that policies may ask about.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The command's kind.
    pub kind: String,
    /// Its arguments.
    pub arguments: Value,
    /// What its kind calls the amount; `None` where the kind names none or the arguments have none.
    pub amount: Option<Amount>,
    /// Who proposed it.
    pub principal: Actor,
    /// Roles and labels of the principal.
    pub labels: Vec<String>,
    /// For whom it was proposed; empty for nobody else.
    pub on_behalf_of: String,
    /// The model that is said to have thought of it; empty for none.
    pub model: String,
    /// How dangerous its kind is.
    pub risk: Risk,
    /// Whether it can be taken back.
    pub reversibility: Reversibility,
    /// Name of the destination.
    pub destination: String,
}

impl Facts {
    /// What is committed to in the record that a policy was asked: everything that it saw, with the arguments by the
    /// digest of the command, which holds them.
    pub fn summary(&self, bound: &super::Digest) -> Value {
        json!({
            "kind": self.kind,
            "command_sha256": bound.to_string(),
            "amount": self.amount.map(|amount| amount.to_string()),
            "principal": self.principal.id,
            "principal_type": self.principal.kind.name(),
            "labels": self.labels,
            "on_behalf_of": self.on_behalf_of,
            "model": self.model,
            "risk": self.risk.name(),
            "reversibility": self.reversibility.name(),
            "destination": self.destination,
        })
    }
}

/// A command of an amount, for tests.
#[cfg(test)]
pub(super) fn facts_for_tests(amount: &Value) -> Facts {
    Facts {
        kind: "po_create".to_owned(),
        amount: Amount::of_json(amount),
        arguments: json!({ "amount": amount }),
        principal: actor_for_tests("replenish", crate::ledger::ActorKind::Model),
        labels: Vec::new(),
        on_behalf_of: String::new(),
        model: String::new(),
        risk: Risk::Low,
        reversibility: Reversibility::Reversible,
        destination: "erp".to_owned(),
    }
}

#[cfg(test)]
pub(super) fn actor_for_tests(id: &str, kind: crate::ledger::ActorKind) -> Actor {
    Actor {
        kind,
        id: id.to_owned(),
        on_behalf_of: None,
        auth: None,
    }
}
