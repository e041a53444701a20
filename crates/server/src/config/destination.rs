//! A configured target with its policy, table `[destinations.NAME]`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wayhold_model::admission::{BacklogLimits, OnLimit};
use wayhold_model::breaker::BreakerPolicy;
use wayhold_model::rate::Rate;
use wayhold_model::verdict::RetryPolicy;

use crate::config::failures::read_retry_policy;
use crate::config::limits::read_backlog;
use crate::config::rules::RULES;
use crate::config::section::Section;
use crate::config::setting::Choice;
use crate::config::settings::NetworkConfig;
use crate::sink::file::config::FileConfig;
use crate::sink::http::config::HttpConfig;
#[cfg(feature = "kafka")]
use crate::sink::kafka::config::KafkaConfig;
use crate::sink::wayhold::config::ForwardConfig;
use crate::sink::webhook::config::WebhookConfig;

/// A destination.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// Its name, by which operators and routes know it.
    pub name: DestinationName,
    /// What speaks to it.
    pub sink: SinkConfig,
    /// When and how often it is tried.
    pub delivery: DeliveryPolicy,
    /// What may be pending for it; nothing is limited unless somebody says so.
    pub limits: BacklogLimits,
    /// What happens to its events when that is reached.
    pub on_limit: OnLimit,
    /// How long its dead letters are kept; `None` is for ever.
    pub keep: Option<Duration>,
}

/// What speaks to a destination, key `kind`.
#[derive(Clone, Debug)]
pub enum SinkConfig {
    /// A file on this machine.
    File(FileConfig),
    /// An HTTP receiver that takes events as they are.
    Webhook(WebhookConfig),
    /// An HTTP API that wants events in its own shape.
    Http(HttpConfig),
    /// Another Wayhold.
    Wayhold(ForwardConfig),
    /// A Kafka cluster.
    #[cfg(feature = "kafka")]
    Kafka(KafkaConfig),
    /// Nobody: every delivery succeeds at once.
    Null,
    /// The rules of this configuration, which propose commands.
    Rules,
}

impl SinkConfig {
    /// The word in the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Webhook(_) => "webhook",
            Self::Http(_) => "http",
            Self::Wayhold(_) => "wayhold",
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "kafka",
            Self::Null => "null",
            Self::Rules => "rules",
        }
    }
}

/// When and how often a destination is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// What a failed delivery means for later events of its key.
    pub on_failure: OnFailure,
    /// What a dead letter means for later events of its key.
    pub on_dead_letter: OnDeadLetter,
    /// What follows a failure: waits, limits, and rules by class and status.
    pub retry: RetryPolicy,
    /// When it is left alone altogether.
    pub breaker: BreakerPolicy,
    /// Which attempts go on the record.
    pub record: Recorded,
    /// Most attempts that may start in a time; `None` sets no bound.
    pub rate: Option<Rate>,
    /// Most attempts in flight. It also bounds what an unclean stop repeats, see `dispatch`.
    pub concurrency: usize,
    /// Most attempts in flight for one ordering key. Above 1 a Kafka destination gives up order within a key when
    /// one fails; another Wayhold gets them in batches that are stored whole or not at all, and keeps it.
    pub in_flight_per_key: u32,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Most blocked keys before the lane stops reading ahead.
    pub max_blocked_keys: usize,
}

/// Most attempts of a replay in flight, however many the destination takes.
pub const REPLAY_CONCURRENCY_MAX: usize = 64;

impl DeliveryPolicy {
    /// Attempts of a replay that the destination may have in flight beside its own `concurrency`: a quarter of those,
    /// so that four of its own go with each, and at least one.
    pub fn replay_concurrency(&self) -> usize {
        (self.concurrency / 4).clamp(1, REPLAY_CONCURRENCY_MAX)
    }
}

/// What a failed delivery means for later events of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They wait until it is resolved.
    Block,
    /// It is set aside for retry and they go on.
    Park,
}

