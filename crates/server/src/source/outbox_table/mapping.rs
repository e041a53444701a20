//! From a row to an event: columns become attributes, the payload becomes the data. Pure; the rules that
//! all events obey are `ingest`'s.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::row::{Column, Payload, Row};
use crate::config::OutboxTableConfig;
use crate::config::source::router::{Placement, RouterConfig};
use crate::ingest::{Draft, Refusal, Value, push_json_string};

/// The extension attribute by which an event says that its key is gone: a Kafka destination makes a record
/// without a value of it.
pub(super) const TOMBSTONE: &str = "tombstone";

/// What rows of one table become.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    router: RouterConfig,
    content_type: Option<String>,
    /// `//SERVER/outbox/TABLE/`, to which the routed value is added.
    source: String,
}

impl Mapping {
    /// The mapping of a configured table.
    pub(super) fn new(config: &OutboxTableConfig) -> Self {
        Self {
            router: config.router.clone(),
            content_type: config.content_type.clone(),
            source: format!("//{}/outbox/{}/", config.server, config.table.name),
        }
    }

    /// The event of a row, with attributes that are still to be held against limits and routes.
    ///
    /// # Errors
    /// Names the column that cannot become what it should.
    pub(super) fn draft<'r>(&self, row: &'r Row) -> Result<Draft<'r>, Refusal> {
        let columns = &self.router;
        let mut draft = Draft::default();
        let id = required(&columns.id, row.id.as_deref())?;
        let route = required(&columns.route_by, row.route.as_deref())?;
        let source = format!("{}{}", self.source, escaped(route));
        let key = row.key.as_deref();
        set(&mut draft, "id", id)?;
        set(&mut draft, "source", source)?;
        set_unless_set(&mut draft, "partitionkey", key)?;
        let placed = columns.additional.iter().zip(&row.additional);
        for (additional, column) in placed {
            let Some(text) = text_of(column) else {
                continue;
            };
            match additional.placement {
                Placement::Header => set(&mut draft, &additional.alias, text)?,
                Placement::Partition => {
                    let partition = Value::Integer(partition_of(&additional.column, text)?);
                    draft.set(additional.alias.clone().into(), partition, MODE)?;
                }
                Placement::Envelope => {}
            }
        }
        // What a column was placed as stands before what the layout would say.
        if !draft.is_set("type") {
            let kind = required(&columns.kind, row.kind.as_deref())?;
            set(&mut draft, "type", kind)?;
        }
        set_unless_set(&mut draft, "aggregatetype", Some(route))?;
        if let Some(topic) = self.topic_of(route)?
            && !draft.is_set("topic")
        {
            set(&mut draft, "topic", topic)?;
        }
        set_unless_set(&mut draft, "schemaversion", row.schema_version.as_deref())?;
        set_unless_set(&mut draft, "time", row.timestamp.as_deref())?;
        set_unless_set(&mut draft, "subject", key)?;
        self.set_data(&mut draft, row)?;
        Ok(draft)
    }

    /// What the router would call the topic, where its rule is configured.
    fn topic_of(&self, route: &str) -> Result<Option<String>, Refusal> {
        let Some(rule) = &self.router.topic else {
            return Ok(None);
        };
        if !rule.regex.is_match(route) {
            let expected = "a value that route.topic.regex matches";
            return Err(Refusal::invalid(self.router.route_by.as_str(), expected));
        }
        let topic = rule.regex.replace(route, rule.replacement.as_str());
        Ok(Some(topic.into_owned()))
    }

    fn set_data(&self, draft: &mut Draft<'_>, row: &Row) -> Result<(), Refusal> {
        let is_empty = match &row.payload {
            Payload::Null => true,
            Payload::Json(text) | Payload::Text(text) => text.is_empty(),
            Payload::Binary(bytes) => bytes.is_empty(),
        };
        if is_empty && self.router.tombstones {
            return draft.set(TOMBSTONE.into(), Value::Boolean(true), MODE);
        }
        let (content_type, data) = match self.router.has_envelope() {
            true => (JSON, self.envelope(row).into()),
            false => self.plain_data(&row.payload),
        };
        draft.data = data;
        let content_type = self.content_type.as_deref().unwrap_or(content_type);
        if draft.content_type.is_empty() && !content_type.is_empty() {
            set(draft, "datacontenttype", content_type.to_owned())?;
        }
        Ok(())
    }

    /// The payload as it is, and what it is.
    fn plain_data(&self, payload: &Payload) -> (&'static str, Bytes) {
        match payload {
            Payload::Null => ("", Bytes::new()),
            Payload::Json(text) => (JSON, text.clone().into()),
            Payload::Text(text) if is_json_value(text) => (JSON, text.clone().into()),
            Payload::Text(text) => match self.expanded(text) {
                Some(text) => (JSON, text.into()),
                None => ("text/plain; charset=utf-8", text.clone().into()),
            },
            Payload::Binary(bytes) => ("application/octet-stream", bytes.clone().into()),
        }
    }

    /// JSON within a JSON string, where that is to be looked for.
    fn expanded(&self, text: &str) -> Option<String> {
        if !self.router.expand_json || !text.starts_with('"') {
            return None;
        }
        let inner: String = serde_json::from_str(text).ok()?;
        is_json_value(&inner).then_some(inner)
    }

    /// One object of the payload and the columns that are placed beside it.
    fn envelope(&self, row: &Row) -> String {
        let mut out = String::from("{\"payload\":");
        match &row.payload {
            Payload::Null => out.push_str("null"),
            Payload::Json(text) if self.router.expand_json => out.push_str(text),
            Payload::Text(text) if self.router.expand_json && is_json_value(text) => {
                out.push_str(text);
            }
            // A text in the envelope, also where it is JSON: so the router has it.
            Payload::Json(text) | Payload::Text(text) => out.push_str(&quoted(text)),
            Payload::Binary(bytes) => {
                use base64::Engine as _;
                let text = base64::engine::general_purpose::STANDARD.encode(bytes);
                push_json_string(&mut out, &text);
            }
        }
        for (additional, column) in self.router.additional.iter().zip(&row.additional) {
            if additional.placement != Placement::Envelope {
                continue;
            }
            out.push(',');
            out.push_str(&quoted(&additional.alias));
            out.push(':');
            match column {
                Column::Null => out.push_str("null"),
                Column::Text(text) => out.push_str(&quoted(text)),
                Column::Json(text) => out.push_str(text),
            }
        }
        out.push('}');
        out
    }
}

