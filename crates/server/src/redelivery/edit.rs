//! What an operator makes of a dead letter's event before it is sent again: attributes and data are replaced or
//! taken away, and the result is read like any event that comes in, so it keeps the same rules. Identity and
//! ordering key stay: receivers know the event again, and it goes in the letter's place.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use thiserror::Error;
use wayhold_model::{Event, EventParts, InvalidEvent};

use crate::ingest::Refusal;
use crate::sink::cloudevents::write_structured;

/// Members of the event in CloudEvents' JSON format, each with the value that it is to have; `null` takes it away.
pub type Edit = BTreeMap<String, Box<RawValue>>;

/// What stays as it is, and why.
const FIXED: [(&str, &str); 4] = [
    ("id", "receivers know the event by it"),
    ("source", "receivers know the event by it"),
    ("specversion", "it is always 1.0"),
    ("partitionkey", "order is kept by it"),
];

/// Why an event cannot be edited so.
#[derive(Debug, Error)]
pub enum EditError {
    /// Leave it out.
    #[error("edit.{name}: expected nothing, since it stays as it is: {reason}")]
    Fixed {
        /// The member.
        name: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// There is nothing to change; redrive the letter as it is.
    #[error("edit: expected at least one attribute, or data")]
    Empty,
    /// The data is said twice.
    #[error("edit: expected either data or data_base64")]
    TwoData,
    /// What comes of it is no event that would be accepted.
    #[error("edit: {0}")]
    Refused(#[from] Refusal),
    /// What comes of it is no event.
    #[error("edit: {0}")]
    Invalid(#[from] InvalidEvent),
    /// The event cannot be shown as JSON, so nothing of it can be replaced.
    #[error("the event cannot be shown as JSON: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The event with this edit; `read` reads an event as it would be accepted.
///
/// # Errors
/// Says what cannot be changed, or what is wrong with the result.
pub fn apply(
    event: &Event,
    edit: &Edit,
    read: impl FnOnce(&[u8]) -> Result<Event, Refusal>,
) -> Result<Event, EditError> {
    if edit.is_empty() {
        return Err(EditError::Empty);
    }
    for (name, reason) in FIXED {
        if edit.contains_key(name) {
            return Err(EditError::Fixed { name, reason });
        }
    }
    if edit.contains_key("data") && edit.contains_key("data_base64") {
        return Err(EditError::TwoData);
    }
    let mut text = Vec::with_capacity(event.size() + 256);
    write_structured(event, &mut text);
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&text)?;
    for (name, value) in edit {
        if name.starts_with("data") && matches!(name.as_str(), "data" | "data_base64") {
            members.remove("data");
            members.remove("data_base64");
        }
        match value.get() {
            "null" => members.remove(name),
            _ => members.insert(name.clone(), value.clone()),
        };
    }
    let edited = read(&serde_json::to_vec(&members)?)?;
    let with_key = EventParts {
        id: edited.id(),
        source: edited.source(),
        kind: edited.kind(),
        subject: edited.subject(),
        time: edited.time(),
        content_type: edited.content_type(),
        dataschema: edited.dataschema(),
        key: event.key().unwrap_or_default(),
        extensions: edited.extensions_text(),
        data: edited.data().clone(),
    };
    Ok(Event::new(&with_key)?)
}
