//! The idempotency window of a whole store: exact to its edge, over restarts, shards and segments that are
//! gone.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    dead_code,
    reason = "the support is shared by suites, and this one needs little of it"
)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{HandClock, destinations, drain, event, eventually, files, open, tiny};
use wayhold_model::{DestinationId, Position};
use wayhold_store::{AppendError, Options, Resolution, Store};

/// Ids that the window must know.
const REACH: usize = 48;
/// Ids that it may know beyond them: it lets go of a few at a time.
const CHAPTER: usize = 3;

fn limits(shards: u16) -> Options {
    Options {
        shards,
        window_ids: REACH,
        ..tiny()
    }
}

/// Ids in order of acceptance, with their receipts.
#[derive(Default)]
struct Accepted {
    order: Vec<u64>,
    positions: BTreeMap<u64, Position>,
    next: u64,
}

impl Accepted {
    /// Sends new ids, in batches of several sizes.
    async fn accept(
        &mut self,
        (store, clock): (&Store, &HandClock),
        count: u64,
        to: &[DestinationId],
    ) {
        let end = self.next + count;
        while self.next < end {
            let batch = (1 + self.next % 5).min(end - self.next);
            let numbers = self.next..self.next + batch;
            self.send(store, numbers, to, false).await;
            self.next += batch;
            clock.forward(Duration::from_millis(1));
        }
    }

    async fn send(
        &mut self,
        store: &Store,
        numbers: impl Iterator<Item = u64> + Clone,
        to: &[DestinationId],
        expected: bool,
    ) {
        let batch = numbers.clone().map(|n| new(n, "same", to)).collect();
        let receipts = store.append(batch).await.unwrap();
        for (number, receipt) in numbers.zip(receipts) {
            assert_eq!(receipt.duplicate, expected, "{number} of {:?}", self.order);
            if expected {
                assert_eq!(receipt.position, self.positions[&number], "{number}");
            } else {
                self.order.push(number);
                self.positions.insert(number, receipt.position);
            }
        }
    }

    /// The ids that must be known, oldest first.
    fn known(&self) -> Vec<u64> {
        let start = self.order.len().saturating_sub(REACH);
        self.order[start..].to_vec()
    }

    /// Every id that must be known is, with its receipt; other content is a conflict; and the newest of
    /// those that must not be known is new.
    async fn check(&mut self, store: &Store, to: &[DestinationId], reach_max: usize) {
        for number in self.known() {
            self.send(store, number..=number, to, true).await;
        }
        let known = self.known();
        let first = *known.first().unwrap();
        let refused = store.append(vec![new(first, "other", to)]).await;
        match refused {
            Err(AppendError::Conflict {
                index: 0,
                first: at,
            }) => {
                assert_eq!(at, self.positions[&first]);
            }
            other => panic!("expected a conflict, got {other:?}"),
        }
        let beyond = self.order.len().checked_sub(reach_max + 1);
        if let Some(forgotten) = beyond.map(|at| self.order[at])
            && !known.contains(&forgotten)
        {
            self.send(store, forgotten..=forgotten, to, false).await;
        }
    }
}

fn new(number: u64, data: &str, to: &[DestinationId]) -> wayhold_store::NewEvent {
    event(
        &number.to_string(),
        &format!("key {}", number % 7),
        data,
        to,
    )
}

fn deliver_all(store: &Store, to: &[DestinationId]) {
    for destination in to {
        let mut lane = store.lane(*destination).unwrap();
        let handle = lane.handle();
        for delivery in drain(&mut lane, 16) {
            handle.settle(&delivery.event, Resolution::Delivered);
        }
    }
}

#[tokio::test]
async fn it_is_exact_to_its_edge_over_restarts_kills_and_segments_that_are_gone() {
    for shards in [1, 3] {
        let clock = HandClock::new();
        let dir = tempfile::tempdir().unwrap();
        let options = limits(shards);
        // With several shards the window may reach further by a segment of each of the others, and after a
        // restart forget by so much out of order.
        let overlap = usize::from(shards - 1) * options.segment_rows as usize * 2;
        let reach_max = REACH + CHAPTER + 3 * overlap;
        let mut accepted = Accepted::default();
        for run in 0..6_u64 {
            let (store, _) = open(dir.path(), &options, &clock);
            let to = destinations(&store, 1);
            if run > 0 {
                accepted.check(&store, &to, reach_max).await;
            }
            accepted.accept((&store, &clock), 20 + run * 9, &to).await;
            accepted.check(&store, &to, reach_max).await;
            if run % 2 == 0 {
                deliver_all(&store, &to);
                // A kill leaves the same files, and no clean mark.
                store.stop();
            }
            drop(store);
        }
    }
}

#[tokio::test]
async fn ids_whose_segments_are_gone_are_known_and_found_until_their_index_files_go() {
    let clock = HandClock::new();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), &limits(1), &clock);
    let to = destinations(&store, 1);
    let mut accepted = Accepted::default();
    accepted.accept((&store, &clock), 40, &to).await;
    deliver_all(&store, &to);
    // The active one, the one that was made ahead, and one on its way.
    eventually("resolved segments are unlinked", || {
        files(dir.path(), ".db").len() <= 3
    });
    accepted.check(&store, &to, REACH + CHAPTER).await;
    assert!(store.find("/test", "0").unwrap().is_some());
    let before = store.figures();
    assert_eq!(before.window_ids, 40);

    clock.forward(Duration::from_secs(25 * 3600));
    eventually("their index files go with the window", || {
        files(dir.path(), ".idx").is_empty()
    });
    assert_eq!(store.figures().window_ids, 0);
    assert!(store.find("/test", "0").unwrap().is_none());
    accepted.send(&store, 0..=0, &to, false).await;
    store.stop();
}
