//! An event: a fact accepted for delivery, as CloudEvents 1.0 attributes and data.
//!
//! All text of an event lies in one allocation, in an order that lets identity and fingerprint be
//! hashed without copying (see `hash`). Optional attributes that are absent read as empty strings:
//! CloudEvents forbids empty ones, so nothing is lost.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::limits;

/// What an event is made from; absent optional attributes are empty.
#[derive(Clone, Debug, Default)]
pub struct EventParts<'a> {
    /// CloudEvents `id`.
    pub id: &'a str,
    /// CloudEvents `source`.
    pub source: &'a str,
    /// CloudEvents `type`.
    pub kind: &'a str,
    /// CloudEvents `subject`, or empty.
    pub subject: &'a str,
    /// CloudEvents `time` (RFC 3339), or empty.
    pub time: &'a str,
    /// CloudEvents `datacontenttype`, or empty where nothing is known of the data.
    pub content_type: &'a str,
    /// CloudEvents `dataschema`, or empty.
    pub dataschema: &'a str,
    /// What order is kept by, or empty. Not an attribute: it is never added to the event as sent.
    pub key: &'a str,
    /// Extension attributes as the text of one JSON object of strings, 32-bit integers and booleans;
    /// empty where there are none.
    pub extensions: &'a str,
    /// The data, byte for byte as received; empty where there is none.
    pub data: Bytes,
}

/// A field that cannot be accepted, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: expected {expected}")]
pub struct InvalidEvent {
    /// The attribute at fault, by its CloudEvents name (or `key`).
    pub field: &'static str,
    /// What was expected of it.
    pub expected: String,
}

/// A fact accepted for delivery. Immutable; share it as `Arc<Event>`.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    // source NUL id NUL type NUL subject NUL key NUL content_type NUL dataschema NUL time NUL extensions.
    // No field but the last can hold a NUL, so the order is unambiguous.
    text: Box<str>,
    ends: [u32; FIELDS],
    data: Bytes,
}

const FIELDS: usize = 9;
const SOURCE: usize = 0;
const ID: usize = 1;
const KIND: usize = 2;
const SUBJECT: usize = 3;
const KEY: usize = 4;
const CONTENT_TYPE: usize = 5;
const DATASCHEMA: usize = 6;
const TIME: usize = 7;
const EXTENSIONS: usize = 8;

impl Event {
    /// An event from outside: every field is checked for presence, length and control characters.
    ///
    /// # Errors
    /// Names the first field that does not hold.
    pub fn new(parts: &EventParts<'_>) -> Result<Self, InvalidEvent> {
        required("id", parts.id, limits::ID_BYTES_MAX)?;
        required("source", parts.source, limits::SOURCE_BYTES_MAX)?;
        required("type", parts.kind, limits::TYPE_BYTES_MAX)?;
        plain("subject", parts.subject, limits::SUBJECT_BYTES_MAX)?;
        plain("key", parts.key, limits::KEY_BYTES_MAX)?;
        plain(
            "datacontenttype",
            parts.content_type,
            limits::CONTENT_TYPE_BYTES_MAX,
        )?;
        plain("dataschema", parts.dataschema, limits::DATASCHEMA_BYTES_MAX)?;
        plain("time", parts.time, limits::TIME_BYTES_MAX)?;
        if parts.extensions.len() > limits::EXTENSIONS_BYTES_MAX {
            return Err(InvalidEvent {
                field: "extensions",
                expected: format!("at most {} bytes in all", limits::EXTENSIONS_BYTES_MAX),
            });
        }
        Ok(Self::pack(parts))
    }

    /// An event that was accepted before and comes back from disk, where its checksum was verified;
    /// limits that were lowered since do not apply to it.
    pub fn from_stored(parts: &EventParts<'_>) -> Self {
        Self::pack(parts)
    }

    fn pack(parts: &EventParts<'_>) -> Self {
        let fields = [
            parts.source,
            parts.id,
            parts.kind,
            parts.subject,
            parts.key,
            parts.content_type,
            parts.dataschema,
            parts.time,
            parts.extensions,
        ];
        let mut text = String::with_capacity(fields.iter().map(|f| f.len() + 1).sum());
        let ends = fields.map(|field| {
            text.push_str(field);
            let end = u32::try_from(text.len()).unwrap_or(u32::MAX);
            text.push('\0');
            end
        });
        Self {
            text: text.into_boxed_str(),
            ends,
            data: parts.data.clone(),
        }
    }

