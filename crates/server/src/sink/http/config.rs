//! Keys of `kind = "http"`.

use http::Method;
use http::header::{CONTENT_TYPE, HeaderName};
use ipnet::IpNet;

use super::body::Body;
use super::request::{HEADER_BYTES_MAX, HeaderText, Mapping};
use super::scan::{Piece, scan};
use super::success::{LISTED, LISTED_MAX, Success};
use super::text::Text;
use super::url::UrlTemplate;
use crate::config::{Choice, NetworkConfig, Section, TextOrSecret};
use crate::sink::webhook::auth::config::AuthConfig;
use crate::sink::webhook::client::config::ClientConfig;
use crate::sink::webhook::config::{
    HEADERS_MAX, check_reach, fixed_header_value, is_reserved, shown_url,
};

/// A destination with an API of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// How an event becomes a request.
    pub(crate) mapping: Mapping,
    /// Whether the URL came by reference, so that no part of it is shown.
    pub(crate) url_is_secret: bool,
    /// Which answers count as delivered.
    pub(crate) success: Success,
    /// How it knows who asks.
    pub(crate) auth: AuthConfig,
    /// How its client connects and how long it waits.
    pub(crate) client: ClientConfig,
    /// Private and loopback networks it may reach, and by plain `http`: its own and those of
    /// `[network] allow`.
    pub allow_networks: Vec<IpNet>,
}

/// The words of `method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Post,
    Put,
    Patch,
    Delete,
    Get,
}

impl Choice for Verb {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("POST", Self::Post),
        ("PUT", Self::Put),
        ("PATCH", Self::Patch),
        ("DELETE", Self::Delete),
        ("GET", Self::Get),
    ];
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Self::Post => Method::POST,
            Self::Put => Method::PUT,
            Self::Patch => Method::PATCH,
            Self::Delete => Method::DELETE,
            Self::Get => Method::GET,
        }
    }

    /// Receivers disagree about a body with these, so none is sent unless asked for.
    fn body(self) -> Body {
        match self {
            Self::Post | Self::Put | Self::Patch => Body::Data,
            Self::Delete | Self::Get => Body::Empty,
        }
    }
}

/// The header of `draft-ietf-httpapi-idempotency-key-header`, which payment and carrier APIs know.
const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// The word that switches it off.
const OFF: &str = "off";

impl HttpConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        Self::read_as(section, network, Verb::Post)
    }

    /// The same with another method where none is set.
    pub(crate) fn read_as(
        section: &mut Section<'_, '_, '_>,
        network: &NetworkConfig,
        usual: Verb,
    ) -> Option<Self> {
        let mut allow_networks: Vec<IpNet> = section.get("allow_networks", Vec::new());
        allow_networks.extend(&network.allow);
        let method = section.get("method", usual);
        let body = section.get("body", method.body());
        let success = read_success(section);
        let headers = section.table("headers", read_headers);
        let idempotency = read_idempotency(section, &headers);
        let names = headers.iter().map(|(name, _)| name);
        let client = ClientConfig::read(section);
        let auth = AuthConfig::read(section, &allow_networks, names);
        let (url, url_is_secret) = read_url(section)?;
        check_reach("url", url.base(), &allow_networks, section);
        Some(Self {
            mapping: Mapping {
                method: method.method(),
                url,
                headers,
                body,
                idempotency,
            },
            url_is_secret,
            success,
            auth,
            client,
            allow_networks,
        })
    }
}

fn read_url(section: &mut Section<'_, '_, '_>) -> Option<(UrlTemplate, bool)> {
    if !section.has("url") {
        return section
            .require::<String>("url", "\"https://HOST/PATH/{subject}\"")
            .and(None);
    }
    let text = section.find_secret("url", shown_url)?;
    match UrlTemplate::parse(text.expose()) {
        Ok(url) => Some((url, matches!(text, TextOrSecret::Secret(_)))),
        Err(problems) => {
            for problem in problems {
                section.problem("url", problem);
            }
            None
        }
    }
}

