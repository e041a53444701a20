//! Reading what is held again: all of it, in order, both ways, in any steps, across segments, generations and
//! restarts, and while segments are removed.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other suites need more of it")]
mod support;

use std::time::Duration;

use support::{HandClock, destinations, drain, eventually, fill, names, open, tiny};
use wayhold_model::{Clock, DestinationId, Position};
use wayhold_store::{Options, Scan, ScanOrder, Store, TimeRange};

const HOUR: Duration = Duration::from_secs(3600);

/// Keeps everything until a test says otherwise.
fn keeping(shards: u16) -> Options {
    Options {
        shards,
        retention: HOUR,
        retention_bytes: u64::MAX,
        ..tiny()
    }
}

/// Ids of what a scan gives, at most `max`.
fn read(scan: &mut Scan, max: usize) -> Vec<String> {
    let event = |_| Some(scan.read().unwrap()?.event.id().to_owned());
    (0..max).map_while(event).collect()
}

fn all(store: &Store, order: ScanOrder, range: TimeRange) -> Vec<String> {
    read(&mut store.scan(order, range, None), usize::MAX)
}

/// The same, by as many scans as there are steps of `max`, each going on by the text of the place.
fn in_steps(store: &Store, order: ScanOrder, max: usize) -> Vec<String> {
    let (mut found, mut place) = (Vec::new(), None);
    loop {
        let mut scan = store.scan(order, TimeRange::default(), place);
        let step = read(&mut scan, max);
        if step.is_empty() {
            return found;
        }
        found.extend(step);
        place = Some(scan.place().unwrap().to_string().parse().unwrap());
    }
}

fn reversed(mut names: Vec<String>) -> Vec<String> {
    names.reverse();
    names
}

/// Stores events, one a second.
async fn fill_by_the_second(
    store: &Store,
    clock: &HandClock,
    first: u64,
    count: u64,
    to: &[DestinationId],
) {
    for n in first..first + count {
        fill(store, n, 1, 7, to).await;
        clock.forward(Duration::from_secs(1));
    }
}

fn deliver_all(store: &Store, to: &[DestinationId]) {
    for destination in to {
        let mut lane = store.lane(*destination).unwrap();
        let read = drain(&mut lane, 100);
        let positions: Vec<Position> = read.iter().map(|one| one.event.position).collect();
        lane.handle().settle_delivered(&positions);
    }
}

#[tokio::test]
async fn everything_that_is_held_is_read_both_ways_in_any_steps_over_segments_shards_and_generations()
 {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(3), &clock);
    let to = destinations(&store, 1);
    // To somebody, and to nobody: both are held.
    fill_by_the_second(&store, &clock, 0, 30, &to).await;
    fill_by_the_second(&store, &clock, 30, 20, &[]).await;
    store.set_shards(2, "ada", None).unwrap().unwrap();
    fill_by_the_second(&store, &clock, 50, 30, &to).await;
    let expected = names(0..80);
    let check = |store: &Store| {
        let everything = TimeRange::default();
        assert_eq!(all(store, ScanOrder::OldestFirst, everything), expected);
        assert_eq!(
            all(store, ScanOrder::NewestFirst, everything),
            reversed(expected.clone())
        );
        for max in [1, 3, 8, 50] {
            assert_eq!(in_steps(store, ScanOrder::OldestFirst, max), expected);
            assert_eq!(
                in_steps(store, ScanOrder::NewestFirst, max),
                reversed(expected.clone())
            );
        }
    };
    check(&store);
    deliver_all(&store, &to);
    check(&store);
    store.stop();
    drop(store);
    let (store, _) = open(dir.path(), &keeping(2), &clock);
    check(&store);
    store.stop();
}

#[tokio::test]
async fn a_time_takes_its_first_moment_and_not_the_one_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let begin = clock.now();
    let (store, _) = open(dir.path(), &keeping(1), &clock);
    let to = destinations(&store, 1);
    fill_by_the_second(&store, &clock, 0, 40, &to).await;
    let at = |secs| begin.after(Duration::from_secs(secs));
    for (from, until) in [(0, 40), (5, 6), (7, 25), (16, 16), (39, 90), (50, 60)] {
        let range = TimeRange {
            from: at(from),
            until: at(until),
        };
        let expected = names(from.min(40)..until.min(40));
        let found = all(&store, ScanOrder::OldestFirst, range);
        assert_eq!(found, expected, "{from}..{until}");
        let found = all(&store, ScanOrder::NewestFirst, range);
        assert_eq!(found, reversed(expected), "{from}..{until}");
    }
    store.stop();
}

#[tokio::test]
async fn what_comes_while_it_is_read_is_read_too_and_what_goes_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let (store, _) = open(dir.path(), &keeping(1), &clock);
    let to = destinations(&store, 1);
    fill_by_the_second(&store, &clock, 0, 32, &to).await;
    let mut scan = store.scan(ScanOrder::OldestFirst, TimeRange::default(), None);
    assert_eq!(read(&mut scan, 4), names(0..4));
    deliver_all(&store, &to);
    eventually("all four segments are kept", || {
        store.figures().segments_retained == 4
    });
    fill_by_the_second(&store, &clock, 32, 4, &to).await;
    clock.forward(HOUR);
    eventually("they are removed", || {
        store.figures().segments_retained == 0
    });
    // What was read of the first segment is still given; whatever of the others is gone is left out.
    assert_eq!(
        read(&mut scan, usize::MAX),
        [names(4..8), names(32..36)].concat()
    );
    store.stop();
}
