//! The sizing rule: what a machine like this one will bear, and what disk and memory a load takes. Pure
//! arithmetic over what was measured here, what is configured, and what the store's formats fix. Sizes are
//! in bytes; `docs/sizing.md` has the same rule in words.

use serde::Serialize;
use wayhold_store::{Options, sizing};

use super::accept::{count, per};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Processors.
    pub cores: f64,
    /// Write and sync of a small commit, on average and in milliseconds.
    pub sync_ms: f64,
    /// Processor time to accept an event that comes alone, in microseconds.
    pub accept_us: f64,
    /// The same for an event among many in one request.
    pub accept_bulk_us: f64,
    /// Processor time to deliver an event, that of its destination's protocol not included.
    pub deliver_us: f64,
    /// Bytes of data and attributes of an event.
    pub event_bytes: f64,
    /// Bytes on disk of an event as it was committed.
    pub fresh_bytes: f64,
    /// Bytes on disk of an event that has waited for a while.
    pub settled_bytes: f64,
    /// Memory of an empty server with one destination, without the window of ids.
    pub empty_bytes: u64,
    /// The most that it took while a backlog was filled and worked off.
    pub peak_bytes: u64,
    /// Memory of one more destination.
    pub lane_bytes: u64,
}

/// Sync latencies of the table of rates, in milliseconds: a local disk, a good and a usual network
/// volume, a spinning disk. This machine's own comes first.
const SYNCS_MS: [f64; 4] = [0.2, 1.0, 3.0, 10.0];

/// Callers and events a request of the table of rates.
pub const CALLERS: [(u64, u64); 5] = [(1, 1), (16, 1), (64, 1), (256, 1), (64, 100)];

/// Events a second of the table of disk space.
const RATES: [f64; 4] = [10.0, 100.0, 1_000.0, 15_000.0];

/// Destinations of the table of memory.
const LANES: [u64; 4] = [1, 10, 50, 200];

/// Everything that follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizing {
    /// Bytes that one event of one destination takes in index files while its id is remembered.
    pub index_bytes_per_event: u64,
    /// How long ids are remembered, in seconds.
    pub window_seconds: f64,
    /// At most so many are.
    pub window_ids: u64,
    /// Disk by events a second.
    pub disk: Vec<Disk>,
    /// Memory by destinations.
    pub memory: Vec<Memory>,
    /// Events a second by sync latency and callers.
    pub rate: Vec<Rate>,
}

/// Disk that a steady load takes while its destinations take everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disk {
    /// The load.
    pub events_per_second: f64,
    /// Delivered events that are kept for replay.
    pub retained_bytes: u64,
    /// Index files of the ids that are remembered.
    pub index_bytes: u64,
    /// Segments that are written, made ready, or wait for their deliveries.
    pub in_motion_bytes: u64,
    /// What must stay free, and the reserve.
    pub kept_free_bytes: u64,
    /// All of these.
    pub total_bytes: u64,
    /// More for each hour that a destination is away.
    pub away_hour_bytes: u64,
    /// Ids that come within the window's time: `window_ids` that reaches so far.
    pub whole_window_ids: u64,
    /// Index files of a window that reaches so far.
    pub whole_window_disk_bytes: u64,
    /// Memory of a window that reaches so far.
    pub whole_window_memory_bytes: u64,
}

/// Memory with so many destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Destinations.
    pub lanes: u64,
    /// The process itself with them, and with the newest events, which are kept so that the disk is not
    /// read.
    pub server_bytes: u64,
    /// Requests that wait for the disk, at the most.
    pub queue_bytes: u64,
    /// The window of ids.
    pub window_bytes: u64,
    /// All of these.
    pub total_bytes: u64,
}

/// What so many callers get from such a disk, at the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Write and sync of a small commit.
    pub sync_ms: f64,
    /// Callers, each with one request under way.
    pub callers: u64,
    /// Events in one request.
    pub events_per_request: u64,
    /// Events a second.
    pub events_per_second: f64,
    /// Whether it is the disk that ends it; otherwise the processors.
    pub is_disk: bool,
}

impl Sizing {
    /// What follows from these costs with these options.
    pub fn of(costs: &Costs, options: &Options) -> Self {
        let syncs = std::iter::once(costs.sync_ms).chain(SYNCS_MS);
        let rates = syncs.flat_map(|sync_ms| CALLERS.map(|callers| (sync_ms, callers)));
        Self {
            index_bytes_per_event: sizing::index_bytes(1, 1),
            window_seconds: options.window.as_secs_f64(),
            window_ids: options.window_ids as u64,
            disk: RATES.map(|rate| disk(rate, costs, options)).to_vec(),
            memory: LANES.map(|lanes| memory(lanes, costs, options)).to_vec(),
            rate: rates
                .map(|(sync_ms, callers)| rate(sync_ms, callers, costs, options))
                .collect(),
        }
    }
}

