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
use cel::{Context, Env, ResolveResult, Value};
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
    /// It names something that what is filtered does not have.
    #[error(
        "{0}: expected data, an attribute such as type or subject, or a fact that this list has"
    )]
    Unknown(String),
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
        let expression = parse(text)?;
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

    /// An attribute and the texts of it without one of which this cannot hold, where it has an answer for every
    /// event and asks for such.
    pub(crate) fn needs(&self) -> Option<(&AttributeName, Vec<&str>)> {
        match &self.0.form {
            Form::Simple(predicate) => predicate.needs(),
            Form::Interpreted(_) => None,
        }
    }

    /// What an expression that also sees data says by attributes alone: where this does not hold, neither does the
    /// whole, and it always has an answer. `None` where attributes alone say nothing.
    pub fn guard(text: &str) -> Option<Self> {
        let expression = parse(text).ok()?;
        let form = Form::Simple(Predicate::guard_of(&expression)?);
        let text = text.into();
        Some(Self(Arc::new(Compiled { text, form })))
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
pub(crate) fn environment() -> &'static Arc<Env> {
    static ENVIRONMENT: OnceLock<Arc<Env>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| Arc::new(Env::stdlib()))
}

/// Deepest nesting of brackets, quoted ones included: a bound that is known before parsing.
pub(crate) fn nesting(text: &str) -> usize {
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

pub(crate) fn parse(text: &str) -> Result<Expression, InvalidCondition> {
    environment()
        .parser()
        .parse(text)
        .map_err(|errors| InvalidCondition::Syntax(first_sentence(&errors)))
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
    answer_of(Value::resolve(expression, &context))
}

/// What the interpreter's result says.
pub(crate) fn answer_of(result: ResolveResult) -> Result<bool, ConditionFailure> {
    match result {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::EventParts;

    fn parts() -> EventParts<'static> {
        EventParts {
            id: "7",
            source: "/shop",
            kind: "com.example.order",
            subject: "order-42",
            extensions: r#"{"priority":3,"urgent":true,"tenant":"acme"}"#,
            ..EventParts::default()
        }
    }

    fn compile(text: &str) -> Condition {
        Condition::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn conditions_read_attributes_as_texts() {
        for (text, expected, simple) in [
            ("type == 'com.example.order'", true, true),
            ("'com.example.order' == type", true, true),
            (
                "type.startsWith(\"com.example.\") && source != \"/test\"",
                true,
                true,
            ),
            (
                "subject.endsWith('42') || subject.contains('x')",
                true,
                true,
            ),
            ("!(subject in ['a', 'order-42'])", false, true),
            ("subject in []", false, true),
            ("'b' > subject", false, true),
            ("id < '8' && id >= '7'", true, true),
            ("true", true, true),
            ("dataschema == ''", true, true),
            ("tenant == 'acme'", true, true),
            ("priority == '3' && urgent == 'true'", true, true),
            ("nobodysentthis == ''", true, true),
            ("key == ''", true, true),
            ("size(subject) == 8", true, false),
            ("int(priority) > 2", true, false),
            ("priority == 3", false, false),
            ("subject == 'order-' + '42'", true, false),
            ("tenant == 'acme' ? urgent == 'true' : false", true, false),
            ("source == type", false, false),
            ("subject in ['a', type]", false, false),
        ] {
            let condition = compile(text);
            assert_eq!(condition.holds(&parts()), Ok(expected), "{text}");
            assert_eq!(
                matches!(condition.0.form, Form::Simple(_)),
                simple,
                "{text}"
            );
        }
    }

    #[test]
    fn an_event_answers_as_the_parts_it_was_made_from() {
        let event = crate::Event::new(&parts()).unwrap();
        for text in [
            "priority == '3'",
            "int(priority) == 3",
            "tenant != ''",
            "key == ''",
        ] {
            assert_eq!(compile(text).holds(&event), Ok(true), "{text}");
        }
    }

    #[test]
    fn a_condition_without_answer_says_why() {
        for (text, expected) in [
            ("subject", "expected true or false, but it gives a text"),
            (
                "size(subject)",
                "expected true or false, but it gives a number",
            ),
            ("[type]", "expected true or false, but it gives a list"),
        ] {
            assert_eq!(
                compile(text).holds(&parts()).unwrap_err().to_string(),
                expected
            );
        }
        for text in [
            "int(subject) > 3",
            "subject > 3",
            "1 / 0 == 1",
            "unknown(subject)",
        ] {
            let failure = compile(text).holds(&parts()).unwrap_err();
            assert!(
                matches!(failure, ConditionFailure::Evaluation(_)),
                "{text}: {failure}"
            );
        }
    }

    #[test]
    fn what_costs_too_much_or_has_no_meaning_is_refused_at_once() {
        let beyond = InvalidCondition::Beyond;
        for (text, expected) in [
            ("[1].all(x, x > 0)".to_owned(), beyond("loops")),
            ("[1].map(x, x)".to_owned(), beyond("loops")),
            (
                "{'a': 1}.a == 1".to_owned(),
                beyond("selection of fields; conditions do not see data"),
            ),
            ("{'a': 1} == {}".to_owned(), beyond("maps and structures")),
            (
                "Type == ''".to_owned(),
                InvalidCondition::Name("Type".to_owned()),
            ),
            (
                "data == ''".to_owned(),
                InvalidCondition::Name("data".to_owned()),
            ),
            (
                "partition_key == ''".to_owned(),
                InvalidCondition::Name("partition_key".to_owned()),
            ),
            (" ".repeat(2049), InvalidCondition::TooLong),
            (
                format!("{}true{}", "(".repeat(33), ")".repeat(33)),
                InvalidCondition::TooDeep,
            ),
            (
                format!("''{} == ''", " + ''".repeat(33)),
                InvalidCondition::TooDeep,
            ),
        ] {
            assert_eq!(Condition::compile(&text).map(drop), Err(expected), "{text}");
        }
        for text in ["", "type =", "type = 'x'", "'", "type == 'x' type", "\u{0}"] {
            let refusal = Condition::compile(text).map(drop);
            assert!(
                matches!(refusal, Err(InvalidCondition::Syntax(_))),
                "{text:?}: {refusal:?}"
            );
        }
    }

    #[test]
    fn the_longest_condition_can_be_read() {
        for text in [
            format!("type == ''{}", " || id == 'x'".repeat(150)),
            format!("!{}true", "!".repeat(2000)),
            format!("type in [{}'']", "'',".repeat(600)),
        ] {
            compile(&text).holds(&parts()).unwrap();
        }
        // Deep by operators, not by brackets: the parser itself must survive them.
        drop(Condition::compile(&"1+".repeat(1023)));
        drop(Condition::compile(&format!("id{}", ".a".repeat(1022))));
        drop(Condition::compile(&format!("id{}", "[0]".repeat(680))));
        drop(Condition::compile(&"a?".repeat(1023)));
        drop(Condition::compile(&"-".repeat(2048)));
    }

    /// Conditions that run without the interpreter.
    fn simple_condition() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec![
            "type", "source", "subject", "tenant", "absent", "priority",
        ]);
        let text = prop::sample::select(vec![
            "",
            "a",
            "b",
            "/shop",
            "acme",
            "3",
            "com.",
            "\u{e9}",
            "\u{1F4A9}",
        ]);
        let operator = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
        let function = prop::sample::select(vec!["startsWith", "endsWith", "contains"]);
        let leaf = prop_oneof![
            (name.clone(), operator.clone(), text.clone())
                .prop_map(|(name, operator, text)| format!("{name} {operator} '{text}'")),
            (text.clone(), operator, name.clone())
                .prop_map(|(text, operator, name)| format!("'{text}' {operator} {name}")),
            (name.clone(), function, text.clone())
                .prop_map(|(name, function, text)| format!("{name}.{function}('{text}')")),
            (name, text.clone(), text)
                .prop_map(|(name, one, two)| format!("{name} in ['{one}', '{two}']")),
            Just("true".to_owned()),
        ];
        leaf.prop_recursive(3, 12, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
                inner.prop_map(|a| format!("!({a})")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn both_forms_give_the_same_answer(
            text in simple_condition(),
            kind in prop::sample::select(vec!["a", "b", "com.example", "\u{e9}"]),
            subject in prop::sample::select(vec!["", "a", "acme", "\u{1F4A9}"]),
        ) {
            let event = EventParts { kind, subject, ..parts() };
            let condition = compile(&text);
            prop_assert!(matches!(condition.0.form, Form::Simple(_)), "{}", text);
            let expression = environment().parser().parse(&text).unwrap();
            prop_assert_eq!(condition.holds(&event), interpret(&expression, &event), "{}", text);
        }

        #[test]
        fn no_text_does_harm(text in "[a-z '\"()!=&|.,0-9\\[\\]{}?:+-]{0,80}") {
            if let Ok(condition) = Condition::compile(&text) {
                drop(condition.holds(&parts()));
            }
        }
    }
}
