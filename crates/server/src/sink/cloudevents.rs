//! CloudEvents 1.0 as sinks send them: the attributes for headers (binary mode), the JSON event format
//! (structured mode), and the percent-encoding of HTTP header values.
//!
//! Format: `cloudevents/spec` 1.0.2, `formats/json-format.md`, `bindings/http-protocol-binding.md`
//! section 3.1.3.2 and `bindings/kafka-protocol-binding.md`. The ordering key is added only for another Wayhold.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::value::RawValue;
use wayhold_model::{AttributeValue, Event};

/// The version of CloudEvents that is sent.
pub const SPEC_VERSION: &str = "1.0";

/// Media type of one event in structured mode.
pub const STRUCTURED_CONTENT_TYPE: &str = "application/cloudevents+json; charset=utf-8";

/// Media type of several events in one body.
pub const BATCH_CONTENT_TYPE: &str = "application/cloudevents-batch+json; charset=utf-8";

/// The extension attribute that carries an ordering key (CloudEvents, partitioning extension).
const PARTITION_KEY: &str = "partitionkey";

/// How an event is laid into a request or record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentMode {
    /// Attributes as headers, the data as the body.
    #[default]
    Binary,
    /// The whole event as one JSON object.
    Structured,
}

/// Calls `visit` with name and text of every attribute that binary mode puts into a header: all but
/// `datacontenttype`, which becomes the protocol's own content type.
pub fn visit_attributes(event: &Event, mut visit: impl FnMut(&str, &str)) {
    visit("specversion", SPEC_VERSION);
    for (name, value) in core_attributes(event) {
        if !value.is_empty() {
            visit(name, value);
        }
    }
    for (name, value) in event.extensions() {
        match value {
            AttributeValue::String(text) => visit(&name, &text),
            other => visit(&name, &other.to_string()),
        }
    }
}

/// Appends the event as one JSON object. JSON data is embedded byte for byte, text as a JSON string,
/// everything else as base64; data that claims to be JSON and is not stays exact as base64.
pub fn write_structured(event: &Event, out: &mut Vec<u8>) {
    write_event(event, None, out);
}

/// The same with the ordering key as `partitionkey` where the event has no attribute of that name: whoever reads
/// it then has the key that it was accepted with.
pub fn write_with_key(event: &Event, out: &mut Vec<u8>) {
    let missing = event
        .key()
        .filter(|_| event.extension(PARTITION_KEY).is_none());
    write_event(event, missing, out);
}

fn write_event(event: &Event, key: Option<&str>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    for (name, value) in core_attributes(event) {
        write_member(out, name, value);
    }
    write_member(out, "datacontenttype", event.content_type());
    for (name, value) in event.extensions() {
        match value {
            AttributeValue::String(text) => write_member(out, &name, &text),
            AttributeValue::Boolean(_) | AttributeValue::Integer(_) => {
                write_name(out, &name);
                out.extend_from_slice(value.to_string().as_bytes());
            }
        }
    }
    write_member(out, PARTITION_KEY, key.unwrap_or_default());
    write_data(event, out);
    out.push(b'}');
}

/// Appends the event as one line of NDJSON, newline included. A line break between the tokens of JSON
/// data becomes a space (inside strings JSON has none), so the value and its length stay the same.
pub fn write_line(event: &Event, out: &mut Vec<u8>) {
    let start = out.len();
    write_structured(event, out);
    for byte in out.iter_mut().skip(start) {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    out.push(b'\n');
}

/// An attribute's text as an HTTP header value: space, quote, percent and everything outside
/// U+0021..U+007E as percent-encoded UTF-8.
pub fn header_value(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, ENCODED_IN_HEADERS).into()
}

const ENCODED_IN_HEADERS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

fn core_attributes(event: &Event) -> [(&'static str, &str); 6] {
    [
        ("id", event.id()),
        ("source", event.source()),
        ("type", event.kind()),
        ("dataschema", event.dataschema()),
        ("subject", event.subject()),
        ("time", event.time()),
    ]
}

fn write_member(out: &mut Vec<u8>, name: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    write_name(out, name);
    write_json_string(out, text);
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    write_json_string(out, name);
    out.push(b':');
}

fn write_json_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string into memory always serializes");
}

