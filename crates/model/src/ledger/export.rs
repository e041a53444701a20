//! An export: the files by which somebody who has nothing else checks the ledger. `docs/ledger-format.md` says what
//! is in each, for whoever writes a verifier of their own.

use std::str::FromStr;

use serde_json::{Value, json};
use thiserror::Error;

use super::canonical;
use super::hash::Hash;
use super::note::VerifierKey;

/// Records in canonical form, one a line, by `idx`.
pub const RECORDS: &str = "records.jsonl";

/// Leaf hashes of all records, those that are no longer held too, one a line.
pub const LEAVES: &str = "leaves";

/// The signed checkpoint over every record.
pub const CHECKPOINT: &str = "checkpoint";

/// The ledger's keys, and the first record that is held.
pub const KEYS: &str = "keys.json";

/// Folder of payloads, each named by its commitment.
pub const PAYLOADS: &str = "payloads";

/// Behind a payload's name: the file of its salt, in hexadecimal digits and a line break.
pub const SALT_SUFFIX: &str = ".salt";

/// What `keys.json` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first record that is held: 0, or where the last retention ended.
    pub first: u64,
    /// Every key that ever signed, as verifier keys.
    pub keys: Vec<VerifierKey>,
}

/// A `keys.json` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected an object with \"first\", a number, and \"keys\", a list of verifier keys")]
pub struct InvalidKeys;

impl Keys {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(VerifierKey::to_string).collect();
        format!("{}\n", json!({ "first": self.first, "keys": keys }))
    }
}

impl FromStr for Keys {
    type Err = InvalidKeys;

    fn from_str(text: &str) -> Result<Self, InvalidKeys> {
        let value = canonical::parse(text.as_bytes()).map_err(|_| InvalidKeys)?;
        let first = value.get("first").and_then(Value::as_u64);
        let first = first.filter(|first| *first < canonical::INTEGER_END);
        let keys = value.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or(InvalidKeys)?.iter().map(|key| {
            let key = key.as_str().ok_or(InvalidKeys)?;
            key.parse().map_err(|_| InvalidKeys)
        });
        Ok(Self {
            first: first.ok_or(InvalidKeys)?,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

/// Reads the leaf hashes; `None` where a line is none.
pub fn read_leaves(text: &str) -> Option<Vec<Hash>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let lines = text.strip_suffix('\n')?;
    lines.split('\n').map(|line| line.parse().ok()).collect()
}

/// Calls `found` with every payload that a record's body names: each object in it with a member `commit`.
pub fn commitments(body: &Value, found: &mut impl FnMut(Hash)) {
    match body {
        Value::Object(members) => {
            if let Some(commit) = members.get("commit").and_then(Value::as_str)
                && let Ok(commit) = commit.parse()
            {
                found(commit);
            }
            members.values().for_each(|value| commitments(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| commitments(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::note::tests::published_key;
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        let keys = Keys {
            first: 7,
            keys: vec![published_key().public().clone()],
        };
        assert_eq!(keys.to_text().parse(), Ok(keys));
        for text in [
            "",
            "{}",
            r#"{"first":0,"keys":["x"]}"#,
            r#"{"first":-1,"keys":[]}"#,
        ] {
            assert_eq!(text.parse::<Keys>(), Err(InvalidKeys), "{text}");
        }
    }

    #[test]
    fn leaves_are_whole_lines() {
        let (a, b) = (Hash::of(b"a"), Hash::of(b"b"));
        assert_eq!(read_leaves(""), Some(Vec::new()));
        assert_eq!(read_leaves(&format!("{a}\n{b}\n")), Some(vec![a, b]));
        for text in [
            format!("{a}"),
            format!("{a}\n\n"),
            "\n".into(),
            format!("{a} \n"),
        ] {
            assert_eq!(read_leaves(&text), None, "{text:?}");
        }
    }

    #[test]
    fn every_commitment_in_a_body_is_found() {
        let (a, b) = (Hash::of(b"a"), Hash::of(b"b"));
        let body = json!({
            "args": {"commit": a.to_string(), "deep": [{"commit": b.to_string()}]},
            "commit": 7, "other": {"sha256": a.to_string()}
        });
        let mut found = Vec::new();
        commitments(&body, &mut |commit| found.push(commit));
        assert_eq!(found, [a, b]);
    }
}
