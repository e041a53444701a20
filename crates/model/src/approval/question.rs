//! The condition of a policy, in CEL over the facts of a command. Unlike a route's condition it sees arguments as what
//! they are, numbers included, and is always interpreted: nothing hot depends on it.
//!
//! It is bounded in length and depth and may not loop or build structures, so it costs one pass over the arguments
//! at most. A question without an answer is for the caller to take as the strictest.

use std::fmt;
use std::sync::Arc;

use cel::common::ast::Expr;
use cel::common::types::CelString;
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::parser::Expression;
use cel::{Context, Value};
use thiserror::Error;

use super::amount::Amount;
use super::facts::Facts;
use crate::condition::{
    CONDITION_BYTES_MAX, CONDITION_DEPTH_MAX, ConditionFailure, InvalidCondition, answer_of,
    environment, nesting, parse,
};
use crate::filter::value_of;

/// What a question may name.
pub const NAMES: [&str; 11] = [
    "kind",
    "arguments",
    "amount",
    "principal",
    "principal_type",
    "labels",
    "on_behalf_of",
    "model",
    "risk",
    "reversibility",
    "destination",
];

/// A compiled question. Cheap to clone.
#[derive(Clone)]
pub struct Question(Arc<Compiled>);

struct Compiled {
    text: Box<str>,
    expression: Expression,
}

/// A text that is no question.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidQuestion {
    /// It is no expression, or one that could cost too much.
    #[error(transparent)]
    Condition(#[from] InvalidCondition),
    /// It names something that no command has.
    #[error("{0}: expected one of {names}", names = NAMES.join(", "))]
    Name(String),
}

impl Question {
    /// Compiles a CEL expression over [`NAMES`].
    ///
    /// # Errors
    /// Says what was expected of it.
    pub fn compile(text: &str) -> Result<Self, InvalidQuestion> {
        if text.len() > CONDITION_BYTES_MAX {
            return Err(InvalidCondition::TooLong.into());
        }
        if nesting(text) > CONDITION_DEPTH_MAX {
            return Err(InvalidCondition::TooDeep.into());
        }
        let expression = parse(text)?;
        check(&expression, CONDITION_DEPTH_MAX)?;
        let text = text.into();
        Ok(Self(Arc::new(Compiled { text, expression })))
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// When it has no answer, such as `arguments.amount > 500` for arguments without an amount, or with one that is a
    /// text.
    pub fn holds(&self, facts: &Facts) -> Result<bool, ConditionFailure> {
        let scope = Scope(facts);
        let mut context = Context::with_env(Arc::clone(environment()));
        context.set_variable_resolver(&scope);
        answer_of(Value::resolve(&self.0.expression, &context))
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.0.text
    }
}

impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Question {}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Question").field(&self.0.text).finish()
    }
}

/// Refuses what costs more than its length and one pass over the arguments, or can never have an answer.
fn check(expression: &Expression, depth_left: usize) -> Result<(), InvalidQuestion> {
    let depth_left = depth_left.checked_sub(1).ok_or(InvalidCondition::TooDeep)?;
    let each = |operand: &Expression| check(operand, depth_left);
    match &expression.expr {
        Expr::Literal(_) => Ok(()),
        Expr::Ident(name) if NAMES.contains(&name.as_str()) => Ok(()),
        Expr::Ident(name) => Err(InvalidQuestion::Name(name.clone())),
        Expr::Call(call) => {
            let operands = call.target.iter().map(AsRef::as_ref).chain(&call.args);
            operands.into_iter().try_for_each(each)
        }
        Expr::List(list) => list.elements.iter().try_for_each(each),
        Expr::Select(select) => each(&select.operand),
        Expr::Comprehension(_) => Err(InvalidCondition::Beyond("loops").into()),
        Expr::Map(_) | Expr::Struct(_) => {
            Err(InvalidCondition::Beyond("maps and structures").into())
        }
        Expr::Unspecified => Err(InvalidCondition::Syntax("it is not complete".to_owned()).into()),
    }
}

/// The facts as CEL's variables.
struct Scope<'a>(&'a Facts);

impl VariableResolver for Scope<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let facts = self.0;
        let text = match variable {
            "kind" => facts.kind.as_str(),
            "principal" => &facts.principal.id,
            "principal_type" => facts.principal.kind.name(),
            "on_behalf_of" => &facts.on_behalf_of,
            "model" => &facts.model,
            "risk" => facts.risk.name(),
            "reversibility" => facts.reversibility.name(),
            "destination" => &facts.destination,
            "amount" => return boxed(amount_of(facts.amount)),
            "arguments" => return boxed(value_of(facts.arguments.clone())),
            "labels" => {
                let labels = facts.labels.iter().cloned();
                let labels = labels.map(|label| Value::String(Arc::new(label)));
                return boxed(Value::List(Arc::new(labels.collect())));
            }
            _ => return None,
        };
        Some(CowVal::owned(CelString::from(text)))
    }
}

