//! What a policy sees of a command: who wants what, how much of it, and how dangerous that is.

use serde_json::{Value, json};

use super::amount::Amount;
use super::requirement::{Reversibility, Risk};

/// What somebody who acts is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActorKind {
    /// A human being.
    Person,
    /// A program.
    Service,
    /// An AI model.
    Model,
    /// A rule of the configuration.
    Rule,
    /// The server itself.
    System,
}

impl ActorKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Person,
        Self::Service,
        Self::Model,
        Self::Rule,
        Self::System,
    ];

    /// Name in JSON, records and conditions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
            Self::Model => "model",
            Self::Rule => "rule",
            Self::System => "system",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Somebody who acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Unique name of the principal or rule.
    pub name: String,
    /// What it is.
    pub kind: ActorKind,
}

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
            "principal": self.principal.name,
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
