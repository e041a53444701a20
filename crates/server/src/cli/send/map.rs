//! A map: the TOML file that says how a record becomes an event.
//!
//! ```toml
//! type = "com.example.{/activity|kebab}"
//! source = "/orders"
//! id = "order-{/number}"                     # without it: the content's hash
//! key = ["{/parcel}", "{/order}"]            # the first that is there
//! subject = "{/order}"
//! time = "{/when|time}"
//! data = "/payload"                          # without it: the whole record
//! [extensions]
//! tenant = "acme"
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use super::envelope::Envelope;
use super::record::Record;
use super::template::{InvalidTemplate, Template, content_hash};

/// How a record becomes an event; read with [`Map::parse`].
#[derive(Clone, Debug)]
pub struct Map {
    kind: Choice,
    source: Choice,
    id: Option<Choice>,
    key: Option<Choice>,
    subject: Option<Choice>,
    time: Option<Choice>,
    data: Option<String>,
    extensions: Vec<(String, Choice)>,
}

/// Templates in order of preference: the first that renders is the value.
#[derive(Clone, Debug)]
struct Choice(Vec<Template>);

/// Why a map file cannot be used.
#[derive(Debug, Error)]
pub enum InvalidMap {
    /// Not TOML, an unknown key, a missing one, or a value of the wrong kind.
    #[error("{0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// A value that is no template.
    #[error("{field}: {reason}")]
    Template {
        /// The map's key.
        field: String,
        /// What is wrong with its value.
        reason: InvalidTemplate,
    },
    /// `data` is no JSON pointer.
    #[error("data: expected a JSON pointer such as /payload, without braces")]
    Data,
    /// An extension that CloudEvents does not allow.
    #[error(
        "extensions.{0}: expected a name of lower-case letters and digits that is no standard attribute"
    )]
    Extension(String),
}

