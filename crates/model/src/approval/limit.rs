//! Limits on what is asked for: so many commands, or so much of an amount, in a span of time, for everybody together
//! or for each principal, kind or destination.
//!
//! What was taken is kept in slices of the span, so that a check reads a fixed number of rows however many commands
//! there were. A slice counts until the whole of it lies outside the span: a limit is never passed, and may refuse
//! for up to one slice longer than an exact count would.

use std::time::Duration;

use serde_json::{Value, json};

use super::amount::Amount;
use super::facts::Facts;
use super::question::Question;
use crate::time::Timestamp;

/// Most limits: each that applies is checked and charged in the change that accepts a command.
pub const LIMITS_MAX: usize = 64;

/// Slices of a span: what it may be late by is a sixtieth.
pub const SLICES: u64 = 60;

/// Shortest span, so that a slice is at least a second.
pub const WITHIN_MIN: Duration = Duration::from_secs(60);

/// Longest span.
pub const WITHIN_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What has a budget of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Per {
    /// Each principal.
    Principal,
    /// Each kind.
    Kind,
    /// Each destination.
    Destination,
}

impl Per {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Principal, Self::Kind, Self::Destination];

    /// Name in configuration, JSON and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Kind => "kind",
            Self::Destination => "destination",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// What it is of a command.
    pub fn of(self, facts: &Facts) -> &str {
        match self {
            Self::Principal => &facts.principal.id,
            Self::Kind => &facts.kind,
            Self::Destination => &facts.destination,
        }
    }
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What records and answers call it. What was taken is kept under this name.
    pub name: String,
    /// Which commands; all where absent.
    pub when: Option<Question>,
    /// What has a budget of its own; one budget for all where empty.
    pub per: Vec<Per>,
    /// Most commands in the span.
    pub count: Option<u64>,
    /// Most of the amount in the span, whichever way it goes.
    pub amount: Option<Amount>,
    /// The span.
    pub within: Duration,
}

/// What was taken of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Commands.
    pub count: u64,
    /// Their amounts, each without its sign.
    pub amount: Amount,
}

/// Why a command is beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// There were as many as there may be.
    Count,
    /// Its amount does not fit any more.
    Amount,
    /// It has no amount that could be counted.
    NoAmount,
}

impl Beyond {
    /// Name in records and answers.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Amount => "amount",
            Self::NoAmount => "no_amount",
        }
    }
}

impl Used {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            amount: self.amount.plus(other.amount),
        }
    }
}

impl Limit {
    /// Whose budget a command takes from; `None` where the limit is not for it. A question without an answer says
    /// that it is.
    pub fn budget(&self, facts: &Facts) -> Option<String> {
        let applies = self
            .when
            .as_ref()
            .is_none_or(|when| when.holds(facts).unwrap_or(true));
        let whose: Vec<_> = self.per.iter().map(|per| per.of(facts)).collect();
        applies.then(|| json!(whose).to_string())
    }

    /// What a command takes.
    pub fn takes(facts: &Facts) -> Used {
        Used {
            count: 1,
            amount: facts.amount.unwrap_or_default().size(),
        }
    }

    /// Why a command does not fit into what is left; `None` where it does.
    pub fn refuses(&self, used: Used, facts: &Facts) -> Option<Beyond> {
        if self.amount.is_some() && facts.amount.is_none() {
            return Some(Beyond::NoAmount);
        }
        let then = used.and(Self::takes(facts));
        if self.count.is_some_and(|most| then.count > most) {
            return Some(Beyond::Count);
        }
        self.amount
            .is_some_and(|most| then.amount > most)
            .then_some(Beyond::Amount)
    }

    /// The slice that a moment lies in.
    pub fn slice(&self, now: Timestamp) -> u64 {
        now.as_micros() / self.slice_micros()
    }

    /// The first slice that counts at a moment.
    pub fn first_slice(&self, now: Timestamp) -> u64 {
        self.slice(now).saturating_sub(SLICES)
    }

    /// As answers show it.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "when": self.when.as_ref().map(Question::text),
            "per": self.per.iter().map(|per| per.name()).collect::<Vec<_>>(),
            "count": self.count,
            "amount": self.amount.map(|amount| amount.to_string()),
            "within_seconds": self.within.as_secs(),
        })
    }

    fn slice_micros(&self) -> u64 {
        let micros = u64::try_from(self.within.as_micros()).unwrap_or(u64::MAX);
        micros.div_ceil(SLICES).max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::facts::facts_for_tests as facts;
    use super::*;

    fn limit(count: Option<u64>, amount: Option<&str>) -> Limit {
        Limit {
            name: "daily".to_owned(),
            when: None,
            per: vec![Per::Principal],
            count,
            amount: amount.map(|text| Amount::parse(text).unwrap()),
            within: Duration::from_secs(24 * 3600),
        }
    }

    fn used(count: u64, amount: &str) -> Used {
        Used {
            count,
            amount: Amount::parse(amount).unwrap(),
        }
    }

    #[test]
    fn a_command_fits_or_it_does_not() {
        let both = limit(Some(3), Some("1000"));
        for (before, amount, expected) in [
            (used(0, "0"), json!(1000), None),
            (used(0, "0"), json!(1000.01), Some(Beyond::Amount)),
            (used(2, "900"), json!(100), None),
            (used(3, "0"), json!(1), Some(Beyond::Count)),
            (used(1, "950"), json!(-60), Some(Beyond::Amount)),
            (used(0, "0"), json!(null), Some(Beyond::NoAmount)),
        ] {
            assert_eq!(both.refuses(before, &facts(&amount)), expected, "{amount}");
        }
        let counting = limit(Some(1), None);
        assert_eq!(counting.refuses(used(0, "0"), &facts(&json!(null))), None);
    }

    #[test]
    fn budgets_belong_to_somebody() {
        let some = facts(&json!(5));
        let budget = |per: &[Per], when: Option<&str>| {
            let when = when.map(|text| Question::compile(text).unwrap());
            let per = per.to_vec();
            Limit {
                per,
                when,
                ..limit(None, None)
            }
            .budget(&some)
        };
        assert_eq!(budget(&[], None).as_deref(), Some("[]"));
        assert_eq!(
            budget(&Per::ALL, None).as_deref(),
            Some(r#"["replenish","po_create","erp"]"#)
        );
        assert_eq!(budget(&[], Some("kind == 'other'")), None);
        assert!(
            budget(&[], Some("arguments.absent == 1")).is_some(),
            "no answer limits"
        );
    }

    proptest! {
        #[test]
        fn a_slice_counts_at_least_as_long_as_the_span(
            then in 0_u64..1 << 50, later in 0_u64..1 << 40, within in 60_u64..100_000_000,
        ) {
            let limit = Limit { within: Duration::from_secs(within), ..limit(None, None) };
            let (from, to) = (Timestamp::from_micros(then), Timestamp::from_micros(then + later));
            let counts = limit.slice(from) >= limit.first_slice(to);
            if later <= within * 1_000_000 {
                prop_assert!(counts);
            }
            if later > (within + within / 30 + 2) * 1_000_000 {
                prop_assert!(!counts);
            }
        }
    }
}
