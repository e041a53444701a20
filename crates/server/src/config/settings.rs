//! The validated configuration: what the rest of the server reads. Nothing in here can be wrong any
//! more; whoever has a `Config` needs no further checks.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use wayhold_model::DestinationId;
use wayhold_model::condition::Condition;
use wayhold_model::key::KeyRules;
use wayhold_model::route::{RouteRule, Router};

use crate::config::destination::{DestinationConfig, DestinationName};
use crate::config::limits::Limits;
use crate::config::listen::ListenAddr;

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
    pub store: StoreConfig,
    /// How events are read and what becomes of those that no route wants.
    pub ingest: IngestConfig,
    /// Where ordering keys come from when the event brings none.
    pub keys: KeyRules,
    /// Who gets which events, in file order; at least one.
    pub routes: Vec<Route>,
    /// Private networks that webhooks may reach.
    pub network: NetworkConfig,
    /// Logs.
    pub log: LogConfig,
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

/// The store, table `[store]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Free bytes on the disk below which nothing is accepted.
    pub min_free_bytes: u64,
    /// A segment ends at this many bytes.
    pub segment_bytes: u64,
    /// A segment ends at this many events.
    pub segment_rows: u32,
    /// A segment that holds an event ends at this age.
    pub segment_age: Duration,
    /// How long ids are remembered.
    pub window: Duration,
    /// How many ids are remembered at most.
    pub ids: u32,
    /// Memory for events that lanes have yet to read.
    pub tail_cache_bytes: usize,
    /// Disk kept aside so that progress can be written when the disk is full.
    pub reserve_bytes: u64,
}

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

/// How attribute names that break CloudEvents' rules are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseMode {
    /// They are refused.
    Strict,
    /// They are lower-cased.
    Lenient,
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

/// Network rules, table `[network]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Networks that webhooks may reach although they are private or loopback, and by plain `http`.
    pub allow: Vec<IpNet>,
}

/// Logs, table `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How a log record is written.
    pub format: LogFormat,
    /// What is logged, as `tracing` filter directives, such as `info` or `info,wayhold::sink=debug`.
    pub level: String,
}

/// How a log record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// One line for people.
    Pretty,
}