    fn field(&self, index: usize) -> &str {
        let start = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |end| end + 1);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.text
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// CloudEvents `id`.
    pub fn id(&self) -> &str {
        self.field(ID)
    }

    /// CloudEvents `source`.
    pub fn source(&self) -> &str {
        self.field(SOURCE)
    }

    /// CloudEvents `type`.
    pub fn kind(&self) -> &str {
        self.field(KIND)
    }

    /// CloudEvents `subject`; empty when absent.
    pub fn subject(&self) -> &str {
        self.field(SUBJECT)
    }

    /// CloudEvents `time` as received; empty when absent.
    pub fn time(&self) -> &str {
        self.field(TIME)
    }

    /// CloudEvents `datacontenttype`; empty when nothing is known of the data.
    pub fn content_type(&self) -> &str {
        self.field(CONTENT_TYPE)
    }

    /// CloudEvents `dataschema`; empty when absent.
    pub fn dataschema(&self) -> &str {
        self.field(DATASCHEMA)
    }

    /// The ordering key, where there is one.
    pub fn key(&self) -> Option<&str> {
        Some(self.field(KEY)).filter(|key| !key.is_empty())
    }

    /// Extension attributes as the text of a JSON object; empty when there are none.
    pub fn extensions_text(&self) -> &str {
        self.field(EXTENSIONS)
    }

    /// Extension attributes in the order received.
    pub fn extensions(&self) -> Vec<(String, AttributeValue)> {
        parse_extensions(self.extensions_text())
    }

    /// One extension attribute by name.
    pub fn extension(&self, name: &str) -> Option<AttributeValue> {
        extension_of(self.extensions_text(), name)
    }

    /// The data, byte for byte as received; empty where there is none.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Whether the data is a JSON value by its content type (`application/json`, `text/json`, `+json`).
    pub fn data_is_json(&self) -> bool {
        is_json(self.content_type())
    }

    /// All text fields in one run, delimited: what a checksum of the event covers besides the data.
    pub fn text_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Bytes of text and data: what the event weighs in a queue, a cache or a group.
    pub fn size(&self) -> usize {
        self.text.len() + self.data.len()
    }

    /// `source NUL id`: what identity is hashed from.
    pub(crate) fn identity_bytes(&self) -> &[u8] {
        self.span(SOURCE, ID)
    }

    /// `type NUL subject NUL key NUL content type NUL dataschema`: what a fingerprint covers besides
    /// the data.
    pub(crate) fn described_bytes(&self) -> &[u8] {
        self.span(KIND, DATASCHEMA)
    }

    fn span(&self, first: usize, last: usize) -> &[u8] {
        let start = first
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |end| end + 1);
        let end = self.ends.get(last).copied().unwrap_or(start);
        self.text
            .as_bytes()
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }
}

impl fmt::Debug for Event {
    /// Names the event and weighs its data; data and extensions never reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("source", &self.source())
            .field("id", &self.id())
            .field("type", &self.kind())
            .field("data_bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// Value of an extension attribute, in the types that CloudEvents' JSON format tells apart. Binary,
/// URI and timestamp values are strings there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// `true` or `false`.
    Boolean(bool),
    /// A signed 32-bit integer.
    Integer(i32),
    /// Everything else.
    String(String),
}

impl fmt::Display for AttributeValue {
    /// The text form that headers carry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::String(value) => f.write_str(value),
        }
    }
}

/// Whether a media type says that the data is a JSON value.
pub fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let Some((_, subtype)) = essence.split_once('/') else {
        return false;
    };
    subtype.eq_ignore_ascii_case("json")
        || subtype.len() >= 5
            && subtype
                .as_bytes()
                .iter()
                .rev()
                .zip(b"nosj+")
                .all(|(a, b)| a.eq_ignore_ascii_case(b))
}

