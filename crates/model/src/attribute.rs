//! Names of what conditions and templates may read of an event, and the reading.
//!
//! Every attribute reads as the text that a header would carry (`true`, `42`), so that a route decides
//! alike whichever transport mode an event came by; what is absent reads as the empty string.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::event::{Event, EventParts, extension_of};
use crate::limits;

/// Something of an event that can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeName {
    /// CloudEvents `id`.
    Id,
    /// CloudEvents `source`.
    Source,
    /// CloudEvents `type`.
    Type,
    /// CloudEvents `subject`.
    Subject,
    /// CloudEvents `time`, as received.
    Time,
    /// CloudEvents `datacontenttype`.
    DataContentType,
    /// CloudEvents `dataschema`.
    DataSchema,
    /// The ordering key.
    Key,
    /// An extension attribute.
    Extension(Box<str>),
}

/// A text that names no attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected the name of an attribute: lower-case letters and digits, such as \"subject\"")]
pub struct InvalidAttributeName;

impl FromStr for AttributeName {
    type Err = InvalidAttributeName;

    fn from_str(text: &str) -> Result<Self, InvalidAttributeName> {
        Ok(match text {
            "id" => Self::Id,
            "source" => Self::Source,
            "type" => Self::Type,
            "subject" => Self::Subject,
            "time" => Self::Time,
            "datacontenttype" => Self::DataContentType,
            "dataschema" => Self::DataSchema,
            "key" => Self::Key,
            // CloudEvents keeps this name for the event's content, which is no attribute.
            "" | "data" => return Err(InvalidAttributeName),
            name if name.len() > limits::EXTENSION_NAME_BYTES_MAX => {
                return Err(InvalidAttributeName);
            }
            name if name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) =>
            {
                Self::Extension(name.into())
            }
            _ => return Err(InvalidAttributeName),
        })
    }
}

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "id",
            Self::Source => "source",
            Self::Type => "type",
            Self::Subject => "subject",
            Self::Time => "time",
            Self::DataContentType => "datacontenttype",
            Self::DataSchema => "dataschema",
            Self::Key => "key",
            Self::Extension(name) => name,
        })
    }
}

/// Whatever has an event's attributes: an event, or the parts one is about to be made from.
pub trait Attributes: Sync {
    /// The attribute's text; empty when it is absent. Borrowed, but for an extension that is present:
    /// extensions are kept as one JSON text and read out of it each time.
    fn attribute(&self, name: &AttributeName) -> Cow<'_, str>;
}

impl Attributes for Event {
    fn attribute(&self, name: &AttributeName) -> Cow<'_, str> {
        Cow::Borrowed(match name {
            AttributeName::Id => self.id(),
            AttributeName::Source => self.source(),
            AttributeName::Type => self.kind(),
            AttributeName::Subject => self.subject(),
            AttributeName::Time => self.time(),
            AttributeName::DataContentType => self.content_type(),
            AttributeName::DataSchema => self.dataschema(),
            AttributeName::Key => self.key().unwrap_or_default(),
            AttributeName::Extension(name) => return extension_text(self.extensions_text(), name),
        })
    }
}

impl Attributes for EventParts<'_> {
    fn attribute(&self, name: &AttributeName) -> Cow<'_, str> {
        Cow::Borrowed(match name {
            AttributeName::Id => self.id,
            AttributeName::Source => self.source,
            AttributeName::Type => self.kind,
            AttributeName::Subject => self.subject,
            AttributeName::Time => self.time,
            AttributeName::DataContentType => self.content_type,
            AttributeName::DataSchema => self.dataschema,
            AttributeName::Key => self.key,
            AttributeName::Extension(name) => return extension_text(self.extensions, name),
        })
    }
}

fn extension_text<'a>(extensions: &'a str, name: &str) -> Cow<'a, str> {
    extension_of(extensions, name).map_or(Cow::Borrowed(""), |value| Cow::Owned(value.to_string()))
}
