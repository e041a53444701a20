//! Stateless rules: an event that a rule wants becomes the proposal of a command. The id of the command is derived
//! from the rule's `dedupe`, so that an event that comes twice, or once more after a restart, proposes nothing new.
//! What needs memory of other events is an orchestrator's business, outside.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::attribute::Attributes;
use crate::command::CommandId;
use crate::condition::{Condition, ConditionFailure};
use crate::event::Event;
use crate::filter::Filter;
use crate::place::Place;
use crate::template::{InvalidTemplate, Template};

/// Most rules: each may be asked about every event.
pub const RULES_MAX: usize = 256;

/// Deepest arguments, in levels of objects and lists: they are written by hand.
pub const MAPPING_DEPTH_MAX: usize = 16;

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name, which is the actor of what it proposes.
    pub name: String,
    /// Which events; it sees their data.
    pub when: Filter,
    /// The kind of command that it proposes.
    pub propose: String,
    /// The command's arguments.
    pub arguments: Vec<(String, Mapping)>,
    /// What makes two proposals the same.
    pub dedupe: Template,
    /// For whom it proposes.
    pub on_behalf_of: Option<Template>,
    /// Why, for people.
    pub rationale: Option<Template>,
}

/// An argument, as a rule makes it of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Mapping {
    /// What stands in the rule: a number, a boolean.
    Literal(Value),
    /// One place alone: the value as it is there, numbers and objects included.
    Place(Place),
    /// A text with places.
    Text(Template),
    /// An object of more of them.
    Object(Vec<(String, Self)>),
    /// A list of more of them.
    List(Vec<Self>),
}

/// What a rule proposes for one event.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The command's id, the same for the same kind and `dedupe`.
    pub id: CommandId,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// For whom.
    pub on_behalf_of: Option<String>,
    /// Why.
    pub rationale: Option<String>,
}

/// Why a rule has nothing to say of an event that it should decide about.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// Its condition has no answer.
    #[error("when: {0}")]
    NoAnswer(#[from] ConditionFailure),
    /// A place of a template or argument has no value in the event.
    #[error("{field}: the event has no value for it")]
    NoValue {
        /// The rule's field.
        field: String,
    },
}

impl Mapping {
    /// A text of a rule: one place alone, or a template.
    ///
    /// # Errors
    /// As of [`Template::parse`].
    pub fn of_text(text: &str) -> Result<Self, InvalidTemplate> {
        if text.is_empty() || !text.contains(['{', '}']) {
            return Ok(Self::Literal(text.into()));
        }
        let inner = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        if let Some(place) = inner.and_then(Place::parse) {
            return Ok(Self::Place(place));
        }
        Template::parse(text).map(Self::Text)
    }

    fn value(&self, field: &str, event: &Event) -> Result<Value, Unfit> {
        let none = || Unfit::NoValue {
            field: field.to_owned(),
        };
        match self {
            Self::Literal(value) => Ok(value.clone()),
            Self::Place(Place::Attribute(name)) => {
                let text = event.attribute(name);
                match text.is_empty() {
                    true => Err(none()),
                    false => Ok(text.into_owned().into()),
                }
            }
            Self::Place(Place::Data(pointer)) => {
                let raw = pointer.raw_in(event.data()).ok_or_else(none)?;
                serde_json::from_str(raw).map_err(|_| none())
            }
            Self::Text(template) => rendered(template, field, event).map(Value::String),
            Self::Object(fields) => object(fields, field, event).map(Value::Object),
            Self::List(elements) => {
                let elements = elements.iter().enumerate();
                let values = elements.map(|(at, one)| one.value(&format!("{field}[{at}]"), event));
                values.collect::<Result<_, _>>().map(Value::Array)
            }
        }
    }
}

impl Rule {
    /// What it proposes for an event; `None` for an event that it does not want.
    ///
    /// # Errors
    /// It cannot say, or the event lacks what it needs: for a person to look at.
    pub fn propose(&self, event: &Event) -> Result<Option<Wanted>, Unfit> {
        if !self.when.holds(event)? {
            return Ok(None);
        }
        let text = |field: &str, template: Option<&Template>| {
            template
                .map(|template| rendered(template, field, event))
                .transpose()
        };
        let dedupe = rendered(&self.dedupe, "dedupe", event)?;
        Ok(Some(Wanted {
            id: id_of(&self.propose, &dedupe),
            arguments: object(&self.arguments, "arguments", event)?,
            on_behalf_of: text("on_behalf_of", self.on_behalf_of.as_ref())?,
            rationale: text("rationale", self.rationale.as_ref())?,
        }))
    }

    /// Events that it can want, by their attributes alone: what is routed to it. `None` for all.
    pub fn guard(&self) -> Option<Condition> {
        Condition::guard(&self.when.to_string())
    }
}

fn object(
    fields: &[(String, Mapping)],
    field: &str,
    event: &Event,
) -> Result<Map<String, Value>, Unfit> {
    let each = |(name, mapping): &(String, Mapping)| {
        let value = mapping.value(&format!("{field}.{name}"), event)?;
        Ok((name.clone(), value))
    };
    fields.iter().map(each).collect()
}

fn rendered(template: &Template, field: &str, event: &Event) -> Result<String, Unfit> {
    let text = template.render(event, Some(event.data()));
    let text = text.ok_or_else(|| Unfit::NoValue {
        field: field.to_owned(),
    })?;
    Ok(text.into_owned())
}

