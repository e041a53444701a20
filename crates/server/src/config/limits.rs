//! Every bound at the door: what one request, one connection and all of them together may cost. Bounds
//! on an event's own fields live in `wayhold_model::limits`.

use std::time::Duration;

use wayhold_model::admission::BacklogLimits;

use crate::config::quantity::Size;
use crate::config::section::Section;

/// Limits of ingest and its listeners, table `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a request body after expansion, for one event and for a batch alike: one limit,
    /// so that nobody has to know which form a producer chose.
    pub body_bytes: usize,
    /// Most events of a batch; it is admitted as a whole and so held in memory as a whole.
    pub batch_events: usize,
    /// Most bytes of an NDJSON stream after expansion.
    pub ndjson_bytes: usize,
    /// Most lines of an NDJSON stream: its answer lists every line.
    pub ndjson_lines: usize,
    /// Most bytes of an NDJSON stream that are in memory at a time, and so of one line.
    pub slice_bytes: usize,
    /// Most lines stored together from an NDJSON stream.
    pub slice_lines: usize,
    /// Deepest nesting of JSON, in envelope and data; deeper input is an attack on stacks.
    pub json_depth: usize,
    /// Most bytes of a request's head.
    pub header_bytes: usize,
    /// Most headers of a request.
    pub headers: usize,
    /// Most open connections of all listeners together.
    pub connections: usize,
    /// Most open connections from one address; Unix sockets count as none.
    pub connections_per_address: usize,
    /// How long a new connection may stay silent.
    pub first_byte_timeout: Duration,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// Slowest body, in bytes a second, measured over `body_rate_window`.
    pub body_rate: usize,
    /// How long a body may stay below `body_rate`.
    pub body_rate_window: Duration,
    /// How long a connection may idle between requests.
    pub idle_timeout: Duration,
    /// What may be pending in the whole store; nothing is limited unless somebody says so.
    pub backlog: BacklogLimits,
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Deepest JSON that may be allowed: the parser of data recurses.
const JSON_DEPTH_MAX: usize = 127;

impl Limits {
    pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Self {
        let default = Self::default();
        let mut bytes = |key: &str, default: usize, min: usize, max: usize| {
            let [default, min, max] = [default, min, max].map(|bytes| bytes as u64);
            usize::try_from(section.bytes_within(key, default, min, max)).unwrap_or(usize::MAX)
        };
        let body_bytes = bytes("body_bytes", default.body_bytes, KIB, 64 * MIB);
        let ndjson_bytes = bytes("ndjson_bytes", default.ndjson_bytes, KIB, 1024 * MIB);
        let slice_bytes = bytes("slice_bytes", default.slice_bytes, KIB, 64 * MIB);
        let header_bytes = bytes("header_bytes", default.header_bytes, 8 * KIB, 256 * KIB);
        let body_rate = bytes("body_rate", default.body_rate, 1, MIB);

        let mut count =
            |key: &str, default: usize, max: usize| section.within(key, default, 1, max);
        let batch_events = count("batch_events", default.batch_events, 10_000);
        let ndjson_lines = count("ndjson_lines", default.ndjson_lines, 1_000_000);
        let slice_lines = count("slice_lines", default.slice_lines, 10_000);
        let json_depth = count("json_depth", default.json_depth, JSON_DEPTH_MAX);
        let headers = count("headers", default.headers, 1_000);
        let connections = count("connections", default.connections, 1_000_000);
        let per_address = default.connections_per_address;
        let connections_per_address = count("connections_per_address", per_address, 1_000_000);

        let backlog = read_backlog(section, ["backlog_events", "backlog_bytes", "backlog_age"]);

        let mut time = |key: &str, default: Duration| {
            section.within(
                key,
                default,
                Duration::from_millis(100),
                Duration::from_secs(3600),
            )
        };
        Self {
            body_bytes,
            batch_events,
            ndjson_bytes,
            ndjson_lines,
            slice_bytes,
            slice_lines,
            json_depth,
            header_bytes,
            headers,
            connections,
            connections_per_address,
            first_byte_timeout: time("first_byte_timeout", default.first_byte_timeout),
            header_timeout: time("header_timeout", default.header_timeout),
            body_rate,
            body_rate_window: time("body_rate_window", default.body_rate_window),
            idle_timeout: time("idle_timeout", default.idle_timeout),
            backlog,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: MIB,
            batch_events: 1_000,
            ndjson_bytes: 64 * MIB,
            ndjson_lines: 100_000,
            slice_bytes: MIB,
            slice_lines: 1_000,
            json_depth: 64,
            header_bytes: 32 * KIB,
            headers: 100,
            connections: 4_096,
            connections_per_address: 1_024,
            first_byte_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            body_rate: KIB,
            body_rate_window: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            backlog: BacklogLimits::default(),
        }
    }
}

/// Reads limits on a backlog under these keys: events, bytes, age. An age is measured to about a second
/// while a lane drains, so shorter ones would mean nothing.
pub(super) fn read_backlog(
    section: &mut Section<'_, '_, '_>,
    [events, bytes, age]: [&str; 3],
) -> BacklogLimits {
    let limits = BacklogLimits {
        events: section.find(events),
        bytes: section.find::<Size>(bytes).map(|size| size.0),
        age: section.find(age),
    };
    if limits.events == Some(0) {
        section.problem(events, "expected at least 1; leave it out for no limit");
    }
    if limits.bytes.is_some_and(|bytes| bytes < BACKLOG_BYTES_MIN) {
        section.problem(bytes, "expected at least 64 KiB; leave it out for no limit");
    }
    if limits.age.is_some_and(|age| age < BACKLOG_AGE_MIN) {
        section.problem(age, "expected at least 1s; leave it out for no limit");
    }
    limits
}

/// Least limit on bytes: what a few commits of single events take.
const BACKLOG_BYTES_MIN: u64 = 64 * KIB as u64;

/// Least limit on age.
const BACKLOG_AGE_MIN: Duration = Duration::from_secs(1);
