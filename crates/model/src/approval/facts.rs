//! What a policy sees of a command: who wants what, how much of it, and how dangerous that is.

use serde::Serialize;
use serde_json::Value;
#[cfg(test)]
use serde_json::json;

use super::Digest;
use super::amount::Amount;
use crate::command::{Reversibility, Risk};
use crate::ledger::{Actor, ActorKind};

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

/// The member of a summary that stands for where and how the destination is reached.
pub const DESTINATION_DIGEST: &str = "destination_sha256";

/// Everything but the arguments, in the order of canonical JSON.
#[derive(Serialize)]
struct Summary<'a> {
    amount: Option<String>,
    destination: &'a str,
    destination_sha256: Option<String>,
    kind: &'a str,
    labels: &'a [String],
    model: &'a str,
    on_behalf_of: &'a str,
    principal: &'a str,
    principal_type: &'a str,
    reversibility: &'a str,
    risk: &'a str,
}

impl Facts {
    /// Everything but the arguments, as it is kept, shown and committed to, with what stands for where and how the
    /// destination is reached: canonical JSON.
    pub fn summary(&self, reached: Option<&Digest>) -> String {
        let summary = Summary {
            amount: self.amount.map(|amount| amount.to_string()),
            destination: &self.destination,
            destination_sha256: reached.map(ToString::to_string),
            kind: &self.kind,
            labels: &self.labels,
            model: &self.model,
            on_behalf_of: &self.on_behalf_of,
            principal: &self.principal.id,
            principal_type: self.principal.kind.name(),
            reversibility: self.reversibility.name(),
            risk: self.risk.name(),
        };
        // Texts and nothing always become JSON.
        serde_json::to_string(&summary).unwrap_or_default()
    }

    /// The facts behind a summary and its arguments; `None` for a text that is no summary.
    pub fn of_summary(summary: &Value, arguments: Value) -> Option<Self> {
        let text = |name: &str| summary.get(name)?.as_str();
        let owned = |name: &str| text(name).map(str::to_owned);
        let labels = summary.get("labels")?.as_array()?.iter();
        let labels = labels.map(|label| label.as_str().map(str::to_owned));
        Some(Self {
            kind: owned("kind")?,
            arguments,
            amount: text("amount").and_then(Amount::parse),
            principal: Actor {
                kind: kind_of(text("principal_type")?)?,
                id: owned("principal")?,
                on_behalf_of: None,
                auth: None,
            },
            labels: labels.collect::<Option<_>>()?,
            on_behalf_of: owned("on_behalf_of")?,
            model: owned("model")?,
            risk: Risk::named(text("risk")?)?,
            reversibility: Reversibility::named(text("reversibility")?)?,
            destination: owned("destination")?,
        })
    }
}

fn kind_of(name: &str) -> Option<ActorKind> {
    [
        ActorKind::Person,
        ActorKind::Service,
        ActorKind::Model,
        ActorKind::Rule,
        ActorKind::System,
    ]
    .into_iter()
    .find(|kind| kind.name() == name)
}

/// A command of an amount, for tests.
#[cfg(test)]
pub(super) fn facts_for_tests(amount: &Value) -> Facts {
    Facts {
        kind: "po_create".to_owned(),
        amount: Amount::of_json(amount),
        arguments: json!({ "amount": amount }),
        principal: actor_for_tests("replenish", ActorKind::Model),
        labels: Vec::new(),
        on_behalf_of: String::new(),
        model: String::new(),
        risk: Risk::Low,
        reversibility: Reversibility::Reversible,
        destination: "erp".to_owned(),
    }
}

#[cfg(test)]
pub(super) fn actor_for_tests(id: &str, kind: ActorKind) -> Actor {
    Actor {
        kind,
        id: id.to_owned(),
        on_behalf_of: None,
        auth: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::canonical;

    fn said(facts: &Facts, reached: Option<&Digest>) -> Value {
        serde_json::from_str(&facts.summary(reached)).unwrap()
    }

    #[test]
    fn a_summary_and_the_arguments_are_the_facts() {
        let whole = Facts {
            labels: vec!["night".to_owned()],
            on_behalf_of: "anna".to_owned(),
            model: "m-1".to_owned(),
            ..facts_for_tests(&json!(12.5))
        };
        let read = Facts::of_summary(&said(&whole, None), whole.arguments.clone());
        assert_eq!(read.as_ref(), Some(&whole));
        let without = facts_for_tests(&json!(null));
        let read = Facts::of_summary(&said(&without, None), without.arguments.clone());
        assert_eq!(read, Some(without));
        assert_eq!(Facts::of_summary(&json!({}), json!({})), None);
    }

    #[test]
    fn a_summary_is_canonical_whatever_the_texts_and_says_where_the_destination_is() {
        let reached = Digest([2; 32]);
        let odd = "w\u{e9}\u{1f600}\"\\/\u{0}\u{1f}\u{7f}\u{2028}\n\r\t\u{8}\u{c}";
        for (text, reached) in [("plain", Some(&reached)), (odd, None)] {
            let facts = Facts {
                kind: text.to_owned(),
                labels: vec![text.to_owned(), String::new()],
                on_behalf_of: text.to_owned(),
                model: text.to_owned(),
                destination: text.to_owned(),
                ..facts_for_tests(&json!(1.5))
            };
            let summary = facts.summary(reached);
            let said = said(&facts, reached);
            assert_eq!(canonical::to_vec(&said).unwrap(), summary.as_bytes());
            assert_eq!(
                said[DESTINATION_DIGEST],
                json!(reached.map(ToString::to_string))
            );
        }
    }
}
