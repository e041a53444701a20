//! What a start costs, in bytes read and not in time: it must not grow with what is pending.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    dead_code,
    reason = "the support is shared by suites, and this one needs little of it"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use support::{HandClock, destinations, event, fill, open, tiny};
use wayhold_model::DestinationId;
use wayhold_store::{Options, Store};

/// Bytes that this process asked files for so far.
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

fn limits() -> Options {
    Options {
        window_ids: 64,
        segment_rows: 64,
        segment_bytes: 4 * 1024 * 1024,
        // Checkpoints read as well, beside the start and whenever they come.
        checkpoint_after: Duration::from_secs(3600),
        ..tiny()
    }
}

/// Stores pending events of 8 KiB.
async fn backlog(store: &Store, first: u64, count: u64, to: &[DestinationId]) {
    let data = "x".repeat(8 * 1024);
    for n in (first..first + count).step_by(16) {
        let batch = (n..n + 16).map(|n| event(&n.to_string(), &n.to_string(), &data, to));
        store.append(batch.collect()).await.unwrap();
    }
}

/// Opens the store and accepts one event. Returns the bytes that were read for it.
async fn cost_of_a_start(dir: &Path, next: u64) -> u64 {
    let before = bytes_read();
    let (store, recovery) = open(dir, &limits(), &HandClock::new());
    assert_eq!(recovery.findings, Vec::<String>::new());
    let to = destinations(&store, 1);
    fill(&store, next, 1, 1, &to).await;
    let cost = bytes_read() - before;
    let lane = store.lane(to.into_iter().next().unwrap()).unwrap();
    assert_eq!(lane.handle().pending(), next + 1);
    store.stop();
    cost
}

#[tokio::test]
async fn a_start_reads_no_more_when_twenty_times_as_much_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &limits(), &HandClock::new());
    let to = destinations(&store, 1);
    backlog(&store, 0, 128, &to).await;
    store.stop();
    let with_little = cost_of_a_start(dir.path(), 128).await;

    let (store, _) = open(dir.path(), &limits(), &HandClock::new());
    backlog(&store, 129, 20 * 128, &to).await;
    store.stop();
    let with_much = cost_of_a_start(dir.path(), 129 + 20 * 128).await;

    // More segments have more names and more index files; none of their events is read.
    let pending = 20 * 128 * 8 * 1024;
    assert!(
        with_much < with_little + pending / 50,
        "{with_little} bytes were read with 1 MiB pending, {with_much} with 21 MiB"
    );
}
