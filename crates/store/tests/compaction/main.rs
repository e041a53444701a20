//! That what is still owed of segments of which most is resolved survives their compaction, in order and whole;
//! that the accounts hold at every moment; and that a cut between any two steps loses and repeats nothing.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../support/cuts.rs"]
mod cuts;
#[path = "../support/disk.rs"]
mod disk;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod support;

mod cut;
mod ended;
mod formats;
mod rescued;
mod room;
mod saved;
mod whole;

use std::path::Path;
use std::time::Duration;

use support::{HandClock, destinations, drain, event, eventually, files, open, tiny};
use wayhold_model::{DestinationId, Position};
use wayhold_store::rescue::StoppedStore;
use wayhold_store::rescue::export::Wanted;
use wayhold_store::{Delivery, NewEvent, Options, Store};

/// Of so many events one is owed to the destination that is down; each fills two segments.
const OF: u64 = 16;

/// Rows of a segment.
const ROWS: u64 = 8;

const HOUR: Duration = Duration::from_secs(3600);

/// Compacts whatever gives anything back.
fn eager() -> Options {
    Options {
        compaction_gain: 1,
        compaction_every: Duration::from_millis(20),
        ..tiny()
    }
}

/// Event `n`, owed to the first destination, and every sixteenth also to the second.
fn mostly(n: u64, to: &[DestinationId]) -> NewEvent {
    let to = if n % OF == 5 { to } else { &to[..1] };
    event(&n.to_string(), &format!("k{}", n % 3), &data(n), to)
}

/// Large enough that a row is more than what a file has besides.
fn data(n: u64) -> String {
    format!("data {n} {}", "x".repeat(2000))
}

/// Stores these events, one segment after the other.
async fn store_events(
    store: &Store,
    range: std::ops::Range<u64>,
    to: &[DestinationId],
) -> Vec<Position> {
    let mut positions = Vec::new();
    for first in range.clone().step_by(usize::try_from(ROWS).unwrap()) {
        let events = (first..range.end.min(first + ROWS)).map(|n| mostly(n, to));
        let receipts = store.append(events.collect()).await.unwrap();
        positions.extend(receipts.iter().map(|one| one.position));
    }
    positions
}

/// Delivers everything that a destination is owed.
fn deliver(store: &Store, destination: DestinationId) -> Vec<Delivery> {
    let mut lane = store.lane(destination).unwrap();
    let all = drain(&mut lane, 50);
    let positions: Vec<Position> = all.iter().map(|one| one.event.position).collect();
    lane.handle().settle_delivered(&positions);
    all
}

/// What the destination that is down is owed of so many events.
fn owed(events: u64) -> Vec<String> {
    (0..events)
        .filter(|n| n % OF == 5)
        .map(|n| n.to_string())
        .collect()
}

/// Accepted and pending; the account has to hold.
fn account(store: &Store, destination: DestinationId) -> (u64, u64) {
    let totals = store.totals(destination);
    let ended = totals.delivered + totals.dead + totals.expired + totals.discarded;
    assert_eq!(totals.accepted, ended + totals.pending, "{totals:?}");
    (totals.accepted, totals.pending)
}

/// Databases of segments that are there.
fn databases(dir: &Path) -> Vec<String> {
    let mut names = files(dir, ".db");
    names.retain(|name| !name.starts_with("state"));
    names
}

/// Waits until all that is closed was compacted and its sources are gone, the accounts being exact meanwhile.
fn until_compacted(store: &Store, dir: &Path, to: &[DestinationId]) {
    let accounts: Vec<_> = to.iter().map(|one| account(store, *one)).collect();
    eventually("it is compacted", || {
        let now: Vec<_> = to.iter().map(|one| account(store, *one)).collect();
        assert_eq!(now, accounts);
        let figures = store.figures();
        let (closed, compacted) = (figures.segments_closed, figures.segments_compacted);
        // Beside them the active one and the prepared one.
        closed == compacted && compacted > 0 && databases(dir).len() as u64 == compacted + 2
    });
}

/// A store of which the second destination is owed a sixteenth, compacted.
async fn compacted(
    dir: &Path,
    options: &Options,
    clock: &HandClock,
    events: u64,
) -> (Store, Vec<DestinationId>) {
    let (store, _) = open(dir, options, clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..events, &to).await;
    assert_eq!(deliver(&store, to[0]).len() as u64, events);
    until_compacted(&store, dir, &to);
    (store, to)
}

/// A store with the same that nothing was compacted of, checkpointed and with everything else delivered.
async fn uncompacted(dir: &Path, clock: &HandClock, events: u64) -> Store {
    let (store, _) = open(dir, &tiny(), clock);
    let to = destinations(&store, 2);
    store_events(&store, 0..events, &to).await;
    until_checkpointed(dir, events / ROWS);
    deliver(&store, to[0]);
    let half = events / ROWS / 2;
    eventually("the others are resolved", || {
        store.figures().segments_closed == half
    });
    store
}

/// Waits until the logs of these segments, counted from the first, are moved into their databases.
fn until_checkpointed(dir: &Path, segments: u64) {
    let shard = dir.join("g1/s0");
    eventually("all is checkpointed", || {
        (1..=segments).all(|number| {
            let log = shard.join(format!("{number}.db-wal"));
            shard.join(format!("{number}.idx")).exists()
                && log.metadata().map_or(true, |log| log.len() == 0)
        })
    });
}

/// What is still owed, as an export of the stopped store has it.
fn exported(stopped: &StoppedStore) -> Vec<String> {
    let mut exported = Vec::new();
    let summary = stopped.export(Wanted::default(), &mut |one| {
        let event = &one.event.event;
        let n = event.id().parse().unwrap();
        assert_eq!(event.data(), data(n).as_bytes());
        exported.push(event.id().to_owned());
        Ok(())
    });
    let summary = summary.unwrap();
    assert!(summary.damaged == 0 && summary.unreadable.is_empty());
    exported
}

/// The same of a running store, in the order of its sequences and with the content that was sent.
fn pending(store: &Store, destination: DestinationId) -> Vec<String> {
    let all = drain(&mut store.lane(destination).unwrap(), 5);
    for delivery in &all {
        let event = &delivery.event.event;
        let n = event.id().parse().unwrap();
        assert_eq!(event.data(), data(n).as_bytes());
    }
    support::ids(&all)
}

/// Numbers of compacted segments whose databases are there, in order of their sequences.
fn compacted_segments(dir: &Path) -> Vec<u64> {
    let inventory = StoppedStore::open(dir).unwrap().inspect().unwrap();
    let segments = inventory.shards.iter().flat_map(|shard| &shard.segments);
    let compacted = segments.filter(|one| one.covers.is_some() && one.bytes.is_some());
    let mut compacted: Vec<_> = compacted.map(|one| (one.covers, one.number)).collect();
    compacted.sort_unstable();
    compacted.into_iter().map(|(_, number)| number).collect()
}