/// One extension attribute by name, from their text.
pub(crate) fn extension_of(text: &str, name: &str) -> Option<AttributeValue> {
    // Most events have none of the name: the text says so without being parsed.
    if !text.contains(name) {
        return None;
    }
    let mut extensions = parse_extensions(text).into_iter();
    extensions.find_map(|(n, value)| (n == name).then_some(value))
}

fn parse_extensions(text: &str) -> Vec<(String, AttributeValue)> {
    if text.is_empty() {
        return Vec::new();
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).unwrap_or_default();
    object
        .into_iter()
        .filter_map(|(name, value)| {
            let value = match value {
                serde_json::Value::Bool(value) => AttributeValue::Boolean(value),
                serde_json::Value::Number(value) => {
                    AttributeValue::Integer(value.as_i64().and_then(|v| i32::try_from(v).ok())?)
                }
                serde_json::Value::String(value) => AttributeValue::String(value),
                serde_json::Value::Null
                | serde_json::Value::Array(_)
                | serde_json::Value::Object(_) => return None,
            };
            Some((name, value))
        })
        .collect()
}

fn required(field: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent {
            field,
            expected: "a value that is not empty".to_owned(),
        });
    }
    plain(field, text, bytes_max)
}

/// CloudEvents strings exclude control characters; a length bound keeps headers and indexes small.
fn plain(field: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidEvent> {
    if text.len() > bytes_max {
        return Err(InvalidEvent {
            field,
            expected: format!("at most {bytes_max} bytes, got {}", text.len()),
        });
    }
    // Nearly all text is printable ASCII, which needs no decoding to be told apart.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(());
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((offset, c)) => Err(InvalidEvent {
            field,
            expected: format!(
                "no control characters, got U+{:04X} at byte {offset}",
                u32::from(c)
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> EventParts<'static> {
        EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            subject: "order-7",
            key: "7",
            content_type: "application/json",
            extensions: r#"{"retries":5,"test":true,"traceparent":"00-ab"}"#,
            data: Bytes::from_static(b"{}"),
            ..EventParts::default()
        }
    }

    #[test]
    fn every_field_reads_back_as_it_was_given() {
        let event = Event::new(&parts()).unwrap();
        assert_eq!(
            (
                event.id(),
                event.source(),
                event.kind(),
                event.subject(),
                event.key(),
                event.content_type()
            ),
            (
                "1",
                "/shop",
                "order.created",
                "order-7",
                Some("7"),
                "application/json"
            ),
        );
        assert_eq!((event.time(), event.dataschema()), ("", ""));
        assert_eq!(event.extension("retries"), Some(AttributeValue::Integer(5)));
        assert_eq!(event.extension("test"), Some(AttributeValue::Boolean(true)));
        assert_eq!(event.extension("absent"), None);
        assert_eq!(event.data().as_ref(), b"{}");
    }

    #[test]
    fn a_missing_long_or_hostile_field_is_named() {
        let long = "x".repeat(limits::SUBJECT_BYTES_MAX + 1);
        for (field, parts) in [
            ("id", EventParts { id: "", ..parts() }),
            (
                "source",
                EventParts {
                    source: "",
                    ..parts()
                },
            ),
            (
                "type",
                EventParts {
                    kind: "",
                    ..parts()
                },
            ),
            (
                "subject",
                EventParts {
                    subject: &long,
                    ..parts()
                },
            ),
            (
                "subject",
                EventParts {
                    subject: "a\0b",
                    ..parts()
                },
            ),
            (
                "key",
                EventParts {
                    key: "a\u{85}b",
                    ..parts()
                },
            ),
            (
                "id",
                EventParts {
                    id: "\u{1b}]0;pwn\u{7}",
                    ..parts()
                },
            ),
        ] {
            assert_eq!(Event::new(&parts).unwrap_err().field, field);
        }
    }

    #[test]
    fn json_is_recognised_by_media_type() {
        for yes in [
            "application/json",
            "text/JSON",
            "application/cloudevents+json; charset=utf-8",
            "application/vnd.a+Json",
        ] {
            assert!(is_json(yes), "{yes}");
        }
        for no in [
            "",
            "json",
            "text/plain",
            "application/jsonl",
            "application/json-seq",
            "a/son",
        ] {
            assert!(!is_json(no), "{no}");
        }
    }
}
