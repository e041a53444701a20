//! What a destination is sent: events as they are, or requests in the shape of its own API.

use bytes::Bytes;
use http::{HeaderName, StatusCode};
use reqwest::{Method, Request};
use wayhold_model::{Event, Failure, FailureClass, Outcome, OutcomeKind, Timestamp};

use super::config::{WebhookConfig, shown_url};
use super::line::Way;
use super::request::request_of;
use super::sign;
use crate::sink::http::config::HttpConfig;
use crate::sink::{MASK, Preview};

/// The two kinds of destinations that speak HTTP.
#[derive(Clone, Debug)]
pub enum Shape {
    /// `kind = "webhook"`.
    Events(WebhookConfig),
    /// `kind = "http"`.
    Mapped(HttpConfig),
}

impl From<&WebhookConfig> for Shape {
    fn from(config: &WebhookConfig) -> Self {
        Self::Events(config.clone())
    }
}

impl From<&HttpConfig> for Shape {
    fn from(config: &HttpConfig) -> Self {
        Self::Mapped(config.clone())
    }
}

impl Shape {
    /// The way to it.
    pub(super) fn way(&self) -> Way<'_> {
        match self {
            Self::Events(config) => Way {
                base: &config.url,
                allow_networks: &config.allow_networks,
                auth: &config.auth,
                client: &config.client,
            },
            Self::Mapped(config) => Way {
                base: config.mapping.base(),
                allow_networks: &config.allow_networks,
                auth: &config.auth,
                client: &config.client,
            },
        }
    }

    /// The request for one event, signed as of `now` where it is signed.
    ///
    /// # Errors
    /// When the event cannot be sent, with this configuration not ever.
    pub(super) fn request_of(&self, event: &Event, now: Timestamp) -> Result<Request, Failure> {
        let (mut request, headers, body) = match self {
            Self::Events(config) => {
                let (mut headers, body) = request_of(event, config.mode, &config.headers)
                    .map_err(|error| Failure::new(FailureClass::Mapping, error.to_string()))?;
                sign::set_headers(&config.signing_keys, event, &body, now, &mut headers);
                let request = Request::new(Method::POST, config.url.clone());
                (request, headers, body)
            }
            Self::Mapped(config) => {
                let mapped = config
                    .mapping
                    .request_of(event)
                    .map_err(|error| Failure::new(FailureClass::Mapping, error.to_string()))?;
                let request = Request::new(mapped.method, mapped.url);
                (request, mapped.headers, mapped.body)
            }
        };
        *request.headers_mut() = headers;
        if !(body.is_empty() && matches!(request.method(), &Method::GET | &Method::DELETE)) {
            *request.body_mut() = Some(body.into());
        }
        Ok(request)
    }

    /// The request for one event as an operator may see it. No token is fetched for it.
    ///
    /// # Errors
    /// As `request_of`.
    pub(super) fn preview(&self, event: &Event, now: Timestamp) -> Result<Preview, Failure> {
        let mut request = self.request_of(event, now)?;
        let body = request.body_mut().take();
        let body = body.and_then(|body| body.as_bytes().map(Bytes::copy_from_slice));
        let mut headers = Vec::new();
        for (name, value) in request.headers() {
            let shown = if self.is_shown(name) {
                String::from_utf8_lossy(value.as_bytes()).into_owned()
            } else {
                MASK.to_owned()
            };
            headers.push((name.to_string(), shown));
        }
        if let Some(name) = self.way().auth.credential.header() {
            headers.push((name.to_string(), MASK.to_owned()));
        }
        let url = match self {
            Self::Mapped(config) if !config.url_is_secret => request.url().to_string(),
            _ => shown_url(request.url().as_str()),
        };
        Ok(Preview {
            method: request.method().to_string(),
            url,
            headers,
            body: body.unwrap_or_default(),
        })
    }

    /// Whether a header's value comes from the event. A fixed one may be a credential, whatever its name.
    fn is_shown(&self, name: &HeaderName) -> bool {
        match self {
            Self::Events(config) => !config.headers.contains_key(name),
            Self::Mapped(config) => !config.mapping.is_fixed(name),
        }
    }

    /// The outcome of an answer where the configuration decides it; `None` where its status means what
    /// it means everywhere.
    pub(super) fn outcome_of(&self, host: &str, status: StatusCode) -> Option<Outcome> {
        let Self::Mapped(config) = self else {
            return None;
        };
        let code = status.as_u16();
        let (kind, class) = config.success.meaning_of(code)?;
        if kind == OutcomeKind::Delivered {
            return Some(Outcome::Delivered);
        }
        let reason = format!("{host} answered {code}, which success does not list");
        let failure = Failure::new(class, reason).with_status(i32::from(code));
        Some(Outcome::Refused(failure))
    }

    /// A request that tells whether the destination can be reached and changes nothing there. An API
    /// has no path without an event, so it is asked about itself.
    pub(super) fn probe(&self) -> Request {
        match self {
            Self::Events(config) => {
                let mut request = Request::new(Method::OPTIONS, config.url.clone());
                *request.headers_mut() = config.headers.clone();
                request
            }
            Self::Mapped(config) => {
                let mut url = config.mapping.base().clone();
                url.set_path("/");
                url.set_query(None);
                Request::new(Method::OPTIONS, url)
            }
        }
    }
}
