//! Who must say yes to what: `[[approvals]]`, the policies; `[approval_requests]`, where requests are announced; and
//! `[[command_limits]]`, how much may be asked for at all.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wayhold_model::approval::limit::{LIMITS_MAX, WITHIN_MAX, WITHIN_MIN};
use wayhold_model::approval::policy::POLICIES_MAX;
use wayhold_model::approval::quorum::SEATS_MAX;
use wayhold_model::approval::requirement::{EXPIRES_DEFAULT, WAIT_MAX, WINDOW_DEFAULT};
use wayhold_model::approval::{
    Amount, Limit, OnExpiry, Per, Policies, Policy, Question, Quorum, Requirement,
};

use crate::config::destination::DestinationName;
use crate::config::environment::Environment;
use crate::config::problem::{Origin, Problems};
use crate::config::section::{Reading, Section};
use crate::config::setting::{Choice, Faults, Setting, text_of};
use crate::config::tree::{self, Node, Value};

/// Shortest undo window and wait: below, nobody could have decided.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Everything that decides whether a command may leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApprovingConfig {
    /// The policies, in the order in which they are asked.
    pub policies: Policies,
    /// The destination that requests are announced to, as events.
    pub requests_to: Option<DestinationName>,
    /// Limits on what is asked for.
    pub limits: Vec<Limit>,
}

/// The words of `require` where it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Auto,
    Delayed,
    Deny,
}

impl Choice for Word {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("delayed", Self::Delayed),
        ("deny", Self::Deny),
    ];
}

impl Choice for Per {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("principal", Self::Principal),
        ("kind", Self::Kind),
        ("destination", Self::Destination),
    ];
}

impl Setting for Question {
    fn read(node: &Node) -> Result<Self, Faults> {
        let text = text_of(node).ok_or_else(|| {
            Faults::new("expected a condition such as 'kind == \"po_create\" && amount > 500'")
        })?;
        Self::compile(text).map_err(Faults::new)
    }

    fn show(&self) -> serde_json::Value {
        self.text().into()
    }
}

/// A number, or a text that holds one where it must be exact.
impl Setting for Amount {
    fn read(node: &Node) -> Result<Self, Faults> {
        let amount = match &node.value {
            Value::Integer(number) => Self::parse(&number.to_string()),
            Value::Fraction(number) => Self::parse(&number.to_string()),
            _ => text_of(node).and_then(Self::parse),
        };
        let amount = amount.filter(|amount| *amount > Self::ZERO);
        amount.ok_or_else(|| Faults::new("expected an amount above 0, such as 500 or \"499.99\""))
    }

    fn show(&self) -> serde_json::Value {
        match self.whole() {
            Some(whole) => whole.into(),
            None => self.to_string().into(),
        }
    }
}

impl ApprovingConfig {
    /// Reads the three; `destinations` are the names that are configured.
    pub(super) fn read(section: &mut Section<'_, '_, '_>, destinations: &[String]) -> Self {
        Self {
            policies: read_policies(section),
            requests_to: section.table("approval_requests", |section| {
                read_destination(section, destinations)
            }),
            limits: section.tables("command_limits", LIMITS_MAX, |section| {
                let name = section.find("name");
                let name = name.unwrap_or_else(|| section.path().to_owned());
                read_limit(name, section)
            }),
        }
    }
}

/// Reads `[[approvals]]`.
fn read_policies(section: &mut Section<'_, '_, '_>) -> Policies {
    let policies = section.tables("approvals", POLICIES_MAX, |section| {
        let name = section.find("name");
        let name = name.unwrap_or_else(|| section.path().to_owned());
        let when = section.require::<Question>("when", "'kind == \"KIND\"'");
        let require = read_requirement(section);
        let (when, require) = (when?, require?);
        Some(Policy {
            name,
            when,
            require,
        })
    });
    Policies::new(policies.into_iter().flatten().collect())
}