const JSON: &str = "application/json";

/// Names here are made by rule, so there is nothing to be lenient about.
const MODE: crate::config::ParseMode = crate::config::ParseMode::Strict;

fn set<'r>(
    draft: &mut Draft<'r>,
    name: &str,
    value: impl Into<Cow<'r, str>>,
) -> Result<(), Refusal> {
    draft.set(name.to_owned().into(), Value::Text(value.into()), MODE)
}

/// An empty text says as much as none: attributes are never empty.
fn set_unless_set<'r>(
    draft: &mut Draft<'r>,
    name: &str,
    value: Option<&'r str>,
) -> Result<(), Refusal> {
    match value.filter(|value| !value.is_empty()) {
        Some(value) if !draft.is_set(name) => set(draft, name, value),
        _ => Ok(()),
    }
}

fn required<'r>(column: &str, value: Option<&'r str>) -> Result<&'r str, Refusal> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Refusal::invalid(column, "a value in this column"))
}

/// The text of an additional column.
fn text_of(column: &Column) -> Option<&str> {
    match column {
        Column::Null => None,
        Column::Text(text) | Column::Json(text) => Some(text.as_str()).filter(|t| !t.is_empty()),
    }
}

/// The number of a partition.
fn partition_of(column: &str, text: &str) -> Result<i32, Refusal> {
    let number: Option<i32> = text.parse().ok();
    number
        .filter(|number| *number >= 0)
        .ok_or_else(|| Refusal::invalid(column, "the number of a partition, or NULL"))
}

/// Whether a text is a JSON object or list: numbers and words may be anything.
fn is_json_value(text: &str) -> bool {
    let begins = text.trim_start().starts_with(['{', '[']);
    begins && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A routed value as a segment of a URI.
fn escaped(text: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(text, SEGMENT).to_string()
}
