//! Filters over stored events, written in CEL: what a person asks for when looking through events or dead
//! letters. They see more than the conditions of routes do (see `condition`): also the data, and whatever facts
//! the thing has that is looked through, such as how often it was tried. They are always interpreted; nothing
//! that an event waits for depends on them.
//!
//! A filter is bounded in size and depth and may not loop, so it costs one pass over the event's data at most.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use cel::common::ast::Expr;
use cel::common::types::{CelInt, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::objects::{Key, Map};
use cel::parser::Expression;
use cel::{Context, Value};

use crate::attribute::{AttributeName, Attributes};
use crate::condition::{
    CONDITION_BYTES_MAX, CONDITION_DEPTH_MAX, ConditionFailure, InvalidCondition, answer_of,
    environment, nesting, parse,
};
use crate::event::Event;

/// The variable that holds the data: a JSON document as what it is, another text as a text, anything else as
/// null.
const DATA: &str = "data";

/// A compiled filter. Cheap to clone.
#[derive(Clone)]
pub struct Filter(Arc<Compiled>);

struct Compiled {
    text: Box<str>,
    expression: Expression,
}

/// Something that a filter may ask of what it is held against, besides its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// A whole number.
    Number(i64),
}

/// What a filter is held against.
pub trait Subject: Sync {
    /// Its event.
    fn event(&self) -> &Event;

    /// The fact of that name. Names of facts go before the event's attributes of the same name.
    fn fact(&self, name: &str) -> Option<Fact<'_>>;
}

impl Subject for Event {
    fn event(&self) -> &Event {
        self
    }

    fn fact(&self, _: &str) -> Option<Fact<'_>> {
        None
    }
}

impl Filter {
    /// Compiles a CEL expression over attributes, `data` and these facts.
    ///
    /// # Errors
    /// Says what was expected of it.
    pub fn compile(text: &str, facts: &[&str]) -> Result<Self, InvalidCondition> {
        if text.len() > CONDITION_BYTES_MAX {
            return Err(InvalidCondition::TooLong);
        }
        if nesting(text) > CONDITION_DEPTH_MAX {
            return Err(InvalidCondition::TooDeep);
        }
        let expression = parse(text)?;
        check(&expression, facts, CONDITION_DEPTH_MAX)?;
        let text = text.into();
        Ok(Self(Arc::new(Compiled { text, expression })))
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// When it has no answer, such as `data.order.total > 100` for data without an order. Who looks through many
    /// things takes that as "no".
    pub fn holds(&self, subject: &dyn Subject) -> Result<bool, ConditionFailure> {
        let scope = Scope {
            subject,
            data: OnceLock::new(),
        };
        let mut context = Context::with_env(Arc::clone(environment()));
        context.set_variable_resolver(&scope);
        answer_of(Value::resolve(&self.0.expression, &context))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.0.text).finish()
    }
}

/// Refuses what costs more than its length and one pass over the data, or can never have an answer.
fn check(
    expression: &Expression,
    facts: &[&str],
    depth_left: usize,
) -> Result<(), InvalidCondition> {
    let depth_left = depth_left.checked_sub(1).ok_or(InvalidCondition::TooDeep)?;
    let each = |operand: &Expression| check(operand, facts, depth_left);
    match &expression.expr {
        Expr::Literal(_) => Ok(()),
        Expr::Ident(name) if name == DATA || facts.contains(&name.as_str()) => Ok(()),
        Expr::Ident(name) => match name.parse::<AttributeName>() {
            Ok(_) => Ok(()),
            Err(_) => Err(InvalidCondition::Unknown(name.clone())),
        },
        Expr::Call(call) => {
            let operands = call.target.iter().map(AsRef::as_ref).chain(&call.args);
            operands.into_iter().try_for_each(each)
        }
        Expr::List(list) => list.elements.iter().try_for_each(each),
        Expr::Select(select) => each(&select.operand),
        Expr::Comprehension(_) => Err(InvalidCondition::Beyond("loops")),
        Expr::Map(_) | Expr::Struct(_) => Err(InvalidCondition::Beyond("maps and structures")),
        Expr::Unspecified => Err(InvalidCondition::Syntax("it is not complete".to_owned())),
    }
}

/// The subject as CEL's variables. An identifier that nothing has reads as the empty string, as in conditions.
struct Scope<'a> {
    subject: &'a dyn Subject,
    /// Read once, and only where it is asked for.
    data: OnceLock<Box<dyn Val>>,
}

impl VariableResolver for Scope<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let event = self.subject.event();
        if variable == DATA {
            let data = self.data.get_or_init(|| data_of(event));
            return Some(CowVal::Borrowed(&**data));
        }
        let text = match self.subject.fact(variable) {
            Some(Fact::Number(number)) => return Some(CowVal::owned(CelInt::from(number))),
            Some(Fact::Text(text)) => text,
            None => event.attribute(&variable.parse().ok()?),
        };
        Some(CowVal::owned(match text {
            Cow::Borrowed(text) => CelString::from(text),
            Cow::Owned(text) => CelString::from(text),
        }))
    }
}

