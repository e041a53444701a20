//! The part of conditions that runs without an interpreter: comparisons of attributes with texts, and
//! their combinations.

use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};
use cel::parser::Expression;

use crate::attribute::{AttributeName, Attributes};

/// A question about an event that can always be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Predicate {
    Always(bool),
    Compare(AttributeName, Comparison, Box<str>),
    OneOf(AttributeName, Box<[Box<str>]>),
    Not(Box<Predicate>),
    And(Box<[Predicate; 2]>),
    Or(Box<[Predicate; 2]>),
}

/// How an attribute is held against a text. Texts are ordered by code points, which is the order of
/// their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    StartsWith,
    EndsWith,
    Contains,
}

impl Predicate {
    /// The same question as the expression asks; `None` where it needs the interpreter.
    pub(crate) fn of(expression: &Expression) -> Option<Self> {
        match &expression.expr {
            Expr::Literal(LiteralValue::Boolean(value)) => Some(Self::Always(*value.inner())),
            Expr::Call(call) => Self::of_call(call),
            _ => None,
        }
    }

    /// Those parts of a conjunction that need no interpreter; `None` where no part does without. Parts that need
    /// one may hold or not.
    pub(crate) fn guard_of(expression: &Expression) -> Option<Self> {
        if let Some(whole) = Self::of(expression) {
            return Some(whole);
        }
        let Expr::Call(call) = &expression.expr else {
            return None;
        };
        let (operators::LOGICAL_AND, [left, right]) =
            (call.func_name.as_str(), call.args.as_slice())
        else {
            return None;
        };
        match (Self::guard_of(left), Self::guard_of(right)) {
            (Some(left), Some(right)) => Some(Self::And(Box::new([left, right]))),
            (one, other) => one.or(other),
        }
    }

    fn of_call(call: &CallExpr) -> Option<Self> {
        match (
            call.func_name.as_str(),
            call.target.as_deref(),
            call.args.as_slice(),
        ) {
            (operators::LOGICAL_NOT, None, [inner]) => Some(Self::Not(Box::new(Self::of(inner)?))),
            (operators::LOGICAL_AND, None, [left, right]) => {
                Some(Self::And(Box::new([Self::of(left)?, Self::of(right)?])))
            }
            (operators::LOGICAL_OR, None, [left, right]) => {
                Some(Self::Or(Box::new([Self::of(left)?, Self::of(right)?])))
            }
            (operators::IN, None, [name, list]) => {
                let Expr::List(list) = &list.expr else {
                    return None;
                };
                let texts: Option<Vec<Box<str>>> = list
                    .elements
                    .iter()
                    .map(|element| text_of(element).map(Into::into))
                    .collect();
                Some(Self::OneOf(name_of(name)?, texts?.into()))
            }
            (function, Some(target), [argument]) => {
                let comparison = Comparison::of_function(function)?;
                Some(Self::Compare(
                    name_of(target)?,
                    comparison,
                    text_of(argument)?.into(),
                ))
            }
            (operator, None, [left, right]) => {
                let comparison = Comparison::of_operator(operator)?;
                if let (Some(name), Some(text)) = (name_of(left), text_of(right)) {
                    return Some(Self::Compare(name, comparison, text.into()));
                }
                Some(Self::Compare(
                    name_of(right)?,
                    comparison.mirrored(),
                    text_of(left)?.into(),
                ))
            }
            _ => None,
        }
    }

    /// An attribute and the texts without one of which it cannot hold, where it asks for such.
    pub(crate) fn needs(&self) -> Option<(&AttributeName, Vec<&str>)> {
        match self {
            Self::Compare(name, Comparison::Equal, text) => Some((name, vec![text])),
            Self::OneOf(name, texts) => Some((name, texts.iter().map(AsRef::as_ref).collect())),
            Self::And(both) => both.iter().find_map(Self::needs),
            Self::Or(either) => {
                let [one, other] = either.each_ref().map(Self::needs);
                let ((name, mut texts), (other, more)) = (one?, other?);
                texts.extend(more);
                (name == other).then_some((name, texts))
            }
            Self::Always(_) | Self::Compare(..) | Self::Not(_) => None,
        }
    }

    /// Whether it holds.
    pub(crate) fn holds(&self, event: &(impl Attributes + ?Sized)) -> bool {
        match self {
            Self::Always(value) => *value,
            Self::Compare(name, comparison, text) => comparison.holds(&event.attribute(name), text),
            Self::OneOf(name, texts) => {
                let value = event.attribute(name);
                texts.iter().any(|text| **text == *value)
            }
            Self::Not(inner) => !inner.holds(event),
            Self::And(both) => both.iter().all(|each| each.holds(event)),
            Self::Or(either) => either.iter().any(|each| each.holds(event)),
        }
    }
}

impl Comparison {
    fn of_operator(operator: &str) -> Option<Self> {
        Some(match operator {
            operators::EQUALS => Self::Equal,
            operators::NOT_EQUALS => Self::NotEqual,
            operators::LESS => Self::Less,
            operators::LESS_EQUALS => Self::LessOrEqual,
            operators::GREATER => Self::Greater,
            operators::GREATER_EQUALS => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    fn of_function(function: &str) -> Option<Self> {
        Some(match function {
            "startsWith" => Self::StartsWith,
            "endsWith" => Self::EndsWith,
            "contains" => Self::Contains,
            _ => return None,
        })
    }

    /// The comparison with its sides exchanged.
    fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            other => other,
        }
    }

    fn holds(self, value: &str, text: &str) -> bool {
        match self {
            Self::Equal => value == text,
            Self::NotEqual => value != text,
            Self::Less => value < text,
            Self::LessOrEqual => value <= text,
            Self::Greater => value > text,
            Self::GreaterOrEqual => value >= text,
            Self::StartsWith => value.starts_with(text),
            Self::EndsWith => value.ends_with(text),
            Self::Contains => value.contains(text),
        }
    }
}

fn name_of(expression: &Expression) -> Option<AttributeName> {
    match &expression.expr {
        Expr::Ident(name) => name.parse().ok(),
        _ => None,
    }
}

fn text_of(expression: &Expression) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}
