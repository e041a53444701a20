//! Every bound at the door: what one request, one connection and all of them together may cost. Bounds
//! on an event's own fields live in `wayhold_model::limits`.

use std::time::Duration;

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
    /// Most bytes of events that wait for their commit; beyond it requests are answered 429.
    pub queue_bytes: usize,
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

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
            queue_bytes: 32 * MIB,
        }
    }
}
