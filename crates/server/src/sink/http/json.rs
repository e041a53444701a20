//! A JSON body with places. Within a string a place is filled with text, escaped as JSON asks; elsewhere
//! it is filled with a whole JSON value. Outside strings a brace before a letter or slash is no JSON, so
//! nothing needs to be escaped; within a string `\u007b` is a brace that begins no place.

use std::fmt;

use serde::de::IgnoredAny;
use wayhold_model::place::Place;

use super::scan::{Fault, take_place};
use super::values::{Missing, Values};

/// A template of one JSON value.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct JsonTemplate {
    pieces: Box<[Piece]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Literal(Box<str>),
    InString(Place),
    Value(Place),
}

impl JsonTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// Everything that is wrong, with its position.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut reading = Reading::default();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = if c == '{' && begins_place(rest) {
                reading.place(text.len() - rest.len(), rest)
            } else {
                reading.character(c);
                rest.strip_prefix(c).unwrap_or_default()
            };
        }
        reading.end_literal();
        if !reading.faults.is_empty() {
            return Err(reading
                .faults
                .iter()
                .map(|fault| fault.told(text))
                .collect());
        }
        // Every place stands as something of its own length, so positions are those of the template.
        if let Err(error) = serde_json::from_str::<IgnoredAny>(&reading.filled) {
            return Err(vec![format!("expected JSON: {error}")]);
        }
        Ok(Self {
            pieces: reading.pieces.into(),
        })
    }

    /// The JSON for one event.
    ///
    /// # Errors
    /// Names the first place that the event has nothing for.
    pub(super) fn render(&self, values: Values<'_>, out: &mut String) -> Result<(), Missing> {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Value(place) => out.push_str(&values.json(place)?),
                Piece::InString(place) => {
                    let quoted = serde_json::Value::from(values.text(place)?).to_string();
                    let inner = quoted
                        .strip_prefix('"')
                        .and_then(|text| text.strip_suffix('"'));
                    out.push_str(inner.unwrap_or_default());
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for JsonTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[template]")
    }
}

/// Whether a brace begins a place: it does before what an attribute or a pointer begins with.
fn begins_place(text: &str) -> bool {
    let next = text.as_bytes().get(1);
    next.is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'/'))
}

/// A template while it is read.
#[derive(Default)]
struct Reading {
    pieces: Vec<Piece>,
    faults: Vec<Fault>,
    literal: String,
    filled: String,
    in_string: bool,
    escaped: bool,
}

