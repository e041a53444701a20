//! How long and how much.

/// Lengths of one comparison.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Seconds before each measurement, and of it.
    pub warmup: f64,
    pub seconds: f64,
    /// Seconds of a load of which the disk's writes are counted: segments are sealed and resolved
    /// meanwhile.
    pub disk_seconds: f64,
    /// Seconds of routing.
    pub route_seconds: f64,
    /// Changes of the segment over which the longest answer is looked for.
    pub segment_changes: u64,
    /// How many events a slow consumer is behind.
    pub behind: u64,
    /// Bytes of segments that are removed at once.
    pub unlinked: u64,
    /// Ids in the idempotency window of a new store; none given is as many as it takes.
    pub window_ids: Option<u64>,
    /// Pending events before a drain.
    pub backlog: u64,
    /// The same of the classic outbox, which drains one row a transaction.
    pub backlog_classic: u64,
    /// Backlogs that a server starts on, by name.
    pub backlogs: [(&'static str, u64); 3],
    /// The same of a server with several shards.
    pub backlogs_of_shards: [(&'static str, u64); 2],
    /// How full the last segment of each is, of its limit.
    pub last_segment: f64,
    /// Events of many keys, and of one key, that go to Kafka in a round.
    pub kafka_backlog: u64,
    pub kafka_one_key: u64,
    /// Seconds of each measurement with Kafka.
    pub kafka_seconds: f64,
    /// Events that go to a webhook as fast as they can, and to one that has a rate.
    pub webhook_backlog: u64,
    pub webhook_due: u64,
    /// Events that wait to be tried again: few, and many.
    pub webhook_waiting: [u64; 2],
    /// Seconds of the bare client.
    pub webhook_seconds: f64,
    /// Webhook destinations at once, about as many as a configuration may have, and how many of them are bad.
    pub crowd: u64,
    pub crowd_bad: u64,
    /// Events that tell how many a crowd that is well takes, and seconds at a share of that.
    pub crowd_events: u64,
    pub crowd_seconds: f64,
    /// Rows of an outbox table.
    pub outbox_rows: u64,
    /// Records of a ledger that is verified.
    pub ledger_records: u64,
    /// Whether figures mean nothing.
    pub is_smoke: bool,
}

impl Plan {
    /// For figures.
    pub fn full(rounds: usize) -> Self {
        Self {
            rounds,
            warmup: 0.4,
            seconds: 1.6,
            disk_seconds: 3.5,
            route_seconds: 0.2,
            segment_changes: 20,
            behind: 200_000,
            unlinked: 2 * 1024 * 1024 * 1024,
            window_ids: None,
            backlog: 500_000,
            backlog_classic: 20_000,
            backlogs: [
                ("backlog400k", 400_000),
                ("backlog2m", 2_000_000),
                ("backlog4m", 4_000_000),
            ],
            backlogs_of_shards: [("backlog500k", 500_000), ("backlog5m", 5_000_000)],
            last_segment: 0.9,
            kafka_backlog: 120_000,
            kafka_one_key: 10_000,
            kafka_seconds: 2.0,
            webhook_backlog: 60_000,
            webhook_due: 100_000,
            webhook_waiting: [10_000, 100_000],
            webhook_seconds: 3.0,
            crowd: 1_000,
            crowd_bad: 100,
            crowd_events: 40_000,
            crowd_seconds: 8.0,
            outbox_rows: 200_000,
            ledger_records: 100_001,
            is_smoke: false,
        }
    }

    /// For showing that everything runs.
    pub fn smoke() -> Self {
        Self {
            rounds: 1,
            warmup: 0.1,
            seconds: 0.3,
            disk_seconds: 0.3,
            route_seconds: 0.02,
            segment_changes: 1,
            behind: 5_000,
            unlinked: 160 * 1024 * 1024,
            window_ids: Some(20_000),
            backlog: 20_000,
            backlog_classic: 1_000,
            backlogs: [
                ("backlog400k", 2_000),
                ("backlog2m", 4_000),
                ("backlog4m", 6_000),
            ],
            backlogs_of_shards: [("backlog500k", 2_000), ("backlog5m", 4_000)],
            last_segment: 0.0,
            kafka_backlog: 4_000,
            kafka_one_key: 10_000,
            kafka_seconds: 0.5,
            webhook_backlog: 2_000,
            webhook_due: 5_000,
            webhook_waiting: [500, 1_000],
            webhook_seconds: 0.5,
            crowd: 30,
            crowd_bad: 10,
            crowd_events: 1_000,
            crowd_seconds: 0.5,
            outbox_rows: 4_000,
            ledger_records: 5_001,
            is_smoke: true,
        }
    }

    /// Flags of a load of the usual length.
    pub fn load(&self, connections: usize, batch: usize, prefix: &str) -> Vec<String> {
        vec![
            format!("--connections={connections}"),
            format!("--batch={batch}"),
            format!("--prefix={prefix}"),
            format!("--warmup={}", self.warmup),
            format!("--seconds={}", self.seconds),
        ]
    }

    /// The same of another length.
    pub fn long_load(
        &self,
        (connections, batch): (usize, usize),
        prefix: &str,
        seconds: f64,
    ) -> Vec<String> {
        let lasting = Self { seconds, ..*self };
        lasting.load(connections, batch, prefix)
    }

    /// Flags of a server: those given, and the size of a window where there is one.
    pub fn serve(&self, kind: &str, flags: &[&str]) -> Vec<String> {
        let window = self
            .window_ids
            .filter(|_| kind == "wayhold")
            .map(|ids| format!("--window-ids={ids}"));
        flags
            .iter()
            .map(|&flag| flag.to_owned())
            .chain(window)
            .collect()
    }
}
