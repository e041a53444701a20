//! Policies: an ordered list of questions and what each requires. The first that holds decides; without one the
//! risk does.
//!
//! A question without an answer is taken as both yes and no: the command needs what that policy requires, and what
//! those behind it would, and two people at the least. So an error never lets anything through, and says which policy
//! to repair.

use serde_json::{Value, json};

use super::Digest;
use super::facts::Facts;
use super::question::Question;
use super::requirement::Requirement;
use crate::condition::ConditionFailure;

/// Most policies: each is asked for every command in turn.
pub const POLICIES_MAX: usize = 256;

/// People that are asked where a question had no answer, beside what the policies require.
const APPROVERS_AFTER_FAULT: usize = 2;

/// A question, and what a command needs for which it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What records and answers call it.
    pub name: String,
    /// The question.
    pub when: Question,
    /// What is needed where it holds.
    pub require: Requirement,
}

/// The policies in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

/// What the policies say of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it needs.
    pub requirement: Requirement,
    /// The policy that decided; `None` for the default of its risk.
    pub policy: Option<String>,
    /// Why it needs that, in a fixed set of words.
    pub reasons: Vec<&'static str>,
    /// Questions that had no answer.
    pub faults: Vec<Fault>,
}

/// A question without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The policy.
    pub policy: String,
    /// Why there is none.
    pub reason: ConditionFailure,
}

impl Policies {
    /// Policies in the order in which they are asked.
    pub const fn new(policies: Vec<Policy>) -> Self {
        Self(policies)
    }

