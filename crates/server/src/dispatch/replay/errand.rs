//! What a replay has done away from its loop: counting, reading, recording. Each comes back as a wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use wayhold_model::{DestinationId, Position, StoredEvent, Timestamp};
use wayhold_store::catalog::{ReplayProgress, ReplayRecord, ReplayState, SelectedSize};
use wayhold_store::{CatalogError, NotDurable, ReadError, Scan, ScanOrder, Store, TimeRange};

/// Which events are meant.
pub type Takes = Arc<dyn Fn(&StoredEvent) -> bool + Send + Sync>;

/// Most events that are looked at in one errand.
const EXAMINED_MAX: usize = 10_000;

/// An errand that has come back.
pub(super) enum Done {
    /// What is selected; `None` where it was cut short because the server stops.
    Counted(Result<Option<SelectedSize>, ReadError>),
    /// What had been read before a stop, and how many of that are gone.
    Loaded(Result<(Vec<Arc<StoredEvent>>, u64), ReadError>),
    /// The next events.
    Read(Scan, Result<Batch, ReadError>),
    /// How far it is was recorded, together with so many resolved since the time before.
    Saved(Result<usize, NotRecorded>),
    /// A state was recorded.
    Put(Result<ReplayRecord, NotRecorded>),
}

/// Something could not be recorded; asking again later may help.
#[derive(Debug, Error)]
pub(super) enum NotRecorded {
    /// The catalogue took no change.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// What was given up is not on disk yet, so it must not be forgotten.
    #[error("dead letters are not durable yet: {0}")]
    Letters(#[from] NotDurable),
}

/// Events that were read.
#[derive(Default)]
pub(super) struct Batch {
    /// To be delivered.
    pub(super) events: Vec<Arc<StoredEvent>>,
    /// Left out, since their own delivery is still owed.
    pub(super) skipped: u64,
    /// When the last event that was looked at was accepted.
    pub(super) last_at: Option<Timestamp>,
    /// Whether there are no more.
    pub(super) is_over: bool,
}

/// Counts what is selected.
///
/// # Errors
/// When a file cannot be read.
pub fn count(
    store: &Store,
    range: TimeRange,
    takes: &Takes,
    is_over: impl Fn() -> bool,
) -> Result<Option<SelectedSize>, ReadError> {
    let mut size = SelectedSize::default();
    let mut scan = store.scan(ScanOrder::OldestFirst, range, None);
    while let Some(event) = scan.read()? {
        if is_over() {
            return Ok(None);
        }
        if takes(&event) {
            size.events += 1;
            size.bytes += event.event.data().len() as u64;
            size.oldest = size.oldest.or(Some(event.accepted_at));
            size.newest = Some(event.accepted_at);
        }
    }
    // Asked afterwards: what went meanwhile was not counted.
    size.complete = store.holds_all(range);
    Ok(Some(size))
}

/// The same, until the server stops.
pub(super) fn count_until(
    store: &Store,
    range: TimeRange,
    takes: &Takes,
    stopping: &AtomicBool,
) -> Done {
    Done::Counted(count(store, range, takes, || {
        stopping.load(Ordering::Relaxed)
    }))
}

/// Reads at most `max` events that are to be delivered.
pub(super) fn read(
    store: &Store,
    mut scan: Scan,
    takes: &Takes,
    destination: DestinationId,
    (max, bytes_max): (usize, usize),
) -> Done {
    let mut batch = Batch::default();
    let mut bytes = 0;
    for _ in 0..EXAMINED_MAX {
        if batch.events.len() >= max || bytes >= bytes_max {
            break;
        }
        match scan.read() {
            // What was read before it is not lost: it is given first, and this is met again.
            Err(error) if batch.last_at.is_none() => return Done::Read(scan, Err(error)),
            Err(_) => break,
            Ok(None) => {
                batch.is_over = true;
                break;
            }
            Ok(Some(event)) => {
                batch.last_at = Some(event.accepted_at);
                let is_selected = takes(&event);
                if is_selected && store.owes(&event, destination) {
                    batch.skipped += 1;
                } else if is_selected {
                    bytes += event.event.size();
                    batch.events.push(event);
                }
            }
        }
    }
    Done::Read(scan, Ok(batch))
}

/// Reads what had been read before a stop and was not resolved.
pub(super) fn load(store: &Store, positions: &[Position]) -> Done {
    let mut events = Vec::with_capacity(positions.len());
    let mut missing = 0;
    for position in positions {
        match store.event(*position).map(|found| found?.event) {
            Ok(Some(event)) => events.push(event),
            Ok(None) | Err(ReadError::Damaged { .. }) => missing += 1,
            Err(error) => return Done::Loaded(Err(error)),
        }
    }
    Done::Loaded(Ok((events, missing)))
}

/// Records how far it is.
pub(super) fn save(store: &Store, id: u64, progress: &ReplayProgress, resolved: usize) -> Done {
    Done::Saved(record(store, id, progress).map(|()| resolved))
}

/// Letters first: what is recorded as given up is not delivered again.
fn record(store: &Store, id: u64, progress: &ReplayProgress) -> Result<(), NotRecorded> {
    store.durable()?;
    Ok(store.catalog().set_replay_progress(id, progress)?)
}

/// Records what is selected.
pub(super) fn save_size(store: &Store, id: u64, size: &SelectedSize) -> Done {
    let saved = store.catalog().set_replay_size(id, size);
    Done::Saved(saved.map(|()| 0).map_err(NotRecorded::from))
}

/// Who changed a replay that no person changed.
const ITSELF: &str = "wayhold";

/// Records a state that it came to by itself.
pub(super) fn put(store: &Store, id: u64, state: ReplayState, reason: Option<&str>) -> Done {
    let put = store.catalog().set_replay_state(id, state, ITSELF, reason);
    Done::Put(put.map_err(NotRecorded::from))
}

/// Records that everything is resolved: of how many, in the end, and then that it is done.
pub(super) fn finish(
    store: &Store,
    id: u64,
    size: &SelectedSize,
    progress: &ReplayProgress,
) -> Done {
    let catalog = store.catalog();
    let finished = || {
        catalog.set_replay_size(id, size)?;
        record(store, id, progress)?;
        Ok(catalog.set_replay_state(id, ReplayState::Done, ITSELF, None)?)
    };
    Done::Put(finished())
}
