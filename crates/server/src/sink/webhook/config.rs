//! Keys of `kind = "webhook"`.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use url::{Host, Url};

use crate::config::{Choice, NetworkConfig, Section};
use crate::sink::webhook::address::{Denied, Guard};
use crate::sink::webhook::auth::config::AuthConfig;
use crate::sink::webhook::client::config::ClientConfig;
use crate::sink::webhook::sign::{SIGNING_KEYS_MAX, SigningKey};

/// A webhook destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where events are posted. `http` or `https`, with a host and without user information. It may be
    /// a credential in itself: logs name the destination and the host, never the path.
    pub url: Url,
    /// How an event becomes a request.
    pub mode: WebhookMode,
    /// Headers of every request, marked sensitive: any of them may be a credential.
    pub headers: HeaderMap,
    /// Each of them signs every request; a receiver takes one that any key it knows has signed.
    pub signing_keys: Vec<SigningKey>,
    /// How its client connects and how long it waits.
    pub client: ClientConfig,
    /// How it knows who asks.
    pub auth: AuthConfig,
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
pub(crate) const HEADERS_MAX: usize = 50;

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
const RESERVED_PREFIXES: [&str; 3] = ["ce-", "webhook-", "wayhold-"];

impl WebhookConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        let mut allow_networks: Vec<IpNet> = section.get("allow_networks", Vec::new());
        allow_networks.extend(&network.allow);
        let mode = section.get("mode", WebhookMode::Binary);
        let headers = section.table("headers", read_headers);
        let signing_keys = section.secrets("signing_keys", SIGNING_KEYS_MAX, |secret| {
            secret.expose().parse::<SigningKey>()
        });
        let client = ClientConfig::read(section);
        let auth = AuthConfig::read(section, &allow_networks, headers.keys());
        let url = read_url(section, "url", "\"https://HOST/PATH\"")?;
        check_reach("url", &url, &allow_networks, section);
        Some(Self {
            url,
            mode,
            headers,
            signing_keys,
            client,
            auth,
            allow_networks,
        })
    }
}

/// A URL without places, text or secret; `None` only with a problem noted.
pub(crate) fn read_url(section: &mut Section<'_, '_, '_>, key: &str, example: &str) -> Option<Url> {
    if !section.has(key) {
        return section.require::<String>(key, example).and(None);
    }
    let text = section.find_secret(key, shown_url)?;
    // The text itself stays out of problems: its path may be a credential.
    let expected = match Url::parse(text.expose()) {
        Err(error) => format!("expected an http or https URL: {error}"),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            format!("expected an http or https URL, not {}", url.scheme())
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "expected a URL without user and password; put them into auth".to_owned()
        }
        Ok(url) if url.fragment().is_some() => "expected a URL without fragment".to_owned(),
        Ok(url) => return Some(url),
    };
    section.problem(key, expected);
    None
}

/// What of a URL can be shown: its path and query may be a credential.
pub(crate) fn shown_url(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.path() == "/" && url.query().is_none() => url.to_string(),
        Ok(url) => format!("{}/[redacted]", url.origin().ascii_serialization()),
        Err(_) => "[redacted]".to_owned(),
    }
}

/// Refuses what the sink would refuse at every attempt. Names are resolved only there, but for
/// `localhost`, which means this machine (RFC 6761).
pub(crate) fn check_reach(
    key: &str,
    url: &Url,
    allowed: &[IpNet],
    section: &mut Section<'_, '_, '_>,
) {
    let guard = Guard::new(url, allowed);
    let judged = match url.host() {
        Some(Host::Domain(name)) if is_local(name.trim_end_matches('.')) => {
            guard.check(Ipv4Addr::LOCALHOST.into())
        }
        Some(Host::Domain(_)) if url.scheme() == "http" && allowed.is_empty() => {
            section.problem(
                key,
                "expected https; plain http is only for allowed networks",
            );
            section.suggest("allow_networks = [\"10.0.0.0/8\"]".to_owned());
            return;
        }
        _ => guard.check_literal(url),
    };
    let Err(denied) = judged else {
        return;
    };
    let (message, address) = match denied {
        Denied::NotPublic(address) => ("expected a public address or an allowed one", address),
        Denied::Plain(address) => (
            "expected https; plain http is only for allowed networks",
            address,
        ),
    };
    section.problem(key, format!("{message}, not {address}"));
    section.suggest(format!("allow_networks = [\"{}\"]", network_of(address)));
}

fn is_local(domain: &str) -> bool {
    domain == "localhost" || domain.ends_with(".localhost")
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
        let Some(value) = fixed_header_value(value.expose()) else {
            let most = HEADER_BYTES_MAX;
            section.problem(
                name,
                format!("expected at most {most} visible ASCII characters"),
            );
            continue;
        };
        if headers.insert(header, value).is_some() {
            section.problem(name, "expected each header once, in whichever case");
        }
    }
    headers
}

fn header_name(name: &str) -> Option<HeaderName> {
    let header = HeaderName::from_bytes(name.as_bytes()).ok()?;
    (!is_reserved(&header)).then_some(header)
}

/// Whether a header frames a request or belongs to the sink.
pub(crate) fn is_reserved(header: &HeaderName) -> bool {
    RESERVED.contains(&header.as_str())
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| header.as_str().starts_with(prefix))
}

/// Only visible ASCII and blanks: what lies beyond, HTTP marks as obsolete, and receivers disagree.
pub(crate) fn fixed_header_value(text: &str) -> Option<HeaderValue> {
    let plain = text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if !plain || text.len() > HEADER_BYTES_MAX || text.trim() != text {
        return None;
    }
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}