fn read_success(section: &mut Section<'_, '_, '_>) -> Success {
    let Some(listed) = section.find::<Vec<u32>>("success") else {
        return Success::Any2xx;
    };
    if listed.is_empty() || listed.len() > LISTED_MAX {
        section.problem("success", format!("expected 1 to {LISTED_MAX} statuses"));
    }
    let mut statuses = Vec::new();
    for status in listed {
        match u16::try_from(status) {
            Ok(status) if LISTED.contains(&status) => statuses.push(status),
            _ => {
                let (least, most) = (LISTED.start(), LISTED.end());
                let message = format!("expected statuses from {least} to {most}, not {status}");
                section.problem("success", message);
            }
        }
    }
    Success::Listed(statuses.into())
}

/// The header's name, unless it is switched off.
fn read_idempotency(
    section: &mut Section<'_, '_, '_>,
    headers: &[(HeaderName, HeaderText)],
) -> Option<HeaderName> {
    let set = section.has("idempotency_header");
    let text = section.get("idempotency_header", IDEMPOTENCY_HEADER.to_owned());
    if text == OFF {
        return None;
    }
    let Some(name) = api_header_name(&text) else {
        section.problem(
            "idempotency_header",
            format!("expected the name of a header that is not reserved, or {OFF:?}"),
        );
        return None;
    };
    if headers.iter().any(|(header, _)| *header == name) {
        // A header of the operator's own stands instead of the one by default.
        if set {
            section.problem(
                "idempotency_header",
                "expected a header that headers does not set",
            );
        }
        return None;
    }
    Some(name)
}

fn read_headers(section: &mut Section<'_, '_, '_>) -> Vec<(HeaderName, HeaderText)> {
    let names = section.keys();
    if names.len() > HEADERS_MAX {
        section.problem("", format!("expected at most {HEADERS_MAX} headers"));
    }
    let mut headers = Vec::<(HeaderName, HeaderText)>::new();
    for name in names.iter().take(HEADERS_MAX) {
        // A header's text may be a credential, whatever its name.
        let value = section.find_secret(name, |_| "[redacted]".to_owned());
        let Some(header) = api_header_name(name) else {
            section.problem(name, "expected the name of a header that is not reserved");
            continue;
        };
        if headers.iter().any(|(other, _)| *other == header) {
            section.problem(name, "expected each header once, in whichever case");
        }
        let Some(value) = value else {
            continue;
        };
        match header_text(&value) {
            Ok(text) => headers.push((header, text)),
            Err(problems) => {
                for problem in problems {
                    section.problem(name, problem);
                }
            }
        }
    }
    headers
}

/// Names that may be set: the body's type is the operator's to say, and events' attributes may be sent as any
/// header.
fn api_header_name(name: &str) -> Option<HeaderName> {
    let header = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let free = header == CONTENT_TYPE || header.as_str().starts_with("ce-");
    (free || !is_reserved(&header)).then_some(header)
}

/// A text is a template; a secret is taken as it stands, since nobody looks for places in one.
fn header_text(value: &TextOrSecret) -> Result<HeaderText, Vec<String>> {
    let most = || {
        vec![format!(
            "expected at most {HEADER_BYTES_MAX} visible ASCII characters"
        )]
    };
    let text = match value {
        TextOrSecret::Secret(secret) => {
            let fixed = fixed_header_value(secret.expose()).ok_or_else(most)?;
            return Ok(HeaderText::Fixed(fixed));
        }
        TextOrSecret::Text(text) => text,
    };
    let pieces = scan(text).map_err(|faults| {
        let told = faults.iter().map(|fault| fault.told(text));
        told.collect::<Vec<_>>()
    })?;
    let template = Text { pieces };
    let fixed = fixed_header_value(&template.sample()).ok_or_else(most)?;
    let has_place = template
        .pieces
        .iter()
        .any(|piece| matches!(piece, Piece::Place(_)));
    Ok(if has_place {
        HeaderText::Template(template)
    } else {
        HeaderText::Fixed(fixed)
    })
}
