//! Bytes on disk of events that wait for long: once a segment is closed and stays unresolved, its log is
//! moved into its database, which is smaller. Measured on a store with small segments, which do so at once.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wayhold_model::{DestinationSet, Event, EventParts};
use wayhold_store::{NewEvent, Options, Store};

use super::super::exit::{Exit, Failure};
use super::accept::{count, per};
use super::load::request::data;
use crate::blocking::blocking;
use crate::clock::SystemClock;

/// Events in one segment of the measured store, and segments that are measured.
const SEGMENT_EVENTS: u32 = 4_096;
const SEGMENTS: u32 = 3;

/// Events in one request.
const BATCH: u32 = 128;

/// How often is looked whether the logs have gone.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long that may take at the least, whatever time there is: a disk that is busy stalls for seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stops the store before its folder goes.
struct Stopped(Store);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Bytes that one event of a kibibyte of data takes; none when the disk was too slow to say within
/// `time`.
///
/// # Errors
/// When the store cannot be opened or takes no events.
pub async fn measure(folder: &Path, time: Duration) -> Result<Option<f64>, Failure> {
    let options = Options {
        shards: 1,
        segment_rows: SEGMENT_EVENTS,
        checkpoint_after: Duration::ZERO,
        window_ids: 1_000,
        ..Options::default()
    };
    let until = Instant::now() + time.max(PATIENCE);
    // One event more, so that the last segment that is measured is closed.
    let store = filled(folder, options, SEGMENT_EVENTS * SEGMENTS + 1).await?;
    let mut settled = settled(folder);
    while settled.len() < SEGMENTS as usize {
        if Instant::now() > until {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        settled = self::settled(folder);
    }
    drop(store);
    let events = u64::from(SEGMENT_EVENTS) * settled.len() as u64;
    Ok(Some(per(count(settled.iter().sum()), count(events))))
}

/// A new store in `folder` with so many events for a destination that is away.
async fn filled(folder: &Path, options: Options, events: u32) -> Result<Stopped, Failure> {
    let failed = |what: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("the measured store: {what}"))
    };
    let dir = folder.to_owned();
    let opened = blocking(move || Store::open(&dir, options, Arc::new(SystemClock))).await;
    let (store, _) = opened
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let store = Stopped(store);
    let away = store.0.catalog().sync_destinations(&["away".to_owned()]);
    let away = away.map_err(|error| failed(&error))?;
    let destinations = Arc::new(DestinationSet::new(away.iter().map(|record| record.id)));
    for first in (0..events).step_by(BATCH as usize) {
        let batch = (first..events.min(first + BATCH)).map(|number| event(number, &destinations));
        let batch: Vec<_> = batch.collect::<Option<_>>().unwrap_or_default();
        let stored = store.0.append(batch).await;
        stored.map_err(|error| failed(&error))?;
    }
    Ok(store)
}

fn event(number: u32, destinations: &Arc<DestinationSet>) -> Option<NewEvent> {
    let parts = EventParts {
        id: &format!("bench-{number:012}"),
        source: "/bench",
        kind: "com.example.shipment.scanned",
        time: "2026-01-01T00:00:00Z",
        content_type: "application/json",
        key: &format!("key-{:05}", number % 10_000),
        data: Bytes::from(data(number as usize)),
        ..EventParts::default()
    };
    Some(NewEvent {
        event: Arc::new(Event::new(&parts).ok()?),
        destinations: Arc::clone(destinations),
        identified: true,
        set_aside: None,
    })
}

/// Bytes of data and attributes of a measured event.
pub fn event_bytes() -> usize {
    let event = event(0, &Arc::new(DestinationSet::new([])));
    event.map_or(0, |new| new.event.size())
}

/// Bytes of each database that holds events and whose log is empty.
fn settled(folder: &Path) -> Vec<u64> {
    let shard = folder.join("g1/s0");
    let bytes = |name: String| std::fs::metadata(shard.join(name)).map_or(0, |file| file.len());
    (1..=u64::from(SEGMENTS) + 2)
        .map(|number| {
            (
                bytes(format!("{number}.db")),
                bytes(format!("{number}.db-wal")),
            )
        })
        .filter(|(database, log)| *database > u64::from(SEGMENT_EVENTS) * 1_024 && *log == 0)
        .map(|(database, _)| database)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of the test: more than a segment of the default size holds.
    const EVENTS: u32 = 60_000;

    /// How far the rule may be from what is there: the last segment is not settled, and the pages of a
    /// database are not all equally full.
    const TOLERANCE: f64 = 0.05;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_backlog_takes_the_bytes_that_the_rule_says() {
        let sample = tempfile::tempdir().unwrap();
        let patience = Duration::from_secs(60);
        let settled_bytes = measure(sample.path(), patience).await.unwrap().unwrap();

        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            shards: 1,
            checkpoint_after: Duration::ZERO,
            ..Options::default()
        };
        let store = filled(folder.path(), options, EVENTS).await.unwrap();
        let rule = count(u64::from(EVENTS)) * settled_bytes;
        // The store counts its bytes anew a little after a log has gone.
        let begun = Instant::now();
        loop {
            let there = count(store.0.figures().segment_bytes);
            let is_settled = !settled(folder.path()).is_empty();
            if is_settled && (there - rule).abs() < rule * TOLERANCE {
                break;
            }
            assert!(
                begun.elapsed() < patience,
                "the rule says {rule}, there are {there}, settled: {is_settled}"
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
