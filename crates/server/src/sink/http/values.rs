//! What an event has to put into a template's places.

use std::borrow::Cow;

use thiserror::Error;
use wayhold_model::attribute::{AttributeName, Attributes as _};
use wayhold_model::place::Place;
use wayhold_model::{AttributeValue, Event};

/// A place that the event has nothing for. It names the place and never what stands in the data.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected a value for {place}, but {why}")]
pub(super) struct Missing {
    place: String,
    why: &'static str,
}

const ABSENT: &str = "the event has none";
const DATA_NOT_JSON: &str = "the event's data are not JSON";
const NOT_A_TEXT: &str = "what the event has there is null, an object or an array";
const EMPTY: &str = "what the event has there is empty";

/// An event as templates see it.
#[derive(Clone, Copy)]
pub(super) struct Values<'e> {
    event: &'e Event,
}

impl<'e> Values<'e> {
    pub(super) fn of(event: &'e Event) -> Self {
        Self { event }
    }

    /// The value as text: an attribute, a string's content, a number or boolean exactly as it was
    /// written. A string in the data may be empty.
    pub(super) fn text(self, place: &Place) -> Result<Cow<'e, str>, Missing> {
        let missing = |why| missing(place, why);
        match place {
            Place::Attribute(name) => self.attribute(name).ok_or_else(|| missing(ABSENT)),
            Place::Data(_) => {
                let raw = self.json_in_data(place)?;
                match raw.as_bytes().first() {
                    Some(b'"') => serde_json::from_str::<String>(raw)
                        .map(Cow::Owned)
                        .map_err(|_| missing(NOT_A_TEXT)),
                    Some(b'{' | b'[' | b'n') | None => Err(missing(NOT_A_TEXT)),
                    Some(_) => Ok(Cow::Borrowed(raw)),
                }
            }
        }
    }

    /// The same, and not empty.
    pub(super) fn filled(self, place: &Place) -> Result<Cow<'e, str>, Missing> {
        let text = self.text(place)?;
        if text.is_empty() {
            return Err(missing(place, EMPTY));
        }
        Ok(text)
    }

    /// The value as JSON: of the data byte for byte, of whichever kind; an attribute as a string, but
    /// for extensions that are numbers or booleans.
    pub(super) fn json(self, place: &Place) -> Result<Cow<'e, str>, Missing> {
        let Place::Attribute(name) = place else {
            return self.json_in_data(place).map(Cow::Borrowed);
        };
        if let AttributeName::Extension(name) = name
            && let Some(value @ (AttributeValue::Integer(_) | AttributeValue::Boolean(_))) =
                self.event.extension(name)
        {
            return Ok(Cow::Owned(value.to_string()));
        }
        let text = self.text(place)?;
        Ok(Cow::Owned(serde_json::Value::from(text).to_string()))
    }

    fn attribute(self, name: &AttributeName) -> Option<Cow<'e, str>> {
        Some(self.event.attribute(name)).filter(|text| !text.is_empty())
    }

    fn json_in_data(self, place: &Place) -> Result<&'e str, Missing> {
        let Place::Data(pointer) = place else {
            return Err(missing(place, ABSENT));
        };
        if !self.event.data_is_json() {
            return Err(missing(place, DATA_NOT_JSON));
        }
        let found = pointer.raw_in(self.event.data());
        found.ok_or_else(|| missing(place, ABSENT))
    }
}

fn missing(place: &Place, why: &'static str) -> Missing {
    Missing {
        place: place.to_string(),
        why,
    }
}
