//! How an event becomes a request.

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;
use url::Url;
use wayhold_model::Event;
use wayhold_model::webhook_id::webhook_id;

use super::body::Body;
use super::text::{Text, in_header};
use super::url::UrlTemplate;
use super::values::Values;

/// Longest header as configured and as made, in bytes: common receivers refuse longer ones.
pub(super) const HEADER_BYTES_MAX: usize = 8 * 1024;

/// How an event becomes a request: a pure function of the event, so that each attempt sends the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(super) method: Method,
    pub(super) url: UrlTemplate,
    pub(super) headers: Vec<(HeaderName, HeaderText)>,
    pub(super) body: Body,
    /// The header that carries the event's identity, so that a repeat has its effect once.
    pub(super) idempotency: Option<HeaderName>,
}

/// The text of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderText {
    /// The same for every event.
    Fixed(HeaderValue),
    /// Filled from the event.
    Template(Text),
}

/// A request without what the client adds.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An event that cannot become a request; the same event never will, with this configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {why}")]
pub(crate) struct Unmappable {
    key: String,
    why: String,
}

impl Mapping {
    /// A URL at the destination's host, to know whom it is about; not one to send to.
    pub(crate) fn base(&self) -> &Url {
        self.url.base()
    }

    /// Whether a header has the same value for every event.
    pub(crate) fn is_fixed(&self, name: &HeaderName) -> bool {
        self.headers
            .iter()
            .any(|(header, text)| header == name && matches!(text, HeaderText::Fixed(_)))
    }

    /// The request for one event.
    ///
    /// # Errors
    /// Names the key whose template the event cannot fill, and the place.
    pub(crate) fn request_of(&self, event: &Event) -> Result<Mapped, Unmappable> {
        let values = Values::of(event);
        let url = self
            .url
            .render(values)
            .map_err(|why| unmappable("url", why))?;
        let (body, content_type) = self
            .body
            .render(event)
            .map_err(|why| unmappable("body", why))?;
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 2);
        if let Some(content_type) = content_type {
            let value = HeaderValue::from_str(content_type).map_err(|_| {
                unmappable("body", "expected a datacontenttype that a header can hold")
            })?;
            headers.insert(CONTENT_TYPE, value);
        }
        if let Some(name) = &self.idempotency {
            let value = HeaderValue::from_str(&webhook_id(event));
            headers.insert(
                name,
                value.map_err(|_| unmappable("idempotency_header", "expected visible ASCII"))?,
            );
        }
        for (name, text) in &self.headers {
            let value = text
                .render(values)
                .map_err(|why| unmappable(&format!("headers.{name}"), why))?;
            headers.insert(name, value);
        }
        Ok(Mapped {
            method: self.method.clone(),
            url,
            headers,
            body,
        })
    }
}

impl HeaderText {
    fn render(&self, values: Values<'_>) -> Result<HeaderValue, String> {
        let text = match self {
            Self::Fixed(value) => return Ok(value.clone()),
            Self::Template(text) => text,
        };
        let mut rendered = String::new();
        text.render(values, in_header, &mut rendered)
            .map_err(|missing| missing.to_string())?;
        if rendered.len() > HEADER_BYTES_MAX {
            return Err(format!(
                "expected at most {HEADER_BYTES_MAX} bytes once filled"
            ));
        }
        let mut value = HeaderValue::from_str(&rendered)
            .map_err(|_| "expected a text that a header can hold once filled".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn unmappable(key: &str, why: impl ToString) -> Unmappable {
    Unmappable {
        key: key.to_owned(),
        why: why.to_string(),
    }
}