/// Why a record does not become an event.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Unmapped {
    /// The record is not JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// A required attribute has no value here.
    #[error("the map gives this record no {0}")]
    Missing(&'static str),
    /// The pointer to the data leads nowhere.
    #[error("the record has nothing at {0}, which the map calls its data")]
    NoData(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    r#type: OneOrMany,
    source: OneOrMany,
    id: Option<OneOrMany>,
    key: Option<OneOrMany>,
    subject: Option<OneOrMany>,
    time: Option<OneOrMany>,
    data: Option<String>,
    #[serde(default)]
    extensions: BTreeMap<String, OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Attributes with a key of their own; an extension of the same name would contradict it.
const RESERVED: [&str; 10] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "partitionkey",
];

impl Map {
    /// Reads a map file's text.
    ///
    /// # Errors
    /// Names the key at fault and what was expected.
    pub fn parse(text: &str) -> Result<Self, InvalidMap> {
        let file: MapFile = toml::from_str(text).map_err(Box::new)?;
        if file
            .data
            .as_ref()
            .is_some_and(|data| !data.starts_with('/'))
        {
            return Err(InvalidMap::Data);
        }
        let optional = |field, value: Option<OneOrMany>| {
            value.map(|value| Choice::parse(field, value)).transpose()
        };
        let extensions = file
            .extensions
            .into_iter()
            .map(|(name, value)| {
                let legal = !name.is_empty()
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                    && !RESERVED.contains(&name.as_str());
                if !legal {
                    return Err(InvalidMap::Extension(name));
                }
                let choice = Choice::parse(&format!("extensions.{name}"), value)?;
                Ok((name, choice))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            kind: Choice::parse("type", file.r#type)?,
            source: Choice::parse("source", file.source)?,
            id: optional("id", file.id)?,
            key: optional("key", file.key)?,
            subject: optional("subject", file.subject)?,
            time: optional("time", file.time)?,
            data: file.data,
            extensions,
        })
    }

    /// The event that a record becomes.
    ///
    /// # Errors
    /// Says what the record lacks.
    pub fn apply(&self, record: &Record) -> Result<Envelope, Unmapped> {
        let document: Value = serde_json::from_slice(&record.data)
            .map_err(|error| Unmapped::NotJson(error.to_string()))?;
        let required = |field, choice: &Choice| {
            choice
                .render(record, &document)
                .ok_or(Unmapped::Missing(field))
        };
        let optional =
            |choice: &Option<Choice>| choice.as_ref().and_then(|c| c.render(record, &document));
        let data = match &self.data {
            None => record.data.clone(),
            Some(pointer) => raw_at(&record.data, pointer)
                .ok_or_else(|| Unmapped::NoData(pointer.clone()))?
                .as_bytes()
                .to_vec(),
        };
        Ok(Envelope {
            id: match &self.id {
                Some(choice) => required("id", choice)?,
                None => content_hash(&record.data),
            },
            source: required("source", &self.source)?,
            kind: required("type", &self.kind)?,
            subject: optional(&self.subject),
            time: optional(&self.time),
            key: optional(&self.key),
            extensions: self
                .extensions
                .iter()
                .filter_map(|(name, choice)| {
                    Some((name.clone(), choice.render(record, &document)?))
                })
                .collect(),
            data,
        })
    }
}

impl Choice {
    fn parse(field: &str, value: OneOrMany) -> Result<Self, InvalidMap> {
        let texts = match value {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        };
        texts
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|reason| InvalidMap::Template {
                field: field.to_owned(),
                reason,
            })
    }

    fn render(&self, record: &Record, document: &Value) -> Option<String> {
        self.0
            .iter()
            .find_map(|template| template.render(record, document))
    }
}

/// The bytes at a JSON pointer, exactly as they stand in the document.
fn raw_at<'a>(document: &'a [u8], pointer: &str) -> Option<&'a str> {
    let mut here: &RawValue = serde_json::from_slice(document).ok()?;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        here = if here.get().starts_with('[') {
            let elements: Vec<&RawValue> = serde_json::from_str(here.get()).ok()?;
            elements.get(token.parse::<usize>().ok()?).copied()?
        } else {
            // Borrowed names would fail where a name holds an escape.
            let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(here.get()).ok()?;
            members.remove(&token)?
        };
    }
    Some(here.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::send::record::Origin;

    fn record(data: &str) -> Record {
        Record {
            origin: Origin::new("in/orders.json".as_ref(), 1),
            data: data.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_record_becomes_an_event_as_the_map_says() {
        let map = Map::parse(
            r#"
            type = "order.{/status|kebab}"
            source = "/shop"
            id = "o-{/number}"
            key = ["{/parcel}", "{/order}"]
            time = "{/when|time}"
            data = "/payload/0"
            [extensions]
            tenant = "acme"
            region = "{/region}"
            "#,
        )
        .unwrap();
        let event = map
            .apply(&record(
                r#"{"status":"Paid Up","number":4,"order":"A","payload":[ {"a" :1} ],"when":"x"}"#,
            ))
            .unwrap();
        assert_eq!(event.kind, "order.paid-up");
        assert_eq!(event.id, "o-4");
        assert_eq!(event.key.as_deref(), Some("A"));
        assert_eq!(event.time, None);
        assert_eq!(event.data, br#"{"a" :1}"#);
        assert_eq!(event.extensions, [("tenant".to_owned(), "acme".to_owned())]);
    }

    #[test]
    fn without_an_id_the_content_is_the_id() {
        let map = Map::parse("type = 't'\nsource = '/s'").unwrap();
        let data = "{\n \"a\": 1\n}\n";
        let event = map.apply(&record(data)).unwrap();
        assert_eq!(event.id, content_hash(data.as_bytes()));
        assert_eq!(event.data, data.as_bytes());
    }

    #[test]
    fn what_a_record_lacks_is_named() {
        let map = Map::parse("type = '{/type}'\nsource = '/s'\ndata = '/d'").unwrap();
        assert_eq!(
            map.apply(&record(r#"{"d":1}"#)),
            Err(Unmapped::Missing("type"))
        );
        assert_eq!(
            map.apply(&record(r#"{"type":"t"}"#)),
            Err(Unmapped::NoData("/d".to_owned()))
        );
        assert!(matches!(map.apply(&record("{")), Err(Unmapped::NotJson(_))));
    }

    #[test]
    fn a_map_that_cannot_be_used_names_the_key_at_fault() {
        for (text, expected) in [
            ("source = '/s'", "missing field `type`"),
            (
                "type = 't'\nsource = '/s'\nkeys = 'k'",
                "unknown field `keys`",
            ),
            (
                "type = 't'\nsource = '{nope}'",
                "source: {nope} names no place",
            ),
            (
                "type = 't'\nsource = '/s'\ndata = '{/d}'",
                "data: expected a JSON pointer",
            ),
            (
                "type = 't'\nsource = '/s'\n[extensions]\nSomeThing = 'x'",
                "extensions.SomeThing",
            ),
            (
                "type = 't'\nsource = '/s'\n[extensions]\npartitionkey = 'x'",
                "extensions.partitionkey",
            ),
        ] {
            let message = Map::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
