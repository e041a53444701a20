//! One line of a request: an event in CloudEvents' JSON format, never with a line break inside.
//!
//! Data must arrive byte for byte. JSON that lies on one line is embedded as it is; JSON with line
//! breaks travels as `data_base64` with its content type, which a receiver of the binary mode gets as
//! the very same bytes. Neither is ever parsed and written again.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;
use wayhold_model::{AttributeValue, Event};

/// An event made from a record by a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// CloudEvents `id`.
    pub id: String,
    /// CloudEvents `source`.
    pub source: String,
    /// CloudEvents `type`.
    pub kind: String,
    /// CloudEvents `subject`.
    pub subject: Option<String>,
    /// CloudEvents `time`.
    pub time: Option<String>,
    /// The ordering key; travels as the extension `partitionkey`.
    pub key: Option<String>,
    /// Other extension attributes.
    pub extensions: Vec<(String, String)>,
    /// The data: a JSON value, byte for byte.
    pub data: Vec<u8>,
}

/// A record that should be a CloudEvent and is none.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum NotAnEvent {
    /// Not a JSON object at all.
    #[error("not a JSON object: {0}")]
    NotJson(String),
    /// JSON, but no CloudEvent.
    #[error(
        "no CloudEvent (it has no specversion); --map FILE says where its type and source come from"
    )]
    NoSpecversion,
}

impl Envelope {
    /// The event as one line, without its line break.
    pub fn line(&self) -> Vec<u8> {
        let mut line = Line::new();
        line.text("specversion", "1.0");
        line.text("id", &self.id);
        line.text("source", &self.source);
        line.text("type", &self.kind);
        for (name, value) in [("subject", &self.subject), ("time", &self.time)] {
            if let Some(value) = value {
                line.text(name, value);
            }
        }
        if let Some(key) = &self.key {
            line.text("partitionkey", key);
        }
        for (name, value) in &self.extensions {
            line.text(name, value);
        }
        line.text("datacontenttype", "application/json");
        line.data(&self.data);
        line.finish()
    }
}

/// A CloudEvent in JSON as one line: itself where it lies on one line, else with its members in the
/// same order and its data's bytes unchanged.
///
/// # Errors
/// Says why the record is no CloudEvent; what else may be wrong with it is the server's to say.
pub fn event_line(record: &[u8]) -> Result<Vec<u8>, NotAnEvent> {
    let members = Members::read(record)?;
    if !members.0.iter().any(|(name, _)| name == "specversion") {
        return Err(NotAnEvent::NoSpecversion);
    }
    let is_exported = |name: &str| EXPORTED.contains(&name);
    if !breaks_lines(record.trim_ascii()) && !members.0.iter().any(|(name, _)| is_exported(name)) {
        return Ok(record.trim_ascii().to_vec());
    }
    let typed = members.0.iter().any(|(name, _)| name == "datacontenttype");
    let mut line = Line::new();
    for (name, value) in members.0.iter().filter(|(name, _)| !is_exported(name)) {
        if name != "data" {
            line.raw(name, value.get().as_bytes());
        } else if breaks_lines(value.get().as_bytes()) {
            // Only `data` without a type means JSON; `data_base64` without one means nothing.
            if !typed {
                line.text("datacontenttype", "application/json");
            }
            line.data(value.get().as_bytes());
        } else {
            line.raw(name, value.get().as_bytes());
        }
    }
    Ok(line.finish())
}

/// Where an exported event lay and whom it was owed to: of the export, not of the event, so they are not sent.
const EXPORTED: [&str; 2] = ["wayholdposition", "wayholdowed"];

/// A stored event as one line, without its line break: what was accepted, byte for byte, with its place and whom
/// it is owed to. Its ordering key travels as the extension `partitionkey`.
pub fn exported_line(event: &Event, position: &str, owed: &str) -> Vec<u8> {
    let mut line = Line::new();
    line.text("specversion", "1.0");
    let attributes = [
        ("id", event.id()),
        ("source", event.source()),
        ("type", event.kind()),
        ("subject", event.subject()),
        ("time", event.time()),
        ("datacontenttype", event.content_type()),
        ("dataschema", event.dataschema()),
    ];
    for (name, value) in attributes
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
    {
        line.text(name, value);
    }
    let extensions = event.extensions();
    let has_key = extensions.iter().any(|(name, _)| name == "partitionkey");
    if let Some(key) = event.key().filter(|_| !has_key) {
        line.text("partitionkey", key);
    }
    for (name, value) in &extensions {
        match value {
            AttributeValue::String(text) => line.text(name, text),
            other => line.raw(name, other.to_string().as_bytes()),
        }
    }
    for (name, value) in EXPORTED.into_iter().zip([position, owed]) {
        line.text(name, value);
    }
    let data = event.data();
    let is_value = event.data_is_json() && serde_json::from_slice::<&RawValue>(data).is_ok();
    match is_value && data.trim_ascii().len() == data.len() {
        _ if data.is_empty() => {}
        true => line.data(data),
        false => line.text("data_base64", &STANDARD.encode(data)),
    }
    line.finish()
}