/// Events a second: what is in a commit, for each time that one takes, as long as the processors follow.
/// While one commit is synced the next one gathers, so half of the callers are in each; one caller alone is
/// in every one.
fn rate(sync_ms: f64, (callers, batch): (u64, u64), costs: &Costs, options: &Options) -> Rate {
    let requests = (count(callers) / 2.0).max(1.0);
    let group_max = per(count(options.group_bytes as u64), costs.event_bytes);
    let in_commit = (requests * count(batch)).min(group_max.max(count(batch)));
    let disk = per(in_commit * 1e3, sync_ms);
    let accept_us = if batch == 1 {
        costs.accept_us
    } else {
        costs.accept_bulk_us
    };
    let processors = per(costs.cores * 1e6, accept_us + costs.deliver_us);
    Rate {
        sync_ms,
        callers,
        events_per_request: batch,
        events_per_second: disk.min(processors),
        is_disk: disk < processors,
    }
}

fn disk(events_per_second: f64, costs: &Costs, options: &Options) -> Disk {
    let in_retention = events_per_second * options.retention.as_secs_f64() * costs.fresh_bytes;
    let retained_bytes = bytes(in_retention).min(options.retention_bytes);
    let whole_window_ids = bytes(events_per_second * options.window.as_secs_f64());
    // Index files go whole, and those of retained segments stay with them.
    let remembered = whole_window_ids.min(options.window_ids as u64);
    let retained = bytes(per(count(retained_bytes), costs.fresh_bytes));
    let index = |events: u64| sizing::index_bytes(events + u64::from(options.segment_rows), 1);
    let index_bytes = index(remembered.max(retained));
    let in_motion_bytes = 2 * u64::from(options.shards) * options.segment_bytes;
    let kept_free_bytes = options.min_free_bytes() + options.reserve_bytes;
    Disk {
        events_per_second,
        retained_bytes,
        index_bytes,
        in_motion_bytes,
        kept_free_bytes,
        total_bytes: retained_bytes + index_bytes + in_motion_bytes + kept_free_bytes,
        away_hour_bytes: bytes(events_per_second * 3_600.0 * costs.settled_bytes)
            + sizing::index_bytes(bytes(events_per_second * 3_600.0), 1),
        whole_window_ids,
        whole_window_disk_bytes: index(whole_window_ids),
        whole_window_memory_bytes: sizing::window_bytes(whole_window_ids),
    }
}

fn memory(lanes: u64, costs: &Costs, options: &Options) -> Memory {
    // What was measured has as many newest events as were sent: all that are ever kept, or fewer.
    let one = costs
        .peak_bytes
        .max(costs.empty_bytes + options.tail_bytes as u64);
    let server_bytes = one + lanes.saturating_sub(1) * costs.lane_bytes;
    let queue_bytes = options.queue_bytes as u64;
    let window_bytes = sizing::window_bytes(options.window_ids as u64);
    Memory {
        lanes,
        server_bytes,
        queue_bytes,
        window_bytes,
        total_bytes: server_bytes + queue_bytes + window_bytes,
    }
}