/// The data of an event as a value.
fn data_of(event: &Event) -> Box<dyn Val> {
    let value = match serde_json::from_slice(event.data()) {
        Ok(json) => value_of(json),
        Err(_) => match std::str::from_utf8(event.data()) {
            Ok(text) if !text.is_empty() => Value::String(Arc::new(text.to_owned())),
            _ => Value::Null,
        },
    };
    // Every value that JSON makes has a form.
    Box::<dyn Val>::try_from(value).unwrap_or_else(|_| Box::new(CelString::from("")))
}

pub(crate) fn value_of(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(number)) => Value::Float(number),
            (None, None) => Value::Null,
        },
        serde_json::Value::String(text) => Value::String(Arc::new(text)),
        serde_json::Value::Array(values) => {
            Value::List(Arc::new(values.into_iter().map(value_of).collect()))
        }
        serde_json::Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (Key::from(name), value_of(value)));
            Value::Map(Map {
                map: Arc::new(fields.collect::<HashMap<_, _>>()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::EventParts;

    /// Something with an event and two facts.
    struct Letter(Event);

    impl Subject for Letter {
        fn event(&self) -> &Event {
            &self.0
        }

        fn fact(&self, name: &str) -> Option<Fact<'_>> {
            match name {
                "attempts" => Some(Fact::Number(3)),
                "class" => Some(Fact::Text("invalid".into())),
                _ => None,
            }
        }
    }

    const FACTS: [&str; 2] = ["attempts", "class"];

    fn letter(data: &'static [u8]) -> Letter {
        Letter(
            Event::new(&EventParts {
                id: "7",
                source: "/shop",
                kind: "com.example.order",
                subject: "order-42",
                extensions: r#"{"priority":3,"class":"mine"}"#,
                data: bytes::Bytes::from_static(data),
                ..EventParts::default()
            })
            .unwrap(),
        )
    }

    const DATA: &[u8] =
        br#"{"order":{"id":17,"total":12.5,"paid":false,"lines":[{"sku":"a"}],"note":null}}"#;

    fn holds(text: &str, data: &'static [u8]) -> Result<bool, ConditionFailure> {
        let filter =
            Filter::compile(text, &FACTS).unwrap_or_else(|error| panic!("{text}: {error}"));
        filter.holds(&letter(data))
    }

    #[test]
    fn a_filter_sees_attributes_data_and_facts() {
        for (text, expected) in [
            ("type.startsWith('com.example.') && subject != ''", true),
            ("priority == '3' && nobodysentthis == ''", true),
            ("attempts > 2 && attempts < 4", true),
            ("class == 'invalid'", true),
            ("class == 'mine'", false),
            ("data.order.id == 17", true),
            ("data.order.id == 17.0 && data.order.id < 17.5", true),
            ("data.order.total > 12 && data.order.total < 13", true),
            ("data.order.paid", false),
            ("data.order.lines[0].sku == 'a'", true),
            ("size(data.order.lines) == 1", true),
            ("data['order']['note'] == null", true),
            ("has(data.order.total)", true),
            ("has(data.order.discount)", false),
            ("'id' in data.order", true),
            ("data.order.id in [1, 17]", true),
        ] {
            assert_eq!(holds(text, DATA), Ok(expected), "{text}");
        }
        assert_eq!(holds("data.contains('urgent')", b"most urgent"), Ok(true));
        assert_eq!(holds("data == null", b"\xff\x00"), Ok(true));
        assert_eq!(holds("data == null", b""), Ok(true));
        assert_eq!(holds("data == 7", b"7"), Ok(true));
    }

    #[test]
    fn without_an_answer_it_says_why() {
        for text in [
            "data.customer.id == 1",
            "data.order.lines[7].sku == 'a'",
            "data.order.id.deeper == 1",
            "subject",
            "attempts",
            "data",
        ] {
            assert!(holds(text, DATA).is_err(), "{text}");
        }
    }

    #[test]
    fn what_costs_too_much_or_has_no_meaning_is_refused_at_once() {
        for text in [
            "data.order.lines.all(l, l.sku == 'a')".to_owned(),
            "{'a': 1} == {}".to_owned(),
            "Type == ''".to_owned(),
            "type =".to_owned(),
            " ".repeat(CONDITION_BYTES_MAX + 1),
            format!("data{} == 1", ".a".repeat(CONDITION_DEPTH_MAX)),
        ] {
            assert!(Filter::compile(&text, &FACTS).is_err(), "{text}");
        }
        let unknown = Filter::compile("Class == ''", &FACTS).unwrap_err();
        assert!(unknown.to_string().contains("Class"), "{unknown}");
    }

    proptest! {
        #[test]
        fn no_filter_and_no_data_do_harm(
            text in "[a-z '\"()!=&|.,0-9\\[\\]{}?:+-]{0,80}",
            data in "[a-z0-9\\[\\]{}:,\". ]{0,60}",
        ) {
            let parts = EventParts {
                id: "1", source: "/s", kind: "t", data: data.into_bytes().into(), ..EventParts::default()
            };
            let event = Event::new(&parts).unwrap();
            if let Ok(filter) = Filter::compile(&text, &FACTS) {
                drop(filter.holds(&event));
            }
        }
    }
}
