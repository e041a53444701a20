//! The validated configuration: what the rest of the server reads. Nothing in here can be wrong any
//! more; whoever has a `Config` needs no further checks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;
use wayhold_model::DestinationId;
use wayhold_model::condition::Condition;
use wayhold_model::key::{KeyRule, KeyRules};
use wayhold_model::limits::SOURCE_BYTES_MAX;
use wayhold_model::route::{ROUTES_MAX, RouteRule, Router};
use wayhold_model::rule::Rule;
use wayhold_model::shard_map::{SHARDS_MAX, shards_for};
use wayhold_store::attempt_log::RecordOptions;

use crate::config::approving::ApprovingConfig;
use crate::config::commands::CommandKind;
use crate::config::destination::{DestinationConfig, DestinationName};
use crate::config::ledger::LedgerConfig;
use crate::config::limits::Limits;
use crate::config::listen::ListenAddr;
use crate::config::quantity::{Size, show_size};
use crate::config::section::Section;
use crate::config::setting::{Choice, DataTemplate};
use crate::config::source::Sources;

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data directory; made when absent.
    pub data: PathBuf,
    /// Listeners of the API, at least one.
    pub listen: Vec<ListenAddr>,
    /// Listener that serves only `/livez`, `/readyz` and `/metrics`.
    pub ops_listen: Option<ListenAddr>,
    /// Whether requests are taken without tokens on any listener. Only a flag can say so.
    pub no_auth: bool,
    /// Bounds at the door.
    pub limits: Limits,
    /// The store.
    pub store: wayhold_store::Options,
    /// How long the record of attempts is kept, and how large it may be.
    pub record: RecordOptions,
    /// Whether somebody chose the number of shards.
    pub shards_chosen: bool,
    /// How events are read and what becomes of those that no route wants.
    pub ingest: IngestConfig,
    /// Where ordering keys come from when the event brings none.
    pub keys: KeyRules,
    /// Who gets which events, in file order; at least one.
    pub routes: Vec<Route>,
    /// Ways in that are told apart, and tables that are read.
    pub sources: Sources,
    /// Events that become proposals of commands.
    pub rules: Arc<[Rule]>,
    /// Who must say yes to what, and how much may be asked for.
    pub approving: ApprovingConfig,
    /// Private networks that webhooks may reach.
    pub network: NetworkConfig,
    /// The record of commands and decisions.
    pub ledger: LedgerConfig,
    /// Logs.
    pub log: LogConfig,
    /// Kinds of commands, sorted by name.
    pub commands: Vec<CommandKind>,
    /// Destinations, sorted by name; at least one.
    pub destinations: Vec<DestinationConfig>,
}

impl Config {
    /// The routes over durable destination ids, which the catalogue gives to names.
    pub fn router(&self, id_of: impl Fn(&DestinationName) -> DestinationId) -> Router {
        Router::new(self.routes.iter().map(|route| RouteRule {
            name: route.name.clone(),
            when: route.when.clone(),
            to: route.to.iter().map(&id_of).collect(),
        }))
    }

    /// One destination by name.
    pub fn destination(&self, name: &str) -> Option<&DestinationConfig> {
        self.destinations
            .iter()
            .find(|destination| destination.name.as_str() == name)
    }
}

/// The store, table `[store]`. Timings that only the store understands are not configured.
pub(super) fn read_store(
    section: &mut Section<'_, '_, '_>,
    limits: &Limits,
) -> wayhold_store::Options {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let default = wayhold_store::Options::default();
    let shards = u32::from(shards_for(section.cores()));
    let shards = section.within("shards", shards, 1, SHARDS_MAX.into());
    let shards = u16::try_from(shards).unwrap_or(SHARDS_MAX);
    let mut memory = |key: &str, default: usize, min: u64, max: u64| {
        let bytes = section.bytes_within(key, default as u64, min, max);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    };
    let group_bytes = memory("group_bytes", default.group_bytes, 4 * KIB, 64 * MIB);
    let queue_bytes = memory("queue_bytes", default.queue_bytes, MIB, 16 * 1024 * MIB);
    let tail_bytes = memory("tail_bytes", default.tail_bytes, 64 * KIB, 64 * 1024 * MIB);
    let options = wayhold_store::Options {
        shards,
        segment_bytes: section.bytes_within(
            "segment_bytes",
            default.segment_bytes,
            64 * KIB,
            1024 * MIB,
        ),
        segment_rows: section.within("segment_rows", default.segment_rows, 16, 1 << 24),
        segment_age: section.within("segment_age", default.segment_age, SECOND, DAY),
        group_bytes,
        queue_bytes,
        tail_bytes,
        window: section.within("window", default.window, SECOND, 366 * DAY),
        window_ids: section.within(
            "window_ids",
            default.window_ids,
            1_000,
            wayhold_store::options::WINDOW_IDS_MAX,
        ),
        reserve_bytes: section.bytes_within(
            "reserve_bytes",
            default.reserve_bytes,
            MIB,
            1024 * MIB,
        ),
        ..default
    };
    if queue_bytes / usize::from(shards.max(1)) < limits.body_bytes.max(limits.slice_bytes) {
        section.problem(
            "queue_bytes",
            "expected room for limits.body_bytes and limits.slice_bytes in the share of each shard",
        );
    }
    let needed = 2 * u64::from(shards) * options.segment_bytes + options.reserve_bytes;
    let usual = options.min_free_bytes();
    let is_chosen = section.has("min_free");
    let min_free = section.get("min_free", Size(usual)).0;
    if min_free < needed {
        let needed = show_size(Size(needed));
        section.problem(
            "min_free",
            format!("expected at least {needed}: two segments of each shard and the reserve"),
        );
    }
    wayhold_store::Options {
        // What nobody chose follows the number of shards that the data directory has.
        min_free: is_chosen.then_some(min_free),
        ..options
    }
}

