//! Arguments that refer to the results of earlier commands: `{"$result": "<command>", "path": "/id"}` stands for what
//! that command's target answered there. They are resolved when the command is sent, and held against the schema
//! then.

use serde_json::{Map, Value};
use wayhold_model::command::CommandId;

use super::desk::CommandError;
use super::proposal::InvalidProposal;
use crate::config::CommandKind;

/// The name that makes an object a reference.
const RESULT: &str = "$result";

/// Where in the answer it leads.
const PATH: &str = "path";

/// Deepest nesting of arguments that is looked through.
const DEPTH_MAX: usize = 64;

/// The commands to whose results arguments refer.
///
/// # Errors
/// Something looks like a reference and is none.
pub fn references(arguments: &Value) -> Result<Vec<CommandId>, InvalidProposal> {
    let mut found = Vec::new();
    visit(arguments, 0, &mut |id, _| found.push(id))?;
    Ok(found)
}

fn visit(
    value: &Value,
    depth: usize,
    found: &mut dyn FnMut(CommandId, &str),
) -> Result<(), InvalidProposal> {
    if depth > DEPTH_MAX {
        let expected = format!("expected at most {DEPTH_MAX} levels");
        return Err(InvalidProposal::new("arguments", expected));
    }
    match value {
        Value::Object(fields) if fields.contains_key(RESULT) => {
            let (id, path) = read(fields)?;
            found(id, path);
            Ok(())
        }
        Value::Object(fields) => fields
            .values()
            .try_for_each(|value| visit(value, depth + 1, found)),
        Value::Array(values) => values
            .iter()
            .try_for_each(|value| visit(value, depth + 1, found)),
        _ => Ok(()),
    }
}

fn read(fields: &Map<String, Value>) -> Result<(CommandId, &str), InvalidProposal> {
    let expected = || {
        InvalidProposal::new(
            "arguments",
            "expected {\"$result\": \"<id of a command>\", \"path\": \"/pointer\"}",
        )
    };
    let id = fields.get(RESULT).and_then(Value::as_str);
    let id = id.and_then(|id| id.parse().ok()).ok_or_else(expected)?;
    let path = fields.get(PATH).and_then(Value::as_str).unwrap_or_default();
    let is_pointer = path.is_empty() || path.starts_with('/');
    (is_pointer && fields.keys().all(|name| name == RESULT || name == PATH))
        .then_some((id, path))
        .ok_or_else(expected)
}

/// The same arguments with every reference replaced by what `result_of` says that command's target answered.
///
/// # Errors
/// Names the command whose answer has nothing there.
pub fn resolved(
    arguments: &Value,
    result_of: &dyn Fn(CommandId) -> Option<Value>,
) -> Result<Value, String> {
    Ok(match arguments {
        Value::Object(fields) if fields.contains_key(RESULT) => {
            let (id, path) = read(fields).map_err(|error| error.to_string())?;
            let result = result_of(id).ok_or_else(|| format!("{id} has no result"))?;
            let found = result.pointer(path).cloned();
            found.ok_or_else(|| format!("the result of {id} has nothing at {path:?}"))?
        }
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| Ok((name.clone(), resolved(value, result_of)?)))
                .collect::<Result<_, String>>()?,
        ),
        Value::Array(values) => Value::Array(
            values
                .iter()
                .map(|value| resolved(value, result_of))
                .collect::<Result<_, String>>()?,
        ),
        other => other.clone(),
    })
}

/// Holds arguments against the schema of their kind.
///
/// # Errors
/// Tells what does not fit.
pub fn fits(kind: &CommandKind, arguments: &Value, max: usize) -> Result<(), CommandError> {
    let Some(schema) = &kind.arguments else {
        return Ok(());
    };
    let faults = schema.faults(arguments, max);
    if faults.is_empty() {
        return Ok(());
    }
    Err(CommandError::Arguments {
        kind: kind.name.clone(),
        faults,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_anywhere_and_replaced_by_what_was_answered() {
        let id = CommandId::from_bytes([7; 16]);
        let arguments = json!({
            "ticket": {"$result": id.to_string(), "path": "/id"},
            "lines": [{"n": 1}, {"$result": id.to_string()}],
        });
        assert_eq!(references(&arguments).unwrap(), [id, id]);
        let answer = json!({"id": 42});
        let result_of = |asked| (asked == id).then(|| answer.clone());
        let whole = resolved(&arguments, &result_of).unwrap();
        assert_eq!(
            whole,
            json!({"ticket": 42, "lines": [{"n": 1}, {"id": 42}]})
        );
        let nothing = json!({"a": {"$result": id.to_string(), "path": "/no"}});
        assert!(
            resolved(&nothing, &result_of)
                .unwrap_err()
                .contains("nothing at \"/no\"")
        );
        assert!(
            resolved(&arguments, &|_| None)
                .unwrap_err()
                .contains("has no result")
        );
    }

    #[test]
    fn what_only_looks_like_a_reference_is_refused() {
        let id = CommandId::from_bytes([7; 16]).to_string();
        for fields in [
            json!({"$result": 7}),
            json!({"$result": "po-1"}),
            json!({"$result": id, "path": "id"}),
            json!({"$result": id, "default": 1}),
        ] {
            assert!(references(&json!({"a": [fields]})).is_err());
        }
    }
}
