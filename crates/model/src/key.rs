//! The ordering key: what order is kept by. The key that came with the event stands first, then the
//! extension attribute `partitionkey`, then the first rule that applies; else the event has no key and
//! therefore no order.

use std::borrow::Cow;

use thiserror::Error;

use crate::attribute::{AttributeName, Attributes};
use crate::condition::{Condition, ConditionFailure};
use crate::event::{EventParts, is_json};
use crate::template::Template;

/// A rule that gives events an ordering key.
#[derive(Clone, Debug)]
pub struct KeyRule {
    /// What problems call it.
    pub name: String,
    /// Which events; all where absent.
    pub when: Option<Condition>,
    /// The key. Where one of its places has no value the rule does not apply, and the next is asked:
    /// half a key would put unrelated events in one order.
    pub key: Template,
}

/// All rules, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct KeyRules {
    rules: Box<[KeyRule]>,
}

/// A rule whose condition could not be evaluated for an event; the event is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the condition of {rule} failed: {failure}")]
pub struct KeyFailure {
    /// The rule's name.
    pub rule: String,
    /// What went wrong.
    pub failure: ConditionFailure,
}

impl KeyRules {
    /// Rules in the order in which they are asked.
    pub fn new(rules: impl IntoIterator<Item = KeyRule>) -> Self {
        Self {
            rules: rules.into_iter().collect(),
        }
    }

    /// The rules.
    pub fn rules(&self) -> &[KeyRule] {
        &self.rules
    }

    /// The ordering key of the event that `parts` will make, or `None` where it has none. Data are
    /// parsed only when a rule reads them, and only where the content type says JSON.
    ///
    /// # Errors
    /// When a rule's condition cannot be evaluated.
    pub fn key_of<'a>(
        &self,
        parts: &'a EventParts<'_>,
    ) -> Result<Option<Cow<'a, str>>, KeyFailure> {
        if !parts.key.is_empty() {
            return Ok(Some(Cow::Borrowed(parts.key)));
        }
        let partition_key = partition_key(parts);
        if !partition_key.is_empty() {
            return Ok(Some(partition_key));
        }
        let json = is_json(parts.content_type).then_some(&*parts.data);
        for rule in &self.rules {
            let failed = |failure| KeyFailure {
                rule: rule.name.clone(),
                failure,
            };
            let applies = match &rule.when {
                Some(condition) => condition.holds(parts).map_err(failed)?,
                None => true,
            };
            if applies && let Some(key) = rule.key.render(parts, json) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

/// CloudEvents' partitioning extension.
fn partition_key<'a>(parts: &'a EventParts<'_>) -> Cow<'a, str> {
    if parts.extensions.is_empty() {
        return Cow::Borrowed("");
    }
    parts.attribute(&AttributeName::Extension("partitionkey".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> KeyRules {
        let rule = |when: Option<&str>, key: &str| KeyRule {
            name: "keys".to_owned(),
            when: when.map(|text| Condition::compile(text).unwrap()),
            key: Template::parse(key).unwrap(),
        };
        KeyRules::new([
            rule(Some("type == 'stock'"), "{/data/warehouse}/{/data/item}"),
            rule(Some("type == 'bad' && int(subject) > 0"), "{subject}"),
            rule(None, "{subject}"),
        ])
    }

    fn stock() -> EventParts<'static> {
        EventParts {
            kind: "stock",
            subject: "s",
            content_type: "application/json",
            data: br#"{"warehouse":"W1","item":7}"#.as_slice().into(),
            ..EventParts::default()
        }
    }

    #[test]
    fn the_key_comes_from_the_event_then_the_extension_then_the_first_rule_that_applies() {
        let partition = r#"{"partitionkey":"p"}"#;
        for (parts, expected) in [
            (
                EventParts {
                    key: "k",
                    extensions: partition,
                    ..stock()
                },
                Some("k"),
            ),
            (
                EventParts {
                    extensions: partition,
                    ..stock()
                },
                Some("p"),
            ),
            (
                EventParts {
                    extensions: r#"{"partitionkey":5}"#,
                    ..stock()
                },
                Some("5"),
            ),
            (
                EventParts {
                    extensions: r#"{"partitionkeys":"p"}"#,
                    ..stock()
                },
                Some("W1/7"),
            ),
            (stock(), Some("W1/7")),
            (
                EventParts {
                    kind: "other",
                    ..stock()
                },
                Some("s"),
            ),
            // Half a key is none: the next rule is asked.
            (
                EventParts {
                    data: br#"{"warehouse":"W1"}"#.as_slice().into(),
                    ..stock()
                },
                Some("s"),
            ),
            (
                EventParts {
                    data: b"{".as_slice().into(),
                    ..stock()
                },
                Some("s"),
            ),
            // Data are read only where they say that they are JSON.
            (
                EventParts {
                    content_type: "text/plain",
                    ..stock()
                },
                Some("s"),
            ),
            (
                EventParts {
                    content_type: "application/vnd.x+json",
                    ..stock()
                },
                Some("W1/7"),
            ),
            (
                EventParts {
                    subject: "",
                    kind: "other",
                    ..stock()
                },
                None,
            ),
        ] {
            assert_eq!(
                rules().key_of(&parts).unwrap().as_deref(),
                expected,
                "{parts:?}"
            );
        }
        assert_eq!(KeyRules::default().key_of(&stock()), Ok(None));
    }

    #[test]
    fn a_condition_that_fails_names_its_rule() {
        let parts = EventParts {
            kind: "bad",
            ..stock()
        };
        assert_eq!(rules().key_of(&parts).unwrap_err().rule, "keys");
    }
}