/// How long delivered events are kept, table `[retention]`. Zero keeps none.
pub(super) fn read_retention(
    section: &mut Section<'_, '_, '_>,
    store: wayhold_store::Options,
) -> (wayhold_store::Options, RecordOptions) {
    // More than any volume: from there on time alone decides.
    const BYTES_MAX: u64 = 1 << 50;
    let record = RecordOptions {
        time: section.within("attempts", 7 * DAY, Duration::ZERO, 366 * DAY),
        bytes: section.bytes_within("attempts_bytes", 1 << 30, RECORD_BYTES_MIN, BYTES_MAX),
    };
    let store = wayhold_store::Options {
        retention: section.within("time", store.retention, Duration::ZERO, 366 * DAY),
        retention_bytes: section.bytes_within("bytes", store.retention_bytes, 0, BYTES_MAX),
        ..store
    };
    (store, record)
}

/// Least room for the record of attempts: it goes file by file, an eighth at a time.
const RECORD_BYTES_MIN: u64 = 1 << 20;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Reading of events, table `[ingest]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestConfig {
    /// How attribute names that break the rules are treated.
    pub mode: ParseMode,
    /// What becomes of an event that no route matches.
    pub unmatched: Unmatched,
    /// `source` of plain JSON that brings none.
    pub source: String,
}

impl IngestConfig {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let source: String = section.get("source", "/wayhold".to_owned());
        if source.is_empty() || source.len() > SOURCE_BYTES_MAX {
            section.problem("source", format!("expected 1 to {SOURCE_BYTES_MAX} bytes"));
        }
        Self {
            mode: section.get("mode", ParseMode::Strict),
            unmatched: section.get("unmatched", Unmatched::Refuse),
            source,
        }
    }
}

/// How attribute names that break CloudEvents' rules are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseMode {
    /// They are refused.
    Strict,
    /// They are lower-cased.
    Lenient,
}

impl Choice for ParseMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("strict", Self::Strict), ("lenient", Self::Lenient)];
}

/// What becomes of an event that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// The producer is told that nobody wants it.
    Refuse,
    /// It is stored and owed to nobody.
    Keep,
    /// It is answered as accepted, counted, and not stored.
    Ignore,
}

impl Choice for Unmatched {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("refuse", Self::Refuse),
        ("keep", Self::Keep),
        ("ignore", Self::Ignore),
    ];
}

/// Most key rules: an event without a key may be held against each of them.
const KEY_RULES_MAX: usize = 256;

/// Reads `[[keys]]`.
pub(super) fn read_keys(section: &mut Section<'_, '_, '_>) -> KeyRules {
    let rules = section.tables("keys", KEY_RULES_MAX, |section| {
        let when = section.find("when");
        let key = section.require::<DataTemplate>("key", "\"{subject}\"");
        key.map(|key| KeyRule {
            name: section.path().to_owned(),
            when,
            key: key.0,
        })
    });
    KeyRules::new(rules.into_iter().flatten())
}

/// A rule from events to destinations, table `[[routes]]`.
#[derive(Clone, Debug)]
pub struct Route {
    /// What problems call it: its `name`, or its place in the file.
    pub name: String,
    /// Which events; all where absent.
    pub when: Option<Condition>,
    /// Names of destinations, all of them configured.
    pub to: Vec<DestinationName>,
}

impl Route {
    /// Reads `[[routes]]`; names of destinations that are not configured are problems.
    pub(super) fn read_all(
        section: &mut Section<'_, '_, '_>,
        destinations: &[String],
    ) -> Vec<Self> {
        section.tables("routes", ROUTES_MAX, |section| {
            let name = section
                .find("name")
                .unwrap_or_else(|| section.path().to_owned());
            let when = section.find("when");
            let to = section.require::<Vec<DestinationName>>("to", "[\"NAME\"]");
            if to.as_ref().is_some_and(Vec::is_empty) {
                section.problem("to", "expected names of destinations");
            }
            let to = to.unwrap_or_default();
            for absent in to
                .iter()
                .filter(|name| !destinations.iter().any(|d| d == name.as_str()))
            {
                section.problem(
                    "to",
                    format!("expected a configured destination, not \"{absent}\""),
                );
            }
            Self { name, when, to }
        })
    }
}

/// Network rules, table `[network]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Networks that webhooks may reach although they are private or loopback, and by plain `http`.
    pub allow: Vec<IpNet>,
}

impl NetworkConfig {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        Self {
            allow: section.get("allow", Vec::new()),
        }
    }
}

/// Logs, table `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How a log record is written.
    pub format: LogFormat,
    /// What is logged, as `tracing` filter directives, such as `info` or `info,wayhold::sink=debug`.
    pub level: String,
}

impl LogConfig {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let level: String = section.get("level", "info".to_owned());
        if EnvFilter::try_new(&level).is_err() {
            section.problem(
                "level",
                "expected a level such as \"info\" or \"info,wayhold::sink=debug\"",
            );
        }
        Self {
            format: section.get("format", LogFormat::Json),
            level,
        }
    }
}

/// How a log record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// One line for people.
    Pretty,
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] =
        &[("json", Self::Json), ("pretty", Self::Pretty)];
}