/// The policies of a text: of a configuration file, or of one that holds nothing else.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn policies_of(text: &str) -> Result<Policies, Problems> {
    let path: Arc<Path> = Arc::from(Path::new("policies"));
    let mut table = tree::parse(&path, text).map_err(Problems)?;
    table.retain(|key, _| key == "approvals");
    let environment = Environment::default();
    let mut reading = Reading::new(&environment);
    let origin = Origin::File { path, line: 1 };
    let policies = reading.whole(origin, &table, read_policies);
    if reading.problems.is_empty() {
        Ok(policies)
    } else {
        Err(Problems(reading.problems))
    }
}

fn read_destination(
    section: &mut Section<'_, '_, '_>,
    destinations: &[String],
) -> Option<DestinationName> {
    let name: DestinationName = section.find("destination")?;
    if !destinations.iter().any(|one| one == name.as_str()) {
        section.problem(
            "destination",
            format!("expected a configured destination, not \"{name}\""),
        );
    }
    Some(name)
}

/// A requirement: a word, or a table that says how many people or how long.
fn read_requirement(section: &mut Section<'_, '_, '_>) -> Option<Requirement> {
    if !section.is_table("require") {
        return Some(match section.require::<Word>("require", "\"auto\"")? {
            Word::Auto => Requirement::Auto,
            Word::Delayed => Requirement::Delayed {
                window: WINDOW_DEFAULT,
            },
            Word::Deny => denied("a policy forbids it".to_owned()),
        });
    }
    section.table("require", |section| {
        let chosen: Vec<_> = ["delay", "deny", "approvers"]
            .into_iter()
            .filter(|key| section.has(key))
            .collect();
        match chosen.as_slice() {
            ["delay"] => Some(Requirement::Delayed {
                window: section.within("delay", WINDOW_DEFAULT, WAIT_MIN, WAIT_MAX),
            }),
            ["deny"] => Some(denied(section.find("deny")?)),
            ["approvers"] | [] => read_quorum(section).map(Requirement::Approvers),
            several => {
                section.keys();
                section.problem("", format!("expected one of {}", several.join(", ")));
                None
            }
        }
    })
}

fn denied(reason: String) -> Requirement {
    Requirement::Deny { reason }
}

fn read_quorum(section: &mut Section<'_, '_, '_>) -> Option<Quorum> {
    let labels: Vec<String> = section.get("labels", Vec::new());
    let approvers = section.within("approvers", labels.len().max(1), 1, SEATS_MAX);
    let expires = section.within("expires", EXPIRES_DEFAULT, WAIT_MIN, WAIT_MAX);
    let escalate_to: Option<String> = section.find("escalate_to");
    let on_expiry = match escalate_to {
        Some(to) => OnExpiry::Escalate {
            to,
            wait: section.within("escalate_for", expires, WAIT_MIN, WAIT_MAX),
        },
        None => {
            if section.find::<Duration>("escalate_for").is_some() {
                section.problem("escalate_for", "expected escalate_to beside it");
            }
            OnExpiry::Deny
        }
    };
    if labels.iter().any(String::is_empty) {
        section.problem("labels", "expected labels that are not empty");
    }
    if labels.len() > approvers {
        let message = format!(
            "expected at least {}: each label needs a person of its own",
            labels.len()
        );
        section.problem("approvers", message);
    }
    Quorum::new(approvers, &labels, expires, on_expiry)
}

/// Reads `limits` of a kind: a limit on its commands alone.
pub(super) fn read_limit_of(kind: &str, section: &mut Section<'_, '_, '_>) -> Limit {
    let limit = read_limit(format!("commands.{kind}"), section);
    if limit.when.is_some() {
        section.problem("when", "expected only in [[command_limits]]");
    }
    // Names of kinds hold nothing that a text of CEL would have to escape.
    let when = Question::compile(&format!("kind == '{kind}'"));
    Limit {
        when: when.ok(),
        ..limit
    }
}