    /// In the order in which they are asked.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.iter()
    }

    /// What a command needs.
    pub fn evaluate(&self, facts: &Facts) -> Verdict {
        let mut faults = Vec::new();
        let mut held = Requirement::Auto;
        let mut decided = None;
        for policy in &self.0 {
            match policy.when.holds(facts) {
                Ok(false) => {}
                Ok(true) => {
                    decided = Some(policy);
                    break;
                }
                Err(reason) => {
                    held = held.and(&policy.require);
                    let policy = policy.name.clone();
                    faults.push(Fault { policy, reason });
                }
            }
        }
        let mut reasons = vec![if decided.is_some() { "policy" } else { "risk" }];
        let mut requirement = match decided {
            Some(policy) => policy.require.clone(),
            None => Requirement::by_default(facts.risk),
        };
        if !faults.is_empty() {
            reasons.push("no_answer");
            let people = Requirement::people(APPROVERS_AFTER_FAULT);
            requirement = requirement.and(&held).and(&people);
        }
        let whole = requirement.clone().for_reversibility(facts.reversibility);
        if whole != requirement {
            reasons.push("irreversible");
        }
        Verdict {
            requirement: whole,
            policy: decided.map(|policy| policy.name.clone()),
            reasons,
            faults,
        }
    }

    /// What stands for the whole list: policies are the same when this is.
    pub fn digest(&self) -> Digest {
        Digest::of_json(&self.to_json())
    }

    /// As the record of their publication shows them.
    pub fn to_json(&self) -> Value {
        let each = |policy: &Policy| {
            json!({
                "name": policy.name,
                "when": policy.when.text(),
                "require": policy.require.to_json(),
            })
        };
        Value::Array(self.0.iter().map(each).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::facts::facts_for_tests;
    use super::super::quorum::{OnExpiry, Quorum};
    use super::*;
    use crate::command::{Reversibility, Risk};

    fn policy(name: &str, when: &str, require: Requirement) -> Policy {
        Policy {
            name: name.to_owned(),
            when: Question::compile(when).unwrap(),
            require,
        }
    }

    fn facts(amount: Value, risk: Risk, reversibility: Reversibility) -> Facts {
        Facts {
            risk,
            reversibility,
            ..facts_for_tests(&amount)
        }
    }

    fn both() -> Requirement {
        let labels = ["buyer".to_owned(), "finance".to_owned()];
        let expires = Duration::from_secs(48 * 3600);
        Requirement::Approvers(Quorum::new(2, &labels, expires, OnExpiry::Deny).unwrap())
    }

    #[test]
    fn the_first_that_holds_decides() {
        let policies = Policies::new(vec![
            policy(
                "forbidden",
                "principal_type == 'model' && amount > 10000",
                Requirement::Deny {
                    reason: "too much for a model".to_owned(),
                },
            ),
            policy("large", "arguments.amount > 2000", both()),
            policy("some", "arguments.amount > 500", Requirement::people(1)),
            policy("small", "kind == 'po_create'", Requirement::Auto),
        ]);
        let reversible = Reversibility::Reversible;
        for (amount, reversibility, expected, name, reasons) in [
            (
                json!(20_000),
                reversible,
                "deny",
                "forbidden",
                vec!["policy"],
            ),
            (
                json!(2001),
                reversible,
                "approvers",
                "large",
                vec!["policy"],
            ),
            (json!(2000), reversible, "approvers", "some", vec!["policy"]),
            (
                json!(500.5),
                reversible,
                "approvers",
                "some",
                vec!["policy"],
            ),
            (json!(500), reversible, "auto", "small", vec!["policy"]),
            (
                json!(500),
                Reversibility::Irreversible,
                "approvers",
                "small",
                vec!["policy", "irreversible"],
            ),
        ] {
            let verdict = policies.evaluate(&facts(amount.clone(), Risk::Critical, reversibility));
            assert_eq!(verdict.requirement.name(), expected, "{amount}");
            assert_eq!(verdict.policy.as_deref(), Some(name), "{amount}");
            assert_eq!(verdict.reasons, reasons, "{amount}");
        }
    }

    #[test]
    fn without_a_match_the_risk_decides() {
        let policies = Policies::new(vec![policy("other", "kind == 'x'", Requirement::Auto)]);
        let verdict = policies.evaluate(&facts(json!(1), Risk::High, Reversibility::Reversible));
        assert_eq!(verdict.requirement, Requirement::people(1));
        assert_eq!((verdict.policy, verdict.reasons), (None, vec!["risk"]));
    }

    #[test]
    fn a_question_without_an_answer_never_lets_through() {
        let low = |amount| facts(amount, Risk::Low, Reversibility::Reversible);
        let auto = Policies::new(vec![policy("small", "amount <= 500", Requirement::Auto)]);
        for odd in [json!(null), json!("all"), json!([1]), json!({})] {
            let verdict = auto.evaluate(&low(odd.clone()));
            assert_eq!(verdict.requirement, Requirement::people(2), "{odd}");
            assert_eq!(verdict.reasons, ["risk", "no_answer"], "{odd}");
            assert_eq!(verdict.faults.len(), 1, "{odd}");
        }
        // What the failed policy requires is asked as well as what the next one does.
        let mixed = Policies::new(vec![
            policy("large", "arguments.amount > 2000", both()),
            policy("rest", "true", Requirement::people(3)),
        ]);
        let verdict = mixed.evaluate(&low(json!("2001")));
        assert_eq!(verdict.requirement, both().and(&Requirement::people(3)));
        assert_eq!(verdict.policy.as_deref(), Some("rest"));
        let no = Requirement::Deny {
            reason: "no".to_owned(),
        };
        let denying = Policies::new(vec![policy("never", "arguments.amount > 2000", no.clone())]);
        assert_eq!(denying.evaluate(&low(json!("x"))).requirement, no);
    }

    #[test]
    fn policies_are_told_apart_by_their_digest() {
        let one = Policies::new(vec![policy("a", "amount > 5", Requirement::people(1))]);
        let other = Policies::new(vec![policy("a", "amount > 6", Requirement::people(1))]);
        let third = Policies::new(vec![policy("a", "amount > 5", Requirement::people(2))]);
        assert_eq!(one.digest(), one.clone().digest());
        assert_ne!(one.digest(), other.digest());
        assert_ne!(one.digest(), third.digest());
        assert_ne!(one.digest(), Policies::default().digest());
    }
}