/// What a dead letter means for later events of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeadLetter {
    /// They go on.
    Release,
    /// They wait until an operator has redriven or discarded it.
    Hold,
}

/// Which attempts of a destination go on the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Those that failed.
    Failures,
    /// Every one.
    All,
}

impl Choice for Recorded {
    const WORDS: &'static [(&'static str, Self)] =
        &[("failures", Self::Failures), ("all", Self::All)];
}

impl Choice for OnLimit {
    const WORDS: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("dead_letter", Self::DeadLetter)];
}

impl Choice for OnFailure {
    const WORDS: &'static [(&'static str, Self)] = &[("block", Self::Block), ("park", Self::Park)];
}

impl Choice for OnDeadLetter {
    const WORDS: &'static [(&'static str, Self)] =
        &[("release", Self::Release), ("hold", Self::Hold)];
}

/// What a destination's kind decides about its policy's defaults.
struct KindDefaults {
    concurrency: usize,
    timeout: Duration,
}

/// HTTP: each attempt is a request of its own, and eight at a time suit most receivers; 15 s for
/// each are what receivers in public use are given.
const HTTP_DEFAULTS: KindDefaults = KindDefaults {
    concurrency: 8,
    timeout: Duration::from_secs(15),
};

/// Everything else takes events in bulk (a file is synced, Kafka and another Wayhold acknowledge per batch), so
/// the window must hold a batch; it also bounds what an unclean stop repeats.
const BULK_DEFAULTS: KindDefaults = KindDefaults {
    concurrency: 1024,
    timeout: Duration::from_secs(60),
};

impl DestinationConfig {
    /// Reads `[destinations.NAME]`; `None` only with a problem noted.
    pub(super) fn read(
        name: &str,
        network: &NetworkConfig,
        section: &mut Section<'_, '_, '_>,
    ) -> Option<Self> {
        let name = name.parse::<DestinationName>().map_err(|error| {
            section.problem("", error.to_string());
        });
        let kind = section.require::<Kind>("kind", "\"webhook\"")?;
        let defaults = match kind {
            Kind::Webhook | Kind::Http | Kind::Rules => HTTP_DEFAULTS,
            Kind::File | Kind::Wayhold | Kind::Kafka | Kind::Null => BULK_DEFAULTS,
        };
        let sink = match kind {
            Kind::File => FileConfig::read(section).map(SinkConfig::File),
            Kind::Webhook => WebhookConfig::read(section, network).map(SinkConfig::Webhook),
            Kind::Http => HttpConfig::read(section, network).map(SinkConfig::Http),
            Kind::Wayhold => ForwardConfig::read(section, network).map(SinkConfig::Wayhold),
            #[cfg(feature = "kafka")]
            Kind::Kafka => KafkaConfig::read(section).map(SinkConfig::Kafka),
            #[cfg(not(feature = "kafka"))]
            Kind::Kafka => {
                section.problem(
                    "kind",
                    "this wayhold was built without Kafka; build it with \
                     `cargo build --release --features kafka`",
                );
                return None;
            }
            Kind::Null => Some(SinkConfig::Null),
            Kind::Rules => Some(SinkConfig::Rules),
        };
        if kind == Kind::Rules && name.as_ref().is_ok_and(|name| name.as_str() != RULES) {
            section.problem(
                "kind",
                format!("expected only of the destination {RULES:?}"),
            );
        }
        let delivery = DeliveryPolicy::read(kind, &defaults, section);
        let limits = section.table("limits", |section| {
            read_backlog(section, ["events", "bytes", "age"])
        });
        let on_limit = section.get("on_limit", OnLimit::default());
        // Everything is asked for before anything is given up, or what was not would count as unknown.
        let keep = section.table("dead_letters", read_keep);
        Some(Self {
            name: name.ok()?,
            sink: sink?,
            delivery: delivery?,
            limits,
            on_limit,
            keep,
        })
    }
}

/// Shortest time that dead letters are kept: who wants none of them asks for no dead letters.
const KEEP_MIN: Duration = Duration::from_secs(1);

