//! What is known of a command, in the order in which a person asks.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use wayhold_model::ledger::Hash;
use wayhold_store::commands::{CommandsError, Payload, View};

/// Most records of a page. A command has a dozen, and three more for each attempt.
const RECORDS_MAX: u32 = 1_000;

/// Most bytes that are shown of a payload.
const PAYLOAD_BYTES_SHOWN: usize = 64 * 1_024;

/// What is known of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The command.
    pub command: String,
    /// In the order of questions; those of which nothing is known are left out.
    pub sections: Vec<Section>,
    /// Whether there are more records than a page shows.
    pub has_more: bool,
    /// The newest signed checkpoint; records below its size are proven by it.
    pub checkpoint: Option<String>,
    /// Records that it covers.
    pub proven: u64,
}

/// Records that answer one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// The question.
    pub title: &'static str,
    /// The records, the oldest first.
    pub entries: Vec<Entry>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its place in the ledger.
    pub idx: u64,
    /// When it was written.
    pub at: String,
    /// Its type.
    pub kind: String,
    /// Who did it.
    pub actor: String,
    /// Its leaf hash.
    pub leaf: String,
    /// What it says.
    pub fields: Vec<Field>,
}

/// A value of a record, or the payload that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Path in the record's body, with dots.
    pub name: String,
    /// The value.
    pub text: String,
}

/// The questions, and the types of records that answer each.
const QUESTIONS: [(&str, &[&str]); 7] = [
    ("What was asked for, and why", &["command.accepted"]),
    ("What the policy said", &["policy."]),
    ("Who allowed it", &["approval."]),
    ("What was sent, and what came back", &["attempt."]),
    ("What became of it", &["command.", "dlq.", "reconcile."]),
    ("How it was undone", &["compensation."]),
    ("What was done to the record", &["redaction.", ""]),
];

/// Collects it; `None` where the ledger has no record of the command.
///
/// # Errors
/// The file of commands cannot be read.
pub fn collect(view: &View<'_>, command: &str) -> Result<Option<Evidence>, CommandsError> {
    let rows = view.records_of(&format!("cmd:{command}"), 0, RECORDS_MAX + 1)?;
    if rows.is_empty() {
        return Ok(None);
    }
    let most = usize::try_from(RECORDS_MAX).unwrap_or(usize::MAX);
    let has_more = rows.len() > most;
    let mut sections = QUESTIONS.map(|(title, _)| Section {
        title,
        entries: Vec::new(),
    });
    for row in rows.into_iter().take(most) {
        let record: Value =
            serde_json::from_slice(&row.record).map_err(|error| CommandsError::Unfit {
                reason: format!("record {}: {error}", row.idx),
            })?;
        let payloads = view.payloads(row.idx)?;
        let entry = entry(row.idx, row.leaf, &record, payloads);
        let answers =
            |(_, kinds): &(&str, &[&str])| kinds.iter().any(|start| entry.kind.starts_with(start));
        let at = QUESTIONS.iter().position(answers).unwrap_or_default();
        if let Some(section) = sections.get_mut(at) {
            section.entries.push(entry);
        }
    }
    let checkpoint = view.checkpoint()?;
    Ok(Some(Evidence {
        command: command.to_owned(),
        sections: sections
            .into_iter()
            .filter(|section| !section.entries.is_empty())
            .collect(),
        has_more,
        proven: checkpoint.as_ref().map_or(0, |(size, ..)| *size),
        checkpoint: checkpoint.map(|(_, _, note)| note),
    }))
}

fn entry(idx: u64, leaf: Hash, record: &Value, payloads: Vec<Payload>) -> Entry {
    let text = |name| record.get(name).and_then(Value::as_str).unwrap_or_default();
    let payloads = payloads
        .into_iter()
        .map(|payload| (payload.commitment.to_string(), shown(&payload.bytes)))
        .collect();
    let mut fields = Vec::new();
    if let Some(body) = record.get("body") {
        flatten("", body, &payloads, &mut fields);
    }
    Entry {
        idx,
        at: text("ts").to_owned(),
        kind: text("type").to_owned(),
        actor: actor(record.get("actor").unwrap_or(&Value::Null)),
        leaf: leaf.to_string(),
        fields,
    }
}

fn actor(actor: &Value) -> String {
    let text = |name| actor.get(name).and_then(Value::as_str);
    let (kind, id) = (
        text("type").unwrap_or_default(),
        text("id").unwrap_or_default(),
    );
    match text("on_behalf_of") {
        Some(principal) => format!("{kind} {id}, on behalf of {principal}"),
        None => format!("{kind} {id}"),
    }
}

/// Bytes as a person reads them.
fn shown(bytes: &[u8]) -> String {
    let (head, rest) = bytes.split_at(bytes.len().min(PAYLOAD_BYTES_SHOWN));
    let mut text = match std::str::from_utf8(head) {
        Ok(text) => text.to_owned(),
        // Cut within a character, which is no reason to show none.
        Err(error) if error.error_len().is_none() && !rest.is_empty() => {
            String::from_utf8_lossy(head).into_owned()
        }
        Err(_) => return format!("({} bytes that are no text)", bytes.len()),
    };
    if !rest.is_empty() {
        write!(text, "... (and {} bytes more)", rest.len()).ok();
    }
    text
}

/// One line per value; a payload in the place of its commitment.
fn flatten(name: &str, value: &Value, payloads: &HashMap<String, String>, fields: &mut Vec<Field>) {
    let mut say = |text: String| {
        let name = name.to_owned();
        fields.push(Field { name, text });
    };
    match value {
        Value::Object(members) => {
            if let Some(commit) = members.get("commit").and_then(Value::as_str) {
                let payload = payloads.get(commit).cloned();
                return say(payload.unwrap_or_else(|| {
                    format!("(erased or no longer held; committed to as {commit})")
                }));
            }
            for (member, value) in members {
                let name = match name {
                    "" => member.clone(),
                    name => format!("{name}.{member}"),
                };
                flatten(&name, value, payloads, fields);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (at, item) in items.iter().enumerate() {
                flatten(&format!("{name}[{at}]"), item, payloads, fields);
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            say(items.join(", "));
        }
        other => say(plain(other)),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
