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

/// How long that may take at the least, whatever time there is.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let failed = |what: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("the measured store: {what}"))
    };
    let options = Options {
        segment_rows: SEGMENT_EVENTS,
        checkpoint_after: Duration::ZERO,
        window_ids: 1_000,
        ..Options::default()
    };
    let until = Instant::now() + time.max(PATIENCE);
    let dir = folder.to_owned();
    let opened = blocking(move || Store::open(&dir, options, Arc::new(SystemClock)));
    let (store, _) = opened
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let store = Stopped(store);
    let away = store
        .0
        .catalog()
        .sync_destinations(&["away".to_owned()])
        .map_err(|error| failed(&error))?;
    let destinations = Arc::new(DestinationSet::new(away.iter().map(|record| record.id)));
    // One event more, so that the last segment that is measured is closed.
    let events = SEGMENT_EVENTS * SEGMENTS + 1;
    for first in (0..events).step_by(BATCH as usize) {
        let batch = (first..events.min(first + BATCH)).map(|number| event(number, &destinations));
        let batch: Vec<_> = batch.collect::<Option<_>>().unwrap_or_default();
        store
            .0
            .append(batch)
            .await
            .map_err(|error| failed(&error))?;
    }
    loop {
        let settled = settled(folder);
        if settled.len() >= SEGMENTS as usize {
            let bytes: u64 = settled.iter().sum();
            let events = u64::from(SEGMENT_EVENTS) * settled.len() as u64;
            return Ok(Some(per(count(bytes), count(events))));
        }
        if Instant::now() > until {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
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
    })
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
