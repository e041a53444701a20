//! Conditions over an event's attributes, written in CEL (Common Expression Language).
//!
//! They are compiled when the configuration is read. Comparisons of an attribute with a text,
//! `startsWith`, `endsWith`, `contains`, `in [..]`, `&&`, `||` and `!` become a predicate that runs
//! without the interpreter; everything else is interpreted. Both give the same answers.
//!
//! A condition is bounded in size and depth, and may not loop, select fields or build structures, so
//! that its cost is at most proportional to its length.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use cel::common::ast::Expr;
use cel::common::types::CelString;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::parser::Expression;
use cel::{Context, Env, Value};
use thiserror::Error;

use crate::attribute::{AttributeName, Attributes};
use crate::predicate::Predicate;

/// Longest condition, in bytes: several screens of comparisons.
pub const CONDITION_BYTES_MAX: usize = 2048;

/// Deepest nesting of a condition: parser and interpreter recurse.
pub const CONDITION_DEPTH_MAX: usize = 32;

/// A compiled condition. Cheap to clone.
#[derive(Clone)]
pub struct Condition(Arc<Compiled>);

struct Compiled {
    text: Box<str>,
    form: Form,
}

enum Form {
    Simple(Predicate),
    Interpreted(Expression),
}

/// A text that is no condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidCondition {
    /// It is longer than any that a person would read.
    #[error("expected at most {CONDITION_BYTES_MAX} bytes")]
    TooLong,
    /// It is nested deeper than parser and interpreter may recurse.
    #[error("expected at most {CONDITION_DEPTH_MAX} levels of nesting")]
    TooDeep,
    /// It is not CEL.
    #[error("expected a CEL expression: {0}")]
    Syntax(String),
    /// It names something that is no attribute.
    #[error(
        "{0}: expected an attribute such as type, source or subject; conditions do not see data"
    )]
    Name(String),
    /// It loops, selects a field or builds a structure.
    #[error("expected comparisons of attributes, without {0}")]
    Beyond(&'static str),
}

/// Why a condition has no answer for an event.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConditionFailure {
    /// It answers with something else than true or false.
    #[error("expected true or false, but it gives {0}")]
    NotBoolean(&'static str),
    /// The interpreter gave up.
    #[error("{0}")]
    Evaluation(String),
}

impl Condition {
    /// Compiles a CEL expression.
    ///
    /// # Errors
    /// Says what was expected of it.
    pub fn compile(text: &str) -> Result<Self, InvalidCondition> {
        if text.len() > CONDITION_BYTES_MAX {
            return Err(InvalidCondition::TooLong);
        }
        if nesting(text) > CONDITION_DEPTH_MAX {
            return Err(InvalidCondition::TooDeep);
        }
        let expression = environment()
            .parser()
            .parse(text)
            .map_err(|errors| InvalidCondition::Syntax(first_sentence(&errors)))?;
        check(&expression, CONDITION_DEPTH_MAX)?;
        let form = match Predicate::of(&expression) {
            Some(predicate) => Form::Simple(predicate),
            None => Form::Interpreted(expression),
        };
        Ok(Self(Arc::new(Compiled {
            text: text.into(),
            form,
        })))
    }

    /// Whether it holds for an event.
    ///
    /// # Errors
    /// When it has no answer, such as `int(subject) > 3` for a subject that is no number.
    pub fn holds(&self, event: &(impl Attributes + ?Sized)) -> Result<bool, ConditionFailure> {
        match &self.0.form {
            Form::Simple(predicate) => Ok(predicate.holds(event)),
            Form::Interpreted(expression) => interpret(expression, event),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.0.text).finish()
    }
}

/// CEL's standard functions, made once.
fn environment() -> &'static Arc<Env> {
    static ENVIRONMENT: OnceLock<Arc<Env>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| Arc::new(Env::stdlib()))
}

/// Deepest nesting of brackets, quoted ones included: a bound that is known before parsing.
fn nesting(text: &str) -> usize {
    let mut open = 0_usize;
    let mut deepest = 0;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

fn first_sentence(errors: &cel::ParseErrors) -> String {
    let Some(error) = errors.errors.first() else {
        return "it cannot be read".to_owned();
    };
    let (line, column) = error.pos;
    format!("{} (line {line}, column {column})", error.msg)
}

/// Refuses what costs more than its length, or can never have an answer.
fn check(expression: &Expression, depth_left: usize) -> Result<(), InvalidCondition> {
    let depth_left = depth_left.checked_sub(1).ok_or(InvalidCondition::TooDeep)?;
    match &expression.expr {
        Expr::Literal(_) => Ok(()),
        Expr::Ident(name) => match name.parse::<AttributeName>() {
            Ok(_) => Ok(()),
            Err(_) => Err(InvalidCondition::Name(name.clone())),
        },
        Expr::Call(call) => {
            let operands = call.target.iter().map(AsRef::as_ref).chain(&call.args);
            operands
                .into_iter()
                .try_for_each(|operand| check(operand, depth_left))
        }
        Expr::List(list) => list
            .elements
            .iter()
            .try_for_each(|element| check(element, depth_left)),
        Expr::Select(_) => Err(InvalidCondition::Beyond(
            "selection of fields; conditions do not see data",
        )),
        Expr::Comprehension(_) => Err(InvalidCondition::Beyond("loops")),
        Expr::Map(_) | Expr::Struct(_) => Err(InvalidCondition::Beyond("maps and structures")),
        Expr::Unspecified => Err(InvalidCondition::Syntax("it is not complete".to_owned())),
    }
}

/// The event's attributes as CEL's variables. An identifier that the event has no attribute for reads
/// as the empty string.
struct Scope<'a, A: ?Sized>(&'a A);

impl<A: Attributes + ?Sized> VariableResolver for Scope<'_, A> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let name = variable.parse().ok()?;
        Some(CowVal::owned(match self.0.attribute(&name) {
            Cow::Borrowed(text) => CelString::from(text),
            Cow::Owned(text) => CelString::from(text),
        }))
    }
}

fn interpret(
    expression: &Expression,
    event: &(impl Attributes + ?Sized),
) -> Result<bool, ConditionFailure> {
    let scope = Scope(event);
    let mut context = Context::with_env(Arc::clone(environment()));
    context.set_variable_resolver(&scope);
    match Value::resolve(expression, &context) {
        Ok(Value::Bool(answer)) => Ok(answer),
        Ok(other) => Err(ConditionFailure::NotBoolean(kind_of(&other))),
        Err(error) => Err(ConditionFailure::Evaluation(error.to_string())),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::String(_) => "a text",
        Value::List(_) => "a list",
        Value::Null => "null",
        _ => "another kind of value",
    }
}