impl Reading {
    fn character(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            _ => {}
        }
        self.literal.push(c);
        self.filled.push(c);
    }

    /// Reads the place that `from` begins with; what follows it.
    fn place<'t>(&mut self, at: usize, from: &'t str) -> &'t str {
        self.end_literal();
        let (place, after) = take_place(from);
        let length = from.len() - after.len();
        match place {
            Err(message) => self.faults.push(Fault { at, message }),
            Ok(place) if self.in_string => {
                self.pieces.push(Piece::InString(place));
                self.filled.push_str(&"x".repeat(length));
            }
            Ok(place) => {
                self.pieces.push(Piece::Value(place));
                // A list, since it never becomes one token with what stands beside it.
                self.filled.push_str("[]");
                self.filled.push_str(&" ".repeat(length.saturating_sub(2)));
            }
        }
        after
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            self.pieces
                .push(Piece::Literal(std::mem::take(&mut self.literal).into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use wayhold_model::{Event, EventParts};

    use super::*;

    fn event(subject: &str, data: &str) -> Event {
        Event::new(&EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            subject,
            content_type: "application/json",
            extensions: r#"{"priority":3,"urgent":true,"note":"a \"b\""}"#,
            data: Bytes::copy_from_slice(data.as_bytes()),
            ..EventParts::default()
        })
        .unwrap()
    }

    fn render(template: &str, event: &Event) -> Result<String, String> {
        let template = JsonTemplate::parse(template).map_err(|faults| faults.join("; "))?;
        let mut out = String::new();
        let rendered = template.render(Values::of(event), &mut out);
        rendered
            .map(|()| out)
            .map_err(|missing| missing.to_string())
    }

    #[test]
    fn values_keep_their_kind_outside_strings_and_are_escaped_within() {
        let event = event(
            "7\"8",
            r#"{"qty":1.50,"name":"Z\u00fcrich\n","lines":[ 1,2 ],"no":null,"":""}"#,
        );
        for (template, expected) in [
            (
                r#"{"q":{/data/qty},"l":{/data/lines}}"#,
                r#"{"q":1.50,"l":[ 1,2 ]}"#,
            ),
            (r#"{"q":"{/data/qty} kg"}"#, r#"{"q":"1.50 kg"}"#),
            (r#"{"n":"<{/data/name}>"}"#, r#"{"n":"<Zürich\n>"}"#),
            (r#"{"n":{/data/name}}"#, r#"{"n":"Z\u00fcrich\n"}"#),
            (
                r#"[{subject},{priority},{urgent},{note}]"#,
                r#"["7\"8",3,true,"a \"b\""]"#,
            ),
            (r#"{"{subject}":"{priority}"}"#, r#"{"7\"8":"3"}"#),
            (r#"[{/data/no},"{/data/}"]"#, r#"[null,""]"#),
            (r#""\u007bid} \"{id}\" \\{id}""#, r#""\u007bid} \"1\" \\1""#),
            (
                "{/data}",
                r#"{"qty":1.50,"name":"Z\u00fcrich\n","lines":[ 1,2 ],"no":null,"":""}"#,
            ),
            ("{ }", "{ }"),
        ] {
            assert_eq!(
                render(template, &event).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn what_the_event_does_not_have_is_named() {
        let event = event("", r#"{"no":null,"o":{}}"#);
        for (template, expected) in [
            (
                "[{subject}]",
                "expected a value for {subject}, but the event has none",
            ),
            (
                "{/data/a~1b/0}",
                "expected a value for {/data/a~1b/0}, but the event has none",
            ),
            (
                "\"{/data/no}\"",
                "expected a value for {/data/no}, but what the event has there is null, an object or an array",
            ),
        ] {
            assert_eq!(
                render(template, &event),
                Err(expected.to_owned()),
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_no_template_is_told_with_its_position() {
        let event = event("s", "{}");
        for (template, expected) in [
            (
                "",
                "expected JSON: EOF while parsing a value at line 1 column 0",
            ),
            ("hello", "expected JSON: expected value at line 1 column 1"),
            (
                r#"{"a":{id} {id}}"#,
                "expected JSON: expected `,` or `}` at line 1 column 11",
            ),
            (
                r#"{"a":1{id}}"#,
                "expected JSON: expected `,` or `}` at line 1 column 7",
            ),
            (
                r#"{{id}:1}"#,
                "expected JSON: key must be a string at line 1 column 2",
            ),
            (
                "{\n \"a\": {Id},\n \"b\": \"{/date}\"}",
                "line 2, character 7: expected an attribute such as {subject}, or a JSON pointer such as {/data/order}; line 3, character 8: expected an attribute such as {subject}, or a JSON pointer such as {/data/order}",
            ),
            (r#"["{id"#, "character 3: expected \"}\" after \"{\""),
        ] {
            assert_eq!(
                render(template, &event),
                Err(expected.to_owned()),
                "{template}"
            );
        }
    }

    proptest! {
        /// Whatever the values are, the body is the JSON that the template draws, and no value leaves its
        /// place.
        #[test]
        fn no_value_breaks_out_of_its_place(subject in "[^\\p{Cc}]{1,40}", text in "\\PC{0,40}|[\"\\\\\r\n{}]{0,12}") {
            let data = serde_json::json!({ "t": text, "o": { "t": [text] } });
            let event = event(&subject, &data.to_string());
            let template = r#"{"a":"<{subject}>","b":"{/data/t}","c":{/data/o},"d":{subject},"e":[{/data/t}]}"#;
            let body: serde_json::Value = serde_json::from_str(&render(template, &event).unwrap()).unwrap();
            prop_assert_eq!(
                body,
                serde_json::json!({
                    "a": format!("<{subject}>"), "b": text, "c": data["o"], "d": subject, "e": [text],
                })
            );
        }
    }
}