fn breaks_lines(text: &[u8]) -> bool {
    text.iter().any(|&byte| byte == b'\n' || byte == b'\r')
}

/// A JSON object being written on one line.
struct Line(Vec<u8>);

impl Line {
    fn new() -> Self {
        Self(vec![b'{'])
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.quoted(name);
        self.0.push(b':');
    }

    fn quoted(&mut self, text: &str) {
        serde_json::to_writer(&mut self.0, text).expect("a string is written to memory");
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    fn raw(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.0.extend_from_slice(value);
    }

    fn data(&mut self, data: &[u8]) {
        if breaks_lines(data) {
            self.text("data_base64", &STANDARD.encode(data));
        } else {
            self.raw("data", data);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

/// An object's members in their order, repeats included, values untouched.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    fn read(record: &'a [u8]) -> Result<Self, NotAnEvent> {
        let not_json = |error: serde_json::Error| NotAnEvent::NotJson(error.to_string());
        let mut json = serde_json::Deserializer::from_slice(record);
        let members = (&mut json)
            .deserialize_map(MembersVisitor)
            .map_err(not_json)?;
        json.end().map_err(not_json)?;
        Ok(members)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn envelope(data: &str) -> Envelope {
        Envelope {
            id: "1".to_owned(),
            source: "/s".to_owned(),
            kind: "t".to_owned(),
            subject: None,
            time: None,
            key: Some("k \"1\"".to_owned()),
            extensions: vec![("tenant".to_owned(), "acme".to_owned())],
            data: data.as_bytes().to_vec(),
        }
    }

    #[test]
    fn data_on_one_line_is_embedded_as_it_is() {
        assert_eq!(
            String::from_utf8(envelope(r#"{"a" : 1.10}"#).line()).unwrap(),
            r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","partitionkey":"k \"1\"","tenant":"acme","datacontenttype":"application/json","data":{"a" : 1.10}}"#
        );
    }

    #[test]
    fn data_with_line_breaks_keeps_every_byte() {
        let data = "{\r\n  \"a\": 1\n}\n";
        let line = envelope(data).line();
        assert!(!breaks_lines(&line));
        let event: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(event["datacontenttype"], "application/json");
        let sent = STANDARD.decode(event["data_base64"].as_str().unwrap());
        assert_eq!(sent.unwrap(), data.as_bytes());
    }

    #[test]
    fn an_event_on_one_line_is_sent_as_it_stands() {
        let event = br#" {"specversion":"1.0", "id":"1" , "data":{"b":1,"a":2}} "#;
        assert_eq!(event_line(event).unwrap(), event.trim_ascii());
    }

    #[test]
    fn an_event_over_several_lines_keeps_members_and_data() {
        let event =
            "{\n \"specversion\": \"1.0\",\n \"id\": \"1\",\n \"data\": {\n  \"a\": 1\n }\n}\n";
        let line: Value = serde_json::from_slice(&event_line(event.as_bytes()).unwrap()).unwrap();
        assert_eq!(
            line,
            json!({
                "specversion": "1.0", "id": "1", "datacontenttype": "application/json",
                "data_base64": STANDARD.encode("{\n  \"a\": 1\n }"),
            })
        );
    }

    #[test]
    fn where_an_exported_event_lay_is_not_sent() {
        let event = br#"{"specversion":"1.0","id":"1","wayholdposition":"g1.s0.7","wayholdowed":"wms","data":{"b":1.0}}"#;
        let sent = event_line(event).unwrap();
        let expected = r#"{"specversion":"1.0","id":"1","data":{"b":1.0}}"#;
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        assert_eq!(event_line(br#"{"a":1}"#), Err(NotAnEvent::NoSpecversion));
        for text in ["[1]", "7", "{\"a\":1} x", "{"] {
            assert!(matches!(
                event_line(text.as_bytes()),
                Err(NotAnEvent::NotJson(_))
            ));
        }
    }
}
