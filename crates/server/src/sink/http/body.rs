//! What a request carries.

use bytes::Bytes;
use serde_json::Value as Json;
use thiserror::Error;
use wayhold_model::Event;

use super::json::JsonTemplate;
use super::values::{Missing, Values};
use crate::config::{Faults, Node, Setting, text_of};
use crate::sink::cloudevents::{STRUCTURED_CONTENT_TYPE, write_structured};

/// Longest template, in bytes: written by hand, and each place costs a walk through the data.
const TEMPLATE_BYTES_MAX: usize = 16 * 1024;

/// Longest body that a template makes, in bytes. Data may stand in several places; without a bound one event
/// could become a thousand times its size.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Key `body`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// The event's data, byte for byte, under their own content type.
    Data,
    /// The whole event as JSON (CloudEvents, structured mode).
    CloudEvent,
    /// Nothing.
    Empty,
    /// JSON of the operator's own.
    Template(Box<str>, JsonTemplate),
}

/// An event that has no body.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum NoBody {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("expected at most {BODY_BYTES_MAX} bytes once filled")]
    TooLong,
}

impl Body {
    /// The body for one event, and its content type where it has one.
    ///
    /// # Errors
    /// Names the place that the event has nothing for.
    pub(super) fn render<'e>(&self, event: &'e Event) -> Result<(Bytes, Option<&'e str>), NoBody> {
        Ok(match self {
            Self::Empty => (Bytes::new(), None),
            Self::Data => {
                let kind = Some(event.content_type()).filter(|kind| !kind.is_empty());
                (event.data().clone(), kind)
            }
            Self::CloudEvent => {
                let mut body = Vec::with_capacity(event.size() + event.data().len() / 2 + 256);
                write_structured(event, &mut body);
                (body.into(), Some(STRUCTURED_CONTENT_TYPE))
            }
            Self::Template(_, template) => {
                let mut body = String::new();
                template.render(Values::of(event), &mut body)?;
                if body.len() > BODY_BYTES_MAX {
                    return Err(NoBody::TooLong);
                }
                (body.into(), Some("application/json"))
            }
        })
    }
}

impl Setting for Body {
    fn read(node: &Node) -> Result<Self, Faults> {
        let expected = "expected \"data\", \"cloudevent\", \"none\" or a text of JSON with places";
        let text = text_of(node).ok_or_else(|| Faults::new(expected))?;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match text {
            "data" => Ok(Self::Data),
            "cloudevent" => Ok(Self::CloudEvent),
            "none" => Ok(Self::Empty),
            word if word.bytes().all(is_word) => Err(Faults::new(expected)),
            long if long.len() > TEMPLATE_BYTES_MAX => Err(Faults::new(format!(
                "expected at most {TEMPLATE_BYTES_MAX} bytes"
            ))),
            template => JsonTemplate::parse(template)
                .map(|parsed| Self::Template(template.into(), parsed))
                .map_err(Faults::several),
        }
    }

    fn show(&self) -> Json {
        match self {
            Self::Data => "data".into(),
            Self::CloudEvent => "cloudevent".into(),
            Self::Empty => "none".into(),
            Self::Template(text, _) => (**text).into(),
        }
    }
}
