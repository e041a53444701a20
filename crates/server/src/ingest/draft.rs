//! An event while its attributes are being read, in whatever mode they came. One place holds the rules
//! that all modes share: each attribute once, legal names, legal values, what is required.

use std::borrow::Cow;

use bytes::Bytes;
use wayhold_model::EventParts;
use wayhold_model::limits::EXTENSIONS_MAX;

use super::attribute::{self, Value};
use super::{Refusal, trace};
use crate::config::ParseMode;

/// Attributes read so far; borrows from the request where it can.
#[derive(Debug, Default)]
pub(crate) struct Draft<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) source: Cow<'a, str>,
    pub(crate) kind: Cow<'a, str>,
    pub(crate) subject: Cow<'a, str>,
    pub(crate) time: Cow<'a, str>,
    pub(crate) content_type: Cow<'a, str>,
    pub(crate) dataschema: Cow<'a, str>,
    /// The ordering key that the request itself gave (plain JSON only).
    pub(crate) key: Cow<'a, str>,
    /// The extension `partitionkey` where it is text, at hand so that nobody parses for it.
    partition_key: Cow<'a, str>,
    /// The data, byte for byte.
    pub(crate) data: Bytes,
    specversion: bool,
    extension_names: Vec<Cow<'a, str>>,
    absent: Vec<Cow<'a, str>>,
    /// A JSON object without its closing brace; empty while there are no extensions.
    extensions: String,
}

impl<'a> Draft<'a> {
    /// Takes one attribute of a CloudEvent.
    pub(crate) fn set(
        &mut self,
        name: Cow<'a, str>,
        value: Value<'a>,
        mode: ParseMode,
    ) -> Result<(), Refusal> {
        let name = attribute::name(name, mode)?;
        if self.absent.contains(&name) {
            return Err(twice(&name));
        }
        let slot = match name.as_ref() {
            "specversion" => return self.set_specversion(&value),
            "id" => &mut self.id,
            "source" => &mut self.source,
            "type" => &mut self.kind,
            "subject" => &mut self.subject,
            "time" => &mut self.time,
            "datacontenttype" => &mut self.content_type,
            "dataschema" => &mut self.dataschema,
            "data" => return Err(Refusal::invalid("data", "no attribute of this name")),
            _ => return self.set_extension(name, &value),
        };
        let Value::Text(text) = value else {
            return Err(Refusal::invalid(name, "a string"));
        };
        attribute::text(&name, &text)?;
        if name == "time" {
            attribute::time(&text)?;
        }
        // Present attributes are never empty, so an empty slot was not set.
        if !slot.is_empty() {
            return Err(twice(&name));
        }
        *slot = text;
        Ok(())
    }

    /// Takes an attribute that is present as `null`: it counts as absent, and may not come again, since
    /// one reader would then see it and another not.
    pub(crate) fn set_absent(
        &mut self,
        name: Cow<'a, str>,
        mode: ParseMode,
    ) -> Result<(), Refusal> {
        let name = attribute::name(name, mode)?;
        if self.is_set(&name) || self.absent.contains(&name) {
            return Err(twice(&name));
        }
        if self.absent.len() == EXTENSIONS_MAX {
            return Err(too_many());
        }
        self.absent.push(name);
        Ok(())
    }

    /// Whether an attribute was taken.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        match name {
            "specversion" => self.specversion,
            "id" => !self.id.is_empty(),
            "source" => !self.source.is_empty(),
            "type" => !self.kind.is_empty(),
            "subject" => !self.subject.is_empty(),
            "time" => !self.time.is_empty(),
            "datacontenttype" => !self.content_type.is_empty(),
            "dataschema" => !self.dataschema.is_empty(),
            _ => self
                .extension_names
                .iter()
                .any(|extension| extension == name),
        }
    }

    fn set_specversion(&mut self, value: &Value<'_>) -> Result<(), Refusal> {
        if self.specversion {
            return Err(twice("specversion"));
        }
        if !matches!(value, Value::Text(text) if text == "1.0") {
            return Err(Refusal::invalid("specversion", "\"1.0\""));
        }
        self.specversion = true;
        Ok(())
    }

    fn set_extension(&mut self, name: Cow<'a, str>, value: &Value<'a>) -> Result<(), Refusal> {
        if self.extension_names.contains(&name) {
            return Err(twice(&name));
        }
        if self.extension_names.len() == EXTENSIONS_MAX {
            return Err(too_many());
        }
        self.extensions
            .push(if self.extensions.is_empty() { '{' } else { ',' });
        self.extensions.push('"');
        self.extensions.push_str(&name);
        self.extensions.push_str("\":");
        match value {
            Value::Text(text) => {
                attribute::text(&name, text)?;
                push_json_string(&mut self.extensions, text);
                if name == "partitionkey" {
                    self.partition_key = text.clone();
                }
            }
            Value::Integer(number) => self.extensions.push_str(&number.to_string()),
            Value::Boolean(flag) => self
                .extensions
                .push_str(if *flag { "true" } else { "false" }),
        }
        self.extension_names.push(name);
        Ok(())
    }

    /// Takes the trace context that came beside the event, where the event has none of its own.
    pub(crate) fn set_trace(&mut self, trace: Option<&trace::Context>) -> Result<(), Refusal> {
        let Some(trace) = trace else { return Ok(()) };
        if self
            .extension_names
            .iter()
            .any(|name| name == "traceparent")
        {
            return Ok(());
        }
        let text = |text: &str| Value::Text(Cow::Owned(text.to_owned()));
        self.set_extension(Cow::Borrowed("traceparent"), &text(&trace.parent))?;
        if trace.state.is_empty() || self.extension_names.iter().any(|name| name == "tracestate") {
            return Ok(());
        }
        self.set_extension(Cow::Borrowed("tracestate"), &text(&trace.state))
    }

    /// A CloudEvent must say its version and have an id; the rest is checked when the event is made.
    pub(crate) fn require_cloudevent(&self) -> Result<(), Refusal> {
        if !self.specversion {
            return Err(Refusal::invalid("specversion", "\"1.0\""));
        }
        Ok(())
    }

    /// All of it, for key rules and for making the event.
    pub(crate) fn parts(&mut self) -> EventParts<'_> {
        if self
            .extensions
            .as_bytes()
            .last()
            .is_some_and(|&last| last != b'}')
        {
            self.extensions.push('}');
        }
        let key = match self.key.is_empty() {
            true => &self.partition_key,
            false => &self.key,
        };
        EventParts {
            id: &self.id,
            source: &self.source,
            kind: &self.kind,
            subject: &self.subject,
            time: &self.time,
            content_type: &self.content_type,
            dataschema: &self.dataschema,
            key,
            extensions: &self.extensions,
            data: self.data.clone(),
        }
    }
}

fn too_many() -> Refusal {
    Refusal::invalid(
        "extensions",
        format!("at most {EXTENSIONS_MAX} extension attributes"),
    )
}

fn twice(name: &str) -> Refusal {
    Refusal::invalid(name, "the attribute once")
}

/// Appends `text` as a JSON string. Checked text holds no controls, so only two characters need care.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for part in text.split_inclusive(['"', '\\']) {
        match part.as_bytes().last() {
            Some(&last @ (b'"' | b'\\')) => {
                out.push_str(part.get(..part.len() - 1).unwrap_or_default());
                out.push('\\');
                out.push(char::from(last));
            }
            _ => out.push_str(part),
        }
    }
    out.push('"');
}