/// The id of a rule's command: the first 16 bytes of SHA-256 of `wayhold rule NUL kind NUL dedupe`, as a UUID of
/// version 8. It is a format: another one would propose again what was proposed before.
fn id_of(kind: &str, dedupe: &str) -> CommandId {
    let hash = Sha256::digest(format!("wayhold rule\0{kind}\0{dedupe}").as_bytes());
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(hash) {
        *to = from;
    }
    CommandId::from_bytes(
        uuid::Builder::from_custom_bytes(bytes)
            .into_uuid()
            .into_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::EventParts;

    fn event(id: &str, data: &Value) -> Event {
        Event::new(&EventParts {
            id,
            source: "/shop",
            kind: "stock.out",
            subject: "A-1",
            content_type: "application/json",
            data: data.to_string().into(),
            ..EventParts::default()
        })
        .unwrap()
    }

    fn rule(when: &str) -> Rule {
        let text = |text| Mapping::of_text(text).unwrap();
        Rule {
            name: "reorder".to_owned(),
            when: Filter::compile(when, &[]).unwrap(),
            propose: "po_create".to_owned(),
            arguments: vec![
                ("sku".to_owned(), text("{subject}")),
                ("qty".to_owned(), text("{/data/missing}")),
                ("note".to_owned(), text("for {/data/site}")),
                ("unit".to_owned(), text("EA")),
                ("rush".to_owned(), Mapping::Literal(json!(true))),
                (
                    "lines".to_owned(),
                    Mapping::List(vec![Mapping::Object(vec![(
                        "price".to_owned(),
                        text("{/data/price}"),
                    )])]),
                ),
            ],
            dedupe: Template::parse("po:{subject}:{id}").unwrap(),
            on_behalf_of: Some(Template::parse("{/data/planner}").unwrap()),
            rationale: Some(Template::parse("{subject} is out at {/data/site}").unwrap()),
        }
    }

    fn data() -> Value {
        json!({ "missing": 12, "site": "Ulm", "price": 1.5, "planner": "anna", "available": 0 })
    }

    #[test]
    fn a_rule_makes_a_proposal_of_an_event() {
        let wanted =
            rule("type == 'stock.out' && data.available <= 0").propose(&event("7", &data()));
        let wanted = wanted.unwrap().unwrap();
        assert_eq!(
            Value::Object(wanted.arguments),
            json!({
                "sku": "A-1", "qty": 12, "note": "for Ulm", "unit": "EA", "rush": true,
                "lines": [{ "price": 1.5 }],
            })
        );
        assert_eq!(wanted.on_behalf_of.as_deref(), Some("anna"));
        assert_eq!(wanted.rationale.as_deref(), Some("A-1 is out at Ulm"));
        let unwanted = rule("data.available > 0").propose(&event("7", &data()));
        assert_eq!(unwanted, Ok(None));
    }

    #[test]
    fn the_same_event_proposes_the_same_command_and_another_one_another() {
        let id = |id| {
            let wanted = rule("true").propose(&event(id, &data()));
            wanted.unwrap().unwrap().id
        };
        assert_eq!(id("7"), id("7"));
        assert_ne!(id("7"), id("8"));
        // A format: commands that were proposed before must be known again.
        let known = id_of("po_create", "po:A-1:7").to_string();
        assert_eq!(known, id("7").to_string());
        assert_eq!(
            known.chars().nth(14),
            Some('8'),
            "a UUID of version 8: {known}"
        );
        assert_ne!(id_of("a", "bc"), id_of("ab", "c"));
        assert_eq!(known.parse(), Ok(id("7")));
    }

    #[test]
    fn what_a_rule_cannot_say_is_told() {
        let lacking = |name: &str| {
            let mut data = data();
            data.as_object_mut().unwrap().remove(name);
            rule("true")
                .propose(&event("7", &data))
                .unwrap_err()
                .to_string()
        };
        let none = "the event has no value for it";
        assert_eq!(lacking("missing"), format!("arguments.qty: {none}"));
        assert_eq!(
            lacking("price"),
            format!("arguments.lines[0].price: {none}")
        );
        assert_eq!(lacking("planner"), format!("on_behalf_of: {none}"));
        let no_answer = rule("data.absent > 1").propose(&event("7", &data()));
        assert!(
            matches!(no_answer, Err(Unfit::NoAnswer(_))),
            "{no_answer:?}"
        );
    }

    #[test]
    fn events_are_kept_from_a_rule_by_what_their_attributes_say() {
        for (when, other_type, expected) in [
            (
                "type == 'stock.out' && data.available <= 0",
                "stock.in",
                Some(false),
            ),
            (
                "type == 'stock.out' && data.available <= 0",
                "stock.out",
                Some(true),
            ),
            (
                "data.a == 1 && (type == 'x' && data.b == 1)",
                "y",
                Some(false),
            ),
            ("type == 'x' || data.b == 1", "y", None),
            ("data.b == 1", "y", None),
            ("int(subject) > 1 && type == 'x'", "y", Some(false)),
        ] {
            let parts = EventParts {
                id: "1",
                source: "/s",
                kind: other_type,
                ..EventParts::default()
            };
            let guard = rule(when).guard();
            let said = guard.map(|guard| guard.holds(&parts));
            assert_eq!(said, expected.map(Ok), "{when}");
        }
    }
}
