//! The small language of a map's values: text with placeholders, `com.github.{dir}`.
//!
//! A placeholder names a place and may pass its value through filters: `{/ocel:eid|integer}`. Places
//! are a JSON pointer into the record (RFC 6901; a CSV column is a pointer too, since a row is an
//! object of its columns), `{dir}`, `{file}`, `{line}` and `{hash}`. A value that is absent or blank
//! makes the whole template absent, so that "no order" never becomes the key "order-".

use std::str::FromStr;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::record::Record;

/// Text with placeholders, checked when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Place, Vec<Filter>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Pointer(String),
    Directory,
    File,
    Line,
    Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Lower,
    Kebab,
    Integer,
    First,
    Time,
}

/// A text that is no template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidTemplate {
    /// `{` without `}`, or the other way round.
    #[error("a brace without its partner; write {{{{ or }}}} for a brace itself")]
    Brace,
    /// The placeholder names nothing.
    #[error(
        "{{{0}}} names no place; expected {{/json/pointer}}, {{dir}}, {{file}}, {{line}} or {{hash}}"
    )]
    Place(String),
    /// The filter does not exist.
    #[error("no filter |{0}; expected lower, kebab, integer, first or time")]
    Filter(String),
}

impl Template {
    /// The text for one record; `None` where a placeholder's value is absent or blank.
    pub fn render(&self, record: &Record, document: &Value) -> Option<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Value(place, filters) => {
                    let value = place.value(record, document)?;
                    let value = filters
                        .iter()
                        .try_fold(value, |value, filter| filter.apply(&value))?;
                    if value.trim().is_empty() {
                        return None;
                    }
                    text.push_str(&value);
                }
            }
        }
        Some(text)
    }
}

impl FromStr for Template {
    type Err = InvalidTemplate;

    fn from_str(text: &str) -> Result<Self, InvalidTemplate> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            literal.push_str(before);
            if let Some(after) = brace.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = brace.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else {
                let inside = brace.strip_prefix('{').ok_or(InvalidTemplate::Brace)?;
                let (inside, after) = inside.split_once('}').ok_or(InvalidTemplate::Brace)?;
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(placeholder(inside)?);
                rest = after;
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }
}

fn placeholder(inside: &str) -> Result<Part, InvalidTemplate> {
    let mut words = inside.split('|');
    let place = match words.next().unwrap_or_default() {
        "dir" => Place::Directory,
        "file" => Place::File,
        "line" => Place::Line,
        "hash" => Place::Hash,
        pointer if pointer.starts_with('/') => Place::Pointer(pointer.to_owned()),
        other => return Err(InvalidTemplate::Place(other.to_owned())),
    };
    let filters = words.map(Filter::from_name).collect::<Result<_, _>>()?;
    Ok(Part::Value(place, filters))
}

impl Place {
    fn value(&self, record: &Record, document: &Value) -> Option<String> {
        match self {
            Self::Pointer(pointer) => match document.pointer(pointer)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                Value::Bool(flag) => Some(flag.to_string()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
            },
            Self::Directory => record.origin.directory(),
            Self::File => record.origin.stem(),
            Self::Line => Some(record.origin.line.to_string()),
            Self::Hash => Some(content_hash(&record.data)),
        }
    }
}

/// SHA-256 of the record's bytes, in hexadecimal: what `{hash}` says, and the id of a record whose map
/// names none.
pub fn content_hash(data: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(data)
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            write!(text, "{byte:02x}").ok();
            text
        })
}

impl Filter {
    fn from_name(name: &str) -> Result<Self, InvalidTemplate> {
        match name {
            "lower" => Ok(Self::Lower),
            "kebab" => Ok(Self::Kebab),
            "integer" => Ok(Self::Integer),
            "first" => Ok(Self::First),
            "time" => Ok(Self::Time),
            other => Err(InvalidTemplate::Filter(other.to_owned())),
        }
    }

    /// The filtered value; `None` where the value is not of the filter's kind.
    fn apply(self, value: &str) -> Option<String> {
        match self {
            Self::Lower => Some(value.to_lowercase()),
            Self::Kebab => Some(kebab(value)),
            Self::Integer => integer(value),
            Self::First => first(value),
            Self::Time => value
                .trim()
                .parse::<jiff::Timestamp>()
                .ok()
                .map(|time| time.to_string()),
        }
    }
}

/// Lower case, and one hyphen for whatever is neither letter nor digit: `pick item` is `pick-item`.
fn kebab(value: &str) -> String {
    value
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect::<Vec<_>>()
        .join("-")
}

/// A whole number without the fraction that spreadsheets and data frames add: `17.0` is `17`.
fn integer(value: &str) -> Option<String> {
    let value = value.trim();
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_whole = !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && fraction.bytes().all(|b| b == b'0');
    is_whole.then(|| whole.to_owned())
}

/// The first element of a list written as text, with or without brackets and quotes:
/// `['990001','990002']` is `990001`.
fn first(value: &str) -> Option<String> {
    let inner = value.trim().trim_start_matches('[').trim_end_matches(']');
    let element = inner.split(',').next()?.trim().trim_matches(['\'', '"']);
    (!element.is_empty()).then(|| element.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::send::record::Origin;

    fn render(template: &str, document: &Value) -> Option<String> {
        let record = Record {
            origin: Origin::new("in/pings/first.payload.json".as_ref(), 7),
            data: document.to_string().into_bytes(),
        };
        template
            .parse::<Template>()
            .unwrap()
            .render(&record, document)
    }

    #[test]
    fn places_and_filters_say_what_they_find() {
        let document = json!({
            "eid": "17.0", "activity": "Pick  item", "when": "2019-05-20 07:07:47.000Z", "blank": " ",
            "list": "['990001','990002']", "empty": "[]", "deep": [{"n": 5, "ok": true}], "a/b": "slash",
        });
        for (template, expected) in [
            ("plain", Some("plain")),
            ("{{x}}", Some("{x}")),
            ("{dir}/{file}:{line}", Some("pings/first.payload:7")),
            ("e-{/eid|integer}", Some("e-17")),
            ("{/activity|kebab}.v1", Some("pick-item.v1")),
            ("{/activity|lower}", Some("pick  item")),
            ("{/when|time}", Some("2019-05-20T07:07:47Z")),
            ("{/list|first}", Some("990001")),
            ("{/deep/0/n}-{/deep/0/ok}", Some("5-true")),
            ("{/a~1b}", Some("slash")),
            ("order-{/empty|first}", None),
            ("order-{/blank}", None),
            ("order-{/none}", None),
            ("{/deep}", None),
            ("{/activity|time}", None),
            ("{/activity|integer}", None),
        ] {
            assert_eq!(
                render(template, &document).as_deref(),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn the_hash_is_sha_256_of_the_content() {
        assert_eq!(
            content_hash(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let document = json!({"a": 1});
        assert_eq!(
            render("{hash}", &document),
            Some(content_hash(br#"{"a":1}"#))
        );
    }

    #[test]
    fn what_is_no_template_is_refused_with_its_reason() {
        for (text, expected) in [
            ("{dir", InvalidTemplate::Brace),
            ("dir}", InvalidTemplate::Brace),
            ("{name}", InvalidTemplate::Place("name".to_owned())),
            ("{}", InvalidTemplate::Place(String::new())),
            ("{/a|upper}", InvalidTemplate::Filter("upper".to_owned())),
        ] {
            assert_eq!(text.parse::<Template>(), Err(expected), "{text}");
        }
    }
}