/// Whole bytes of an amount that is not below zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut off at the bounds of the integer, which no disk reaches"
)]
fn bytes(amount: f64) -> u64 {
    amount as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs {
            cores: 2.0,
            sync_ms: 0.25,
            accept_us: 20.0,
            accept_bulk_us: 6.0,
            deliver_us: 4.0,
            event_bytes: 1_200.0,
            fresh_bytes: 1_600.0,
            settled_bytes: 1_300.0,
            empty_bytes: 40_000_000,
            peak_bytes: 90_000_000,
            lane_bytes: 500_000,
        }
    }

    #[test]
    fn callers_wait_for_the_disk_until_the_processors_are_busy() {
        for (sync_ms, callers, expected) in [
            // Alone: one event for each sync.
            (0.2, (1, 1), (5_000.0, true)),
            (10.0, (1, 1), (100.0, true)),
            // Half of the callers share a commit.
            (1.0, (16, 1), (8_000.0, true)),
            (3.0, (64, 1), (32.0 / 0.003, true)),
            // 24 microseconds for each event on two processors.
            (0.2, (64, 1), (83_333.3, false)),
            // A commit holds a mebibyte, however many wait.
            (10.0, (64, 100), (87_381.3, true)),
            (1.0, (64, 100), (200_000.0, false)),
        ] {
            let got = rate(sync_ms, callers, &costs(), &Options::default());
            let context = format!("{sync_ms} {callers:?}: {got:?}");
            assert!(
                (got.events_per_second - expected.0).abs() < 1.0,
                "{context}"
            );
            assert_eq!(got.is_disk, expected.1, "{context}");
        }
        // A request is never split.
        let small = Options {
            group_bytes: 1_024,
            ..Options::default()
        };
        assert_eq!(
            rate(10.0, (64, 100), &costs(), &small).events_per_second,
            10_000.0
        );
    }

    #[test]
    fn disk_grows_with_the_load_up_to_what_is_kept() {
        let options = Options {
            min_free: Some(1_000),
            reserve_bytes: 100,
            segment_bytes: 10,
            segment_rows: 1,
            window: std::time::Duration::from_secs(1_000),
            window_ids: 5_000,
            ..Options::default()
        };
        let slow = disk(2.0, &costs(), &options);
        let retained = 2.0 * options.retention.as_secs_f64() * 1_600.0;
        assert_eq!(slow.retained_bytes, bytes(retained));
        let events = 2 * options.retention.as_secs();
        assert_eq!(slow.index_bytes, sizing::index_bytes(events + 1, 1));
        assert_eq!((slow.in_motion_bytes, slow.kept_free_bytes), (20, 1_100));
        assert_eq!(slow.whole_window_ids, 2_000);
        assert_eq!(
            slow.total_bytes,
            slow.retained_bytes + slow.index_bytes + 20 + 1_100
        );
        assert_eq!(
            slow.away_hour_bytes,
            7_200 * 1_300 + sizing::index_bytes(7_200, 1)
        );
        let fast = disk(15_000.0, &costs(), &options);
        assert_eq!(fast.retained_bytes, options.retention_bytes);
        assert_eq!(fast.whole_window_ids, 15_000_000);
        assert_eq!(
            fast.whole_window_memory_bytes,
            sizing::window_bytes(15_000_000)
        );
        assert!(fast.whole_window_disk_bytes > fast.index_bytes);
    }

    #[test]
    fn memory_is_the_sum_of_its_bounds() {
        let options = Options::default();
        let one = memory(1, &costs(), &options);
        assert_eq!(one.server_bytes, 90_000_000);
        let ids = options.window_ids as u64;
        assert_eq!(one.window_bytes, sizing::window_bytes(ids));
        assert_eq!(
            one.total_bytes,
            90_000_000 + options.queue_bytes as u64 + one.window_bytes
        );
        // Too few events were sent to fill what is kept of the newest.
        let short = Costs {
            peak_bytes: 41_000_000,
            ..costs()
        };
        let filled = memory(1, &short, &options).server_bytes;
        assert_eq!(filled, 40_000_000 + options.tail_bytes as u64);
        let many = memory(50, &costs(), &options);
        assert_eq!(many.total_bytes - one.total_bytes, 49 * 500_000);
    }

    /// Numbers of a row of a table, without what separates their thousands.
    fn numbers(row: &str) -> Vec<f64> {
        row.split('|')
            .filter_map(|cell| {
                cell.trim()
                    .trim_end_matches(" ms")
                    .replace(',', "")
                    .parse()
                    .ok()
            })
            .collect()
    }

    #[test]
    fn the_page_about_sizing_says_what_the_rule_says() {
        let read = |name: &str| {
            let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
            std::fs::read_to_string(docs.to_owned() + name).unwrap()
        };
        let (page, operating) = (read("sizing.md"), read("operating.md"));
        let index = sizing::index_bytes(1, 1);
        let ids = Options::default().window_ids as u64;
        let window = per(count(sizing::window_bytes(ids)), count(ids));
        for words in [
            format!("ids remembered x {index} bytes"),
            format!("(bytes settled + {index})"),
            format!("store.window_ids x {window:.1} bytes"),
        ] {
            assert!(page.contains(&words), "{words}");
        }
        let id = index - 12 - 4;
        for words in [
            format!("{index} for an event with a key and one destination"),
            format!("{id} for each, 12 more with a key, 4 more for each delivery"),
            format!("({id} + 12 + 4 * deliveries)"),
        ] {
            assert!(operating.contains(&words), "{words}");
        }
        // By the disk alone.
        let costs = Costs {
            cores: f64::INFINITY,
            event_bytes: count(crate::cli::bench::settled::event_bytes() as u64),
            ..costs()
        };
        for sync_ms in SYNCS_MS {
            let start = format!("| {sync_ms} ms |");
            let row = page.lines().find(|line| line.starts_with(&start)).unwrap();
            let said = numbers(row);
            assert_eq!(said.len(), CALLERS.len() + 1, "{row}");
            for (said, callers) in said.iter().skip(1).zip(CALLERS) {
                let rule = rate(sync_ms, callers, &costs, &Options::default()).events_per_second;
                assert!(
                    (said - rule).abs() < rule * 0.02,
                    "{row} {callers:?}: {rule}"
                );
            }
        }
    }
}
