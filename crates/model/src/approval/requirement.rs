//! What a command needs before it may leave, from nothing to never, and what no policy can take away.

use std::time::Duration;

use serde_json::{Value, json};

use super::quorum::{OnExpiry, Quorum};
use crate::command::{Reversibility, Risk};

/// What must happen before a command is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing.
    Auto,
    /// So much time, in which it can be called back.
    Delayed {
        /// The undo window.
        window: Duration,
    },
    /// People say yes.
    Approvers(Quorum),
    /// It never is.
    Deny {
        /// What the proposer is told.
        reason: String,
    },
}

/// Undo window of medium risk without a policy: long enough to see a mistake on a screen.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(10 * 60);

/// Longest undo window and longest wait for a decision: beyond, nobody remembers what was asked.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a request waits where nothing says otherwise: two days, so that a weekend passes.
pub const EXPIRES_DEFAULT: Duration = Duration::from_secs(48 * 60 * 60);

impl Requirement {
    /// Without a policy: low is auto, medium delayed, high one approver, critical two.
    pub fn by_default(risk: Risk) -> Self {
        match risk {
            Risk::Low => Self::Auto,
            Risk::Medium => Self::Delayed {
                window: WINDOW_DEFAULT,
            },
            Risk::High => Self::people(1),
            Risk::Critical => Self::people(2),
        }
    }

    /// Any so many people.
    pub fn people(approvers: usize) -> Self {
        match Quorum::new(approvers, &[], EXPIRES_DEFAULT, OnExpiry::Deny) {
            Some(quorum) => Self::Approvers(quorum),
            None => Self::Deny {
                reason: format!("no {approvers} people can be asked"),
            },
        }
    }

    /// What satisfies this only when it satisfies both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Deny { .. }, _) => self.clone(),
            (_, Self::Deny { .. }) => other.clone(),
            (Self::Approvers(one), Self::Approvers(two)) => Self::Approvers(one.and(two)),
            (Self::Approvers(_), _) => self.clone(),
            (_, Self::Approvers(_)) => other.clone(),
            (Self::Delayed { window: one }, Self::Delayed { window: two }) => Self::Delayed {
                window: *one.max(two),
            },
            (Self::Delayed { .. }, Self::Auto) => self.clone(),
            (Self::Auto, _) => other.clone(),
        }
    }

    /// Whether a command that had this needs nothing more for the other.
    pub fn covers(&self, other: &Self) -> bool {
        self.and(other) == *self
    }

    /// What no policy takes away: a command that can never be taken back is never sent without a person.
    #[must_use]
    pub fn for_reversibility(self, reversibility: Reversibility) -> Self {
        match (reversibility, &self) {
            (Reversibility::Irreversible, Self::Auto | Self::Delayed { .. }) => Self::people(1),
            _ => self,
        }
    }

    /// Name of its kind in records, answers and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Delayed { .. } => "delayed",
            Self::Approvers(_) => "approvers",
            Self::Deny { .. } => "deny",
        }
    }

    /// As records and answers show it.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Auto => json!("auto"),
            Self::Deny { reason } => json!({ "deny": reason }),
            Self::Delayed { window } => json!({ "delay_seconds": window.as_secs() }),
            Self::Approvers(quorum) => {
                let mut shown = quorum.to_json();
                if let Some(shown) = shown.as_object_mut() {
                    let expires = quorum.expires().as_secs();
                    shown.insert("expires_seconds".to_owned(), json!(expires));
                    let on_expiry = match quorum.on_expiry() {
                        OnExpiry::Deny => json!("deny"),
                        OnExpiry::Escalate { to, wait } => {
                            json!({ "escalate": { "to": to, "wait_seconds": wait.as_secs() } })
                        }
                    };
                    shown.insert("on_expiry".to_owned(), on_expiry);
                }
                shown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delayed(seconds: u64) -> Requirement {
        Requirement::Delayed {
            window: Duration::from_secs(seconds),
        }
    }

    fn deny() -> Requirement {
        Requirement::Deny {
            reason: "no".to_owned(),
        }
    }

    #[test]
    fn the_stricter_of_two_is_what_covers_both() {
        let auto = || Requirement::Auto;
        let people = Requirement::people;
        for (one, other, expected) in [
            (auto(), auto(), auto()),
            (auto(), delayed(5), delayed(5)),
            (delayed(5), delayed(9), delayed(9)),
            (delayed(5), people(1), people(1)),
            (people(1), people(2), people(2)),
            (auto(), people(2), people(2)),
            (people(8), deny(), deny()),
            (deny(), auto(), deny()),
        ] {
            assert_eq!(one.and(&other), expected, "{one:?} and {other:?}");
            assert_eq!(other.and(&one), expected, "{other:?} and {one:?}");
            assert!(expected.covers(&one) && expected.covers(&other));
            assert_eq!(one.covers(&other), one == expected, "{one:?}, {other:?}");
        }
    }

    #[test]
    fn without_a_policy_the_risk_decides_and_what_is_irreversible_is_never_alone() {
        for (risk, reversibility, expected) in [
            (Risk::Low, Reversibility::Reversible, Requirement::Auto),
            (Risk::Low, Reversibility::Compensatable, Requirement::Auto),
            (
                Risk::Low,
                Reversibility::Irreversible,
                Requirement::people(1),
            ),
            (Risk::Medium, Reversibility::Reversible, delayed(600)),
            (
                Risk::Medium,
                Reversibility::Irreversible,
                Requirement::people(1),
            ),
            (
                Risk::High,
                Reversibility::Reversible,
                Requirement::people(1),
            ),
            (
                Risk::High,
                Reversibility::Irreversible,
                Requirement::people(1),
            ),
            (
                Risk::Critical,
                Reversibility::Reversible,
                Requirement::people(2),
            ),
            (
                Risk::Critical,
                Reversibility::Irreversible,
                Requirement::people(2),
            ),
        ] {
            let asked = Requirement::by_default(risk).for_reversibility(reversibility);
            assert_eq!(asked, expected, "{risk:?} {reversibility:?}");
        }
        let denied = deny().for_reversibility(Reversibility::Irreversible);
        assert_eq!(denied, deny());
    }
}