fn read_keep(section: &mut Section<'_, '_, '_>) -> Option<Duration> {
    let keep = section.find::<Duration>("keep")?;
    if keep < KEEP_MIN {
        section.problem(
            "keep",
            "expected at least 1s; leave it out to keep them for ever",
        );
    }
    Some(keep)
}

/// The words of `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Webhook,
    Http,
    Wayhold,
    Kafka,
    Null,
    Rules,
}

impl Choice for Kind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("file", Self::File),
        ("webhook", Self::Webhook),
        ("http", Self::Http),
        ("wayhold", Self::Wayhold),
        ("kafka", Self::Kafka),
        ("null", Self::Null),
        ("rules", Self::Rules),
    ];
}

impl DeliveryPolicy {
    fn read(
        kind: Kind,
        defaults: &KindDefaults,
        section: &mut Section<'_, '_, '_>,
    ) -> Option<Self> {
        let concurrency = section.within("concurrency", defaults.concurrency, 1, CONCURRENCY_MAX);
        // Several in flight per key need a destination that keeps their order when all goes well.
        let in_flight_per_key = match kind {
            Kind::Kafka => section.within("in_flight_per_key", 1, 1, 1_000),
            // A batch holds any number of a key.
            Kind::Wayhold => u32::try_from(concurrency).unwrap_or(u32::MAX),
            Kind::File | Kind::Webhook | Kind::Http | Kind::Null | Kind::Rules => 1,
        };
        Some(Self {
            on_failure: section.get("on_failure", OnFailure::Block),
            on_dead_letter: section.get("on_dead_letter", OnDeadLetter::Release),
            record: section.get("record", Recorded::Failures),
            rate: section.find("rate"),
            concurrency,
            in_flight_per_key,
            timeout: section.within("timeout", defaults.timeout, MILLISECOND, HOUR),
            max_blocked_keys: section.within("max_blocked_keys", 10_000, 1, 1_000_000),
            breaker: section.table("breaker", read_breaker),
            retry: read_retry_policy(section)?,
        })
    }
}

/// Most attempts that one destination may have in flight: each is an event in memory.
const CONCURRENCY_MAX: usize = 65_536;

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn read_breaker(section: &mut Section<'_, '_, '_>) -> BreakerPolicy {
    let default = BreakerPolicy::default();
    let open = section.within("open", default.open, MILLISECOND, DAY);
    let open_max = section.within("open_max", default.open_max.max(open), MILLISECOND, DAY);
    if open_max < open {
        section.problem("open_max", "expected a time that is not below open");
    }
    let failures = section.within("failures", default.failures, 1, 1_000_000);
    BreakerPolicy {
        failures,
        open,
        open_max,
        probes: section.within("probes", default.probes, 1, 1_000),
    }
}

/// Name of a destination: `[a-z0-9][a-z0-9_-]{0,62}`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationName(Arc<str>);

/// A text that cannot name a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected 1 to 63 of a-z, 0-9, \"-\" and \"_\", beginning with a letter or digit")]
pub struct InvalidName;

impl DestinationName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DestinationName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let begins = text.bytes().next().is_some_and(plain);
        let goes_on = text
            .bytes()
            .all(|byte| plain(byte) || byte == b'-' || byte == b'_');
        (begins && goes_on && text.len() <= 63)
            .then(|| Self(text.into()))
            .ok_or(InvalidName)
    }
}

impl fmt::Display for DestinationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["a", "0", "orders", "wms-2_b", &"x".repeat(63)] {
            assert_eq!(name.parse::<DestinationName>().unwrap().as_str(), name);
        }
        for name in [
            "",
            "-a",
            "_a",
            "A",
            "a.b",
            "a/b",
            "../a",
            "\u{e9}",
            "a b",
            &"x".repeat(64),
        ] {
            assert_eq!(name.parse::<DestinationName>(), Err(InvalidName), "{name}");
        }
    }
}