fn write_data(event: &Event, out: &mut Vec<u8>) {
    let data = event.data();
    if data.is_empty() {
        return;
    }
    if event.data_is_json() && serde_json::from_slice::<&RawValue>(data).is_ok() {
        write_name(out, "data");
        out.extend_from_slice(data);
        return;
    }
    match std::str::from_utf8(data) {
        Ok(text) if is_text(event.content_type()) => {
            write_name(out, "data");
            write_json_string(out, text);
        }
        _ => {
            write_name(out, "data_base64");
            out.push(b'"');
            let start = out.len();
            out.resize(start + data.len().div_ceil(3) * 4, 0);
            let room = out.get_mut(start..).unwrap_or_default();
            let written = STANDARD.encode_slice(data, room).unwrap_or_default();
            out.truncate(start + written);
            out.push(b'"');
        }
    }
}

/// Whether a media type is text for people: `text/*` or XML.
fn is_text(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence.starts_with("text/") || essence.ends_with("/xml") || essence.ends_with("+xml")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use wayhold_model::EventParts;

    use super::*;

    fn event(content_type: &str, data: &'static [u8]) -> Event {
        Event::new(&EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            subject: "a \"b\"",
            key: "never sent",
            content_type,
            extensions: r#"{"retries":5,"test":true,"note":"Zürich"}"#,
            data: Bytes::from_static(data),
            ..EventParts::default()
        })
        .unwrap()
    }

    fn structured(event: &Event) -> String {
        let mut out = Vec::new();
        write_structured(event, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_structured_form_carries_every_attribute_and_never_the_key() {
        assert_eq!(
            structured(&event("application/json", b"{ \"a\" : 1.0 }")),
            r#"{"specversion":"1.0","id":"1","source":"/shop","type":"order.created","subject":"a \"b\"","datacontenttype":"application/json","note":"Zürich","retries":5,"test":true,"data":{ "a" : 1.0 }}"#
        );
    }

    #[test]
    fn data_takes_the_form_its_type_asks_for() {
        for (content_type, data, expected) in [
            ("application/json", &b"1e2"[..], r#""data":1e2}"#),
            ("application/vnd.x+json", b"[ ]", r#""data":[ ]}"#),
            (
                "application/json",
                b"{not json",
                r#""data_base64":"e25vdCBqc29u"}"#,
            ),
            ("application/json", b"1 2", r#""data_base64":"MSAy"}"#),
            ("text/plain", b"a\n\"b\"", r#""data":"a\n\"b\""}"#),
            ("application/soap+xml", b"<a/>", r#""data":"<a/>"}"#),
            ("text/plain", b"\xff", r#""data_base64":"/w=="}"#),
            (
                "application/octet-stream",
                b"abc",
                r#""data_base64":"YWJj"}"#,
            ),
            ("", b"abc", r#""data_base64":"YWJj"}"#),
            ("application/json", b"", r#""test":true}"#),
        ] {
            let text = structured(&event(content_type, data));
            assert!(text.ends_with(expected), "{content_type}: {text}");
            let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(parsed["id"], "1");
        }
    }

    #[test]
    fn a_line_has_exactly_one_line_break_however_the_data_is_laid_out() {
        let mut out = Vec::new();
        write_line(
            &event("application/json", b"{\r\n\t\"a\": \"x\\ny\"\n}"),
            &mut out,
        );
        assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 1);
        assert_eq!(out.last(), Some(&b'\n'));
        let parsed: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(parsed["data"]["a"], "x\ny");
    }

    #[test]
    fn header_values_are_encoded_as_the_binding_says() {
        for (text, expected) in [
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("100%", "100%25"),
            ("\"q\"", "%22q%22"),
            ("a/b?c=d&e~!", "a/b?c=d&e~!"),
            ("\u{7f}", "%7F"),
        ] {
            assert_eq!(header_value(text), expected);
        }
    }

    #[test]
    fn absent_attributes_are_not_sent_at_all() {
        let bare = Event::new(&EventParts {
            id: "1",
            source: "/s",
            kind: "t",
            ..EventParts::default()
        })
        .unwrap();
        let mut seen = Vec::new();
        visit_attributes(&bare, |name, value| seen.push(format!("{name}={value}")));
        assert_eq!(seen, ["specversion=1.0", "id=1", "source=/s", "type=t"]);
        assert_eq!(
            structured(&bare),
            r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#
        );
    }
}
