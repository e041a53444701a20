//! What a target answered to the question whether it executed a command.

use serde_json::Value;
use wayhold_model::pointer::Pointer;
use wayhold_model::{Outcome, OutcomeKind};

use crate::config::commands::ReconcileConfig;

/// What asking a target, or looking through what it has, tells of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It was executed as it was sent.
    Confirmed,
    /// It was not.
    Absent,
    /// It was, with something else in it; names the arguments.
    Different(Vec<String>),
    /// The target gave no answer that tells.
    Unreachable(String),
}

impl Finding {
    /// Its name in records and answers.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Absent => "absent",
            Self::Different(_) => "different",
            Self::Unreachable(_) => "unreachable",
        }
    }

    /// Reads it out of the answer to the question.
    pub(super) fn of(
        config: &ReconcileConfig,
        outcome: &Outcome,
        answer: &[u8],
        arguments: &str,
    ) -> Self {
        match outcome.kind() {
            OutcomeKind::Delivered => {}
            OutcomeKind::Refused | OutcomeKind::NotExecuted | OutcomeKind::Unknown => {
                let status = outcome.failure().and_then(|failure| failure.status);
                let is_absent = |status: i32| {
                    u32::try_from(status).is_ok_and(|status| config.absent.contains(&status))
                };
                if status.is_some_and(is_absent) {
                    return Self::Absent;
                }
                let reason = outcome.failure().map(|failure| failure.reason.clone());
                return Self::Unreachable(reason.unwrap_or_default());
            }
        }
        let value = |pointer: &Pointer, json: &[u8]| -> Option<Value> {
            serde_json::from_str(pointer.raw_in(json)?).ok()
        };
        let differs = |(ours, theirs): &&(Pointer, Pointer)| {
            let (sent, there) = (value(ours, arguments.as_bytes()), value(theirs, answer));
            !is_same(sent.as_ref(), there.as_ref())
        };
        let different: Vec<_> = config.compare.iter().filter(differs).collect();
        if different.is_empty() {
            return Self::Confirmed;
        }
        Self::Different(different.iter().map(|(ours, _)| ours.to_string()).collect())
    }
}

/// Whether two values say the same: `12`, `12.0` and `"12"` do, since targets differ in how they write numbers.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse::<f64>().ok(),
        _ => None,
    };
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other || number(one).zip(number(other)).is_some_and(|(a, b)| a == b)
        }
        (None, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_say_the_same_however_the_target_writes_numbers() {
        for (one, other, same) in [
            (Some(json!(12)), Some(json!("12")), true),
            (Some(json!(12.50)), Some(json!("12.5")), true),
            (Some(json!("SUP-7")), Some(json!("SUP-7")), true),
            (None, None, true),
            (Some(json!(12)), Some(json!(13)), false),
            (Some(json!("SUP-7")), Some(json!("sup-7")), false),
            (Some(json!(12)), None, false),
            (Some(json!(true)), Some(json!(1)), false),
        ] {
            assert_eq!(
                is_same(one.as_ref(), other.as_ref()),
                same,
                "{one:?} {other:?}"
            );
        }
    }
}