/// Reads a limit, of `[[command_limits]]` or of one kind.
fn read_limit(name: String, section: &mut Section<'_, '_, '_>) -> Limit {
    let limit = Limit {
        name,
        when: section.find("when"),
        per: section.get("per", Vec::new()),
        count: section.find("count"),
        amount: section.find("amount"),
        within: section.require("within", "\"24h\"").unwrap_or(WITHIN_MIN),
    };
    if limit.count.is_none() && limit.amount.is_none() {
        section.problem("", "expected count, amount or both");
        section.suggest("count = 100".to_owned());
    }
    if !(WITHIN_MIN..=WITHIN_MAX).contains(&limit.within) {
        let (min, max) = (WITHIN_MIN.show(), WITHIN_MAX.show());
        section.problem("within", format!("expected between {min} and {max}"));
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text of these tables says, or everything that is wrong with it.
    fn read(text: &str) -> Result<ApprovingConfig, String> {
        let path: Arc<Path> = Arc::from(Path::new("x.toml"));
        let table = tree::parse(&path, text).unwrap();
        let environment = Environment::default();
        let mut reading = Reading::new(&environment);
        let origin = Origin::File { path, line: 1 };
        let names = ["pager".to_owned()];
        let config = reading.whole(origin, &table, |section| {
            ApprovingConfig::read(section, &names)
        });
        match reading.problems.is_empty() {
            true => Ok(config),
            false => Err(Problems(reading.problems).to_string()),
        }
    }

    #[test]
    fn policies_and_limits_are_read() {
        let config = read(
            r#"
            [[approvals]]
            name = "large"
            when = 'kind == "po_create" && arguments.amount > 500'
            require = { approvers = 2, labels = ["buyer", "finance"], escalate_to = "head", escalate_for = "1h" }
            [[approvals]]
            when = 'amount > 5'
            require = { delay = "5m" }
            [[approvals]]
            when = 'true'
            require = "auto"
            [approval_requests]
            destination = "pager"
            [[command_limits]]
            name = "daily"
            per = ["principal", "kind"]
            amount = "499.99"
            within = "24h"
            "#,
        )
        .unwrap();
        let labels = ["buyer".to_owned(), "finance".to_owned()];
        let on_expiry = OnExpiry::Escalate {
            to: "head".to_owned(),
            wait: Duration::from_secs(3600),
        };
        let quorum = Quorum::new(2, &labels, EXPIRES_DEFAULT, on_expiry).unwrap();
        let window = Duration::from_secs(300);
        let policies: Vec<_> = config
            .policies
            .iter()
            .map(|policy| (policy.name.as_str(), policy.require.clone()))
            .collect();
        assert_eq!(
            policies,
            [
                ("large", Requirement::Approvers(quorum)),
                ("approvals[1]", Requirement::Delayed { window }),
                ("approvals[2]", Requirement::Auto),
            ]
        );
        assert_eq!(config.requests_to.unwrap().as_str(), "pager");
        let limit = &config.limits[0];
        assert_eq!(limit.amount, Amount::parse("499.99"));
        assert_eq!((limit.count, limit.per.len()), (None, 2));
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let told = read(
            r#"
            [[approvals]]
            when = 'amont > 500'
            require = "ask"
            [[approvals]]
            require = { approvers = 1, labels = ["buyer", "finance"], expires = "0s" }
            [[approvals]]
            when = 'true'
            [[approvals]]
            when = 'true'
            require = { delay = "10m", approvers = 2 }
            [[approvals]]
            when = 'true'
            require = { approvers = 9, escalate_for = "1h", people = 3 }
            [approval_requests]
            destination = "nobody"
            [[command_limits]]
            per = ["person"]
            amount = -5
            within = "5s"
            "#,
        )
        .unwrap_err();
        for expected in [
            "approvals[0].when: amont: expected one of kind, arguments",
            "approvals[0].require: expected one of \"auto\", \"delayed\", \"deny\"",
            "approvals[1].when: expected a value",
            "approvals[1].require.approvers: expected at least 2",
            "approvals[1].require.expires: expected between",
            "approvals[2].require: expected a value",
            "approvals[3].require: expected one of delay, approvers",
            "approvals[4].require.approvers: expected between 1 and 8",
            "approvals[4].require.escalate_for: expected escalate_to beside it",
            "approvals[4].require.people: unknown key",
            "approval_requests.destination: expected a configured destination",
            "command_limits[0].per[0]: expected one of \"principal\"",
            "command_limits[0].amount: expected an amount above 0",
            "command_limits[0]: expected count, amount or both",
            "command_limits[0].within: expected between",
        ] {
            assert!(told.contains(expected), "{expected}\n{told}");
        }
    }
}
