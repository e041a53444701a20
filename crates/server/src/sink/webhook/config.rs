//! Keys of `kind = "webhook"`.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use url::{Host, Url};

use crate::config::{Choice, NetworkConfig, Section, TextOrSecret};
use crate::sink::webhook::reach::{is_allowed, is_public};

/// A webhook destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where events are posted. `http` or `https`, with a host and without user information. It may be
    /// a credential in itself: logs name the destination and the host, never the path.
    pub url: Url,
    /// How an event becomes a request.
    pub mode: WebhookMode,
    /// Headers of every request; those from secrets are marked sensitive.
    pub headers: HeaderMap,
    /// Private and loopback networks it may reach, and by plain `http`: its own and those of
    /// `[network] allow`.
    pub allow_networks: Vec<IpNet>,
}

/// How an event becomes a request (CloudEvents HTTP binding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookMode {
    /// Attributes as headers, data as body.
    Binary,
    /// The whole event as a JSON body.
    Structured,
}

impl Choice for WebhookMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("binary", Self::Binary), ("structured", Self::Structured)];
}

/// Most configured headers: receivers cap all headers near 100.
const HEADERS_MAX: usize = 50;

/// Longest value of a configured header, in bytes: tokens end far below.
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// Headers that frame a request or belong to the sink; a configured one could only contradict it.
const RESERVED: [&str; 13] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Prefixes of headers that carry events' attributes and signatures.
const RESERVED_PREFIXES: [&str; 2] = ["ce-", "webhook-"];

impl WebhookConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        let mut allow_networks: Vec<IpNet> = section.get("allow_networks", Vec::new());
        allow_networks.extend(&network.allow);
        let mode = section.get("mode", WebhookMode::Binary);
        let headers = section.table("headers", read_headers);
        let url = read_url(section)?;
        if let Err(refusal) = reachable(&url, &allow_networks) {
            section.problem("url", refusal.message);
            section.suggest(format!("allow_networks = [\"{}\"]", refusal.network));
        }
        Some(Self { url, mode, headers, allow_networks })
    }
}

fn read_url(section: &mut Section<'_, '_, '_>) -> Option<Url> {
    if !section.has("url") {
        return section.require::<String>("url", "\"https://HOST/PATH\"").and(None);
    }
    let text = section.find_secret("url", |text| match Url::parse(text) {
        Ok(url) if url.path() == "/" && url.query().is_none() => url.to_string(),
        Ok(url) => format!("{}/[redacted]", url.origin().ascii_serialization()),
        Err(_) => "[redacted]".to_owned(),
    })?;
    // The text itself stays out of problems: its path may be a credential.
    let expected = match Url::parse(text.expose()) {
        Err(error) => format!("expected an http or https URL: {error}"),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            format!("expected an http or https URL, not {}", url.scheme())
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "expected a URL without user and password; put them into headers".to_owned()
        }
        Ok(url) if url.fragment().is_some() => "expected a URL without fragment".to_owned(),
        Ok(url) => return Some(url),
    };
    section.problem("url", expected);
    None
}

struct Refusal {
    message: String,
    /// The network that would have to be allowed.
    network: String,
}

/// Refuses what the sink would refuse at every attempt. Names are resolved only there, but for
/// `localhost`, which means this machine (RFC 6761).
fn reachable(url: &Url, allowed: &[IpNet]) -> Result<(), Refusal> {
    let local = |domain: &str| domain == "localhost" || domain.ends_with(".localhost");
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let address = match url.host() {
        Some(Host::Ipv4(address)) => Some(IpAddr::from(address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::from(address).to_canonical()),
        Some(Host::Domain(domain)) if local(domain.trim_end_matches('.')) => Some(loopback),
        Some(Host::Domain(_)) | None => None,
    };
    match address {
        Some(address) if is_allowed(address, allowed) => Ok(()),
        Some(address) if !is_public(address) => Err(Refusal {
            message: format!("expected a public address; {address} must be allowed"),
            network: network_of(address),
        }),
        Some(address) if url.scheme() == "http" => Err(Refusal {
            message: format!("expected https; plain http to {address} must be allowed"),
            network: IpNet::from(address).to_string(),
        }),
        None if url.scheme() == "http" && allowed.is_empty() => Err(Refusal {
            message: "expected https; plain http is only for allowed networks".to_owned(),
            network: "10.0.0.0/8".to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// The network a person most likely means: all of loopback, else the one address.
fn network_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) if address.is_loopback() => "127.0.0.0/8".to_owned(),
        address => IpNet::from(address).to_string(),
    }
}

fn read_headers(section: &mut Section<'_, '_, '_>) -> HeaderMap {
    let names = section.keys();
    if names.len() > HEADERS_MAX {
        section.problem("", format!("expected at most {HEADERS_MAX} headers"));
    }
    let mut headers = HeaderMap::new();
    for name in names.iter().take(HEADERS_MAX) {
        // A header's text may be a credential, whatever its name.
        let value = section.find_secret(name, |_| "[redacted]".to_owned());
        let Some(header) = header_name(name) else {
            section.problem(name, "expected the name of a header that is not reserved");
            continue;
        };
        let Some(value) = value else {
            continue;
        };
        match header_value(&value) {
            Some(value) if headers.insert(header, value).is_some() => {
                section.problem(name, "expected each header once, in whichever case");
            }
            Some(_) => {}
            None => {
                let most = HEADER_BYTES_MAX;
                section.problem(name, format!("expected at most {most} visible ASCII characters"));
            }
        }
    }
    headers
}

fn header_name(name: &str) -> Option<HeaderName> {
    let header = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let reserved = RESERVED.contains(&header.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| header.as_str().starts_with(prefix));
    (!reserved).then_some(header)
}

/// Only visible ASCII and blanks: what lies beyond, HTTP marks as obsolete, and receivers disagree.
fn header_value(value: &TextOrSecret) -> Option<HeaderValue> {
    let text = value.expose();
    let plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if !plain || text.len() > HEADER_BYTES_MAX || text.trim() != text {
        return None;
    }
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}