/// A value as the interpreter takes it; `None`, which it takes as a name without a value, where it has no form.
fn boxed<'b>(value: Value) -> Option<CowVal<'b, 'b>> {
    Box::<dyn Val>::try_from(value).ok().map(CowVal::Owned)
}

/// A whole number where it is one, so that comparisons are exact; no amount is null, which compares with no number.
fn amount_of(amount: Option<Amount>) -> Value {
    match amount {
        None => Value::Null,
        Some(amount) => match (amount.whole(), amount.to_string().parse()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Ok(number)) => Value::Float(number),
            (None, Err(_)) => Value::Null,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::facts::actor_for_tests;
    use super::*;
    use crate::command::{Reversibility, Risk};
    use crate::ledger::ActorKind;

    fn facts() -> Facts {
        Facts {
            kind: "po_create".to_owned(),
            arguments: json!({
                "amount": 600, "price": 1.5, "sku": "A-1", "lines": [{"qty": 3}], "big": u64::MAX,
                "text": "600", "nothing": null,
            }),
            amount: Amount::parse("600"),
            principal: actor_for_tests("replenish", ActorKind::Model),
            labels: vec!["propose".to_owned(), "night".to_owned()],
            on_behalf_of: "anna".to_owned(),
            model: "some-model".to_owned(),
            risk: Risk::Medium,
            reversibility: Reversibility::Compensatable,
            destination: "erp".to_owned(),
        }
    }

    fn ask(text: &str) -> Result<bool, ConditionFailure> {
        let question = Question::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        question.holds(&facts())
    }

    #[test]
    fn questions_see_arguments_as_what_they_are() {
        for (text, expected) in [
            ("kind == 'po_create' && arguments.amount > 500", true),
            ("arguments.amount > 600", false),
            ("arguments.amount >= 599.5", true),
            ("arguments.price < 2", true),
            ("arguments.lines[0].qty == 3", true),
            ("size(arguments.lines) == 1", true),
            ("arguments['sku'] == 'A-1'", true),
            ("arguments.sku.startsWith('A')", true),
            ("has(arguments.sku) && !has(arguments.absent)", true),
            ("arguments.big > 9223372036854775807", true),
            ("amount == 600 && amount < 600.5", true),
            (
                "principal == 'replenish' && principal_type == 'model'",
                true,
            ),
            ("'night' in labels", true),
            ("on_behalf_of == 'anna'", true),
            ("model != ''", true),
            ("risk in ['medium', 'high']", true),
            ("reversibility == 'irreversible'", false),
            ("destination == 'erp' ? true : false", true),
            ("kind == 'other' && arguments.absent > 1", false),
            ("arguments.nothing == null", true),
            ("true", true),
        ] {
            assert_eq!(ask(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_question_without_an_answer_says_so() {
        for text in [
            "arguments.absent > 500",
            "arguments.text > 500",
            "arguments.nothing > 500",
            "arguments.lines[7].qty > 1",
            "arguments.sku.deep > 1",
            "amount",
            "arguments",
            "1 / 0 == 1",
            "9223372036854775807 + arguments.amount > 0",
        ] {
            assert!(ask(text).is_err(), "{text}: {:?}", ask(text));
        }
        let none = Facts {
            amount: None,
            ..facts()
        };
        for text in ["amount > 500", "amount <= 500", "amount + 1 > 0"] {
            let answer = Question::compile(text).unwrap().holds(&none);
            assert!(answer.is_err(), "{text}: {answer:?}");
        }
    }

    #[test]
    fn a_text_that_is_no_question_is_refused() {
        for (text, expected) in [
            (
                "amont > 5",
                "amont: expected one of kind, arguments, amount",
            ),
            ("type == 'x'", "type: expected one of"),
            ("[1].all(x, x > 0)", "without loops"),
            ("{'a': 1} == arguments", "without maps"),
            ("kind ==", "expected a CEL expression"),
            ("", "expected a CEL expression"),
        ] {
            let error = Question::compile(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Question::compile(&" ".repeat(2049)).is_err());
        assert!(Question::compile(&format!("{}true{}", "(".repeat(33), ")".repeat(33))).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_text_does_harm(text in "(amount|arguments|kind|[a-z '\"()!=&|.,0-9\\[\\]{}?:+*-]){0,40}") {
            if let Ok(question) = Question::compile(&text) {
                drop(question.holds(&facts()));
            }
        }
    }
}
