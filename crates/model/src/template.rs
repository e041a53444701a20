//! Texts with places for an event's values: `"{/data/warehouse}/{subject}"`, `"orders.{type}"`.
//!
//! A place is an attribute, or a JSON pointer (RFC 6901) that begins with `/data` and reads the event's
//! data. There is no escape for braces: neither topics nor business keys need them.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use crate::attribute::{AttributeName, Attributes};
use crate::place::Place;

/// Longest template, in bytes: what it makes ends far below.
pub const TEMPLATE_BYTES_MAX: usize = 1024;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Box<[Part]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    Place(Place),
}

/// A text that is no template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidTemplate {
    /// Nothing would ever come of it.
    #[error("expected a text that is not empty")]
    Empty,
    /// It is longer than any use of it.
    #[error("expected at most {TEMPLATE_BYTES_MAX} bytes")]
    TooLong,
    /// A brace without its partner.
    #[error("expected each \"{{\" to be closed by \"}}\"")]
    Brace,
    /// A place that names nothing.
    #[error("{{{place}}}: expected {expected}")]
    Place {
        /// What stands between the braces.
        place: String,
        /// What may stand there.
        expected: &'static str,
    },
}

impl Template {
    /// A template over attributes and data.
    ///
    /// # Errors
    /// Says what was expected where.
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        Self::parse_places(text, Place::EXPECTED, Place::parse)
    }

    /// A template over attributes alone.
    ///
    /// # Errors
    /// Says what was expected where.
    pub fn parse_attributes(text: &str) -> Result<Self, InvalidTemplate> {
        let expected = "an attribute such as {type}";
        Self::parse_places(text, expected, |place| {
            place.parse().ok().map(Place::Attribute)
        })
    }

    fn parse_places(
        text: &str,
        expected: &'static str,
        place_of: impl Fn(&str) -> Option<Place>,
    ) -> Result<Self, InvalidTemplate> {
        match text.len() {
            0 => return Err(InvalidTemplate::Empty),
            1..=TEMPLATE_BYTES_MAX => {}
            _ => return Err(InvalidTemplate::TooLong),
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            push_literal(&mut parts, literal)?;
            let (place, after) = after.split_once('}').ok_or(InvalidTemplate::Brace)?;
            let place = place_of(place).ok_or_else(|| InvalidTemplate::Place {
                place: place.to_owned(),
                expected,
            })?;
            parts.push(Part::Place(place));
            rest = after;
        }
        push_literal(&mut parts, rest)?;
        Ok(Self {
            text: text.into(),
            parts: parts.into(),
        })
    }

    /// Whether rendering reads the event's data.
    pub fn reads_data(&self) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, Part::Place(Place::Data(_))))
    }

    /// The attributes it reads.
    pub fn attributes(&self) -> impl Iterator<Item = &AttributeName> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(Place::Attribute(name)) => Some(name),
            Part::Literal(_) | Part::Place(Place::Data(_)) => None,
        })
    }

    /// The text for one event, whose data are given where they are JSON. `None` when a place has no
    /// value: an absent attribute, or a pointer to nothing or to null, an object or an array. One
    /// attribute alone is borrowed, everything else allocates.
    pub fn render<'a>(
        &self,
        attributes: &'a (impl Attributes + ?Sized),
        json: Option<&[u8]>,
    ) -> Option<Cow<'a, str>> {
        if let [Part::Place(Place::Attribute(name))] = &*self.parts {
            return Some(attributes.attribute(name)).filter(|text| !text.is_empty());
        }
        let mut rendered = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => rendered.push_str(text),
                Part::Place(Place::Attribute(name)) => {
                    let text = attributes.attribute(name);
                    if text.is_empty() {
                        return None;
                    }
                    rendered.push_str(&text);
                }
                Part::Place(Place::Data(pointer)) => {
                    let text = pointer.text_in(json?).filter(|text| !text.is_empty())?;
                    rendered.push_str(&text);
                }
            }
        }
        Some(Cow::Owned(rendered))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn push_literal(parts: &mut Vec<Part>, literal: &str) -> Result<(), InvalidTemplate> {
    if literal.contains('}') {
        return Err(InvalidTemplate::Brace);
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = br#"{"order":{"id":7,"lines":[{"sku":"A"}]},"ok":true,"none":null}"#;

    fn parts() -> crate::EventParts<'static> {
        crate::EventParts {
            id: "1",
            source: "/shop",
            kind: "order.created",
            extensions: r#"{"priority":3,"tenant":"acme"}"#,
            ..crate::EventParts::default()
        }
    }

    #[test]
    fn places_take_attributes_and_data() {
        for (template, expected) in [
            ("{type}", Some("order.created")),
            ("orders.{tenant}.{priority}", Some("orders.acme.3")),
            ("{/data/order/id}", Some("7")),
            ("{source}#{/data/order/lines/0/sku}", Some("/shop#A")),
            ("{/data/ok}", Some("true")),
            ("fixed", Some("fixed")),
            ("{subject}", None),
            ("x{subject}", None),
            ("{/data/none}", None),
            ("{/data/order}", None),
            ("{/data/order/lines}", None),
            ("{/data/order/lines/1/sku}", None),
            ("{/data/absent}", None),
        ] {
            let template = Template::parse(template).unwrap();
            let parts = parts();
            let rendered = template.render(&parts, Some(JSON));
            assert_eq!(rendered.as_deref(), expected, "{template}");
        }
    }

    #[test]
    fn data_that_are_not_json_have_no_values() {
        let template = Template::parse("{/data/order/id}").unwrap();
        assert!(template.reads_data());
        assert_eq!(template.render(&parts(), None), None);
        assert_eq!(template.render(&parts(), Some(b"<xml/>")), None);
    }

    #[test]
    fn a_text_that_is_no_template_says_what_was_expected() {
        let place = |place: &str, expected| InvalidTemplate::Place {
            place: place.to_owned(),
            expected,
        };
        let either = "an attribute such as {subject}, or a JSON pointer such as {/data/order}";
        for (text, expected) in [
            ("", InvalidTemplate::Empty),
            ("{type", InvalidTemplate::Brace),
            ("type}", InvalidTemplate::Brace),
            ("{a}}", InvalidTemplate::Brace),
            ("{}", place("", either)),
            ("{data}", place("data", either)),
            ("{Type}", place("Type", either)),
            ("{/date/x}", place("/date/x", either)),
            ("{/datax}", place("/datax", either)),
            ("{/data/~2}", place("/data/~2", either)),
        ] {
            assert_eq!(Template::parse(text), Err(expected), "{text}");
        }
        assert_eq!(
            Template::parse(&"x".repeat(1025)),
            Err(InvalidTemplate::TooLong)
        );
        assert_eq!(
            Template::parse_attributes("{/data/x}"),
            Err(place("/data/x", "an attribute such as {type}"))
        );
    }
}
