//! Keys of `kind = "wayhold"`.

use std::time::Duration;

use ipnet::IpNet;
use url::Url;

use crate::config::{NetworkConfig, Section};
use crate::sink::webhook::auth::config::AuthConfig;
use crate::sink::webhook::client::config::ClientConfig;
use crate::sink::webhook::config::{check_reach, read_url};

/// Another Wayhold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    /// Where events are posted: the configured URL and the path of its door.
    pub events_url: Url,
    /// How much goes at once.
    pub batch: BatchLimits,
    /// How its client connects and how long it waits.
    pub client: ClientConfig,
    /// How it knows who asks.
    pub auth: AuthConfig,
    /// Private and loopback networks it may reach, and by plain `http`: its own and those of
    /// `[network] allow`.
    pub allow_networks: Vec<IpNet>,
}

/// Bounds of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most events.
    pub events: usize,
    /// Most bytes of the body, about; an event that is larger alone goes alone.
    pub bytes: usize,
    /// How long the first event waits for company. While a batch is under way the next one gathers anyhow.
    pub linger: Duration,
}

impl Default for BatchLimits {
    /// Half of what the other one takes by default, so that a batch is never refused for its size alone.
    fn default() -> Self {
        Self {
            events: 500,
            bytes: 512 * KIB,
            linger: Duration::ZERO,
        }
    }
}

const KIB: usize = 1024;

/// The largest batch that a server can be told to take, in events.
const EVENTS_MAX: usize = 10_000;

/// The largest body that a server can be told to take.
const BYTES_MAX: usize = 64 * 1024 * KIB;

/// Longest wait for company: far below the time of an attempt.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// The door for events, below the configured URL.
const EVENTS_PATH: [&str; 2] = ["v1", "events"];

impl ForwardConfig {
    /// Reads the keys; `None` only with a problem noted.
    pub(crate) fn read(section: &mut Section<'_, '_, '_>, network: &NetworkConfig) -> Option<Self> {
        let mut allow_networks: Vec<IpNet> = section.get("allow_networks", Vec::new());
        allow_networks.extend(&network.allow);
        let batch = section.table("batch", BatchLimits::read);
        let client = ClientConfig::read(section);
        let auth = AuthConfig::read(section, &allow_networks, [].iter());
        let url = read_url(section, "url", "\"https://HOST\"")?;
        check_reach("url", &url, &allow_networks, section);
        Some(Self {
            events_url: events_url(url, section)?,
            batch,
            client,
            auth,
            allow_networks,
        })
    }
}

/// The door below a server's URL, which may have a prefix where it stands behind a proxy.
fn events_url(mut url: Url, section: &mut Section<'_, '_, '_>) -> Option<Url> {
    let names_the_door = url.path().trim_end_matches('/').ends_with("/v1/events");
    if names_the_door || url.query().is_some() {
        section.problem(
            "url",
            "expected the server's URL without query and without /v1/events, which is added",
        );
        return None;
    }
    // An http or https URL always has segments.
    url.path_segments_mut()
        .ok()?
        .pop_if_empty()
        .extend(EVENTS_PATH);
    Some(url)
}

impl BatchLimits {
    fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let default = Self::default();
        let bytes =
            section.bytes_within("bytes", default.bytes as u64, KIB as u64, BYTES_MAX as u64);
        Self {
            events: section.within("events", default.events, 1, EVENTS_MAX),
            bytes: usize::try_from(bytes).unwrap_or(BYTES_MAX),
            linger: section.within("linger", default.linger, Duration::ZERO, LINGER_MAX),
        }
    }
}
