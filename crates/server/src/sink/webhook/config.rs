//! Keys of `kind = "webhook"`.

use http::HeaderMap;
use ipnet::IpNet;
use url::Url;

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
