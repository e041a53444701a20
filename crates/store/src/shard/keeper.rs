//! Keeps a shard in order beside its writer: writes index files, syncs the mark, unlinks what is
//! resolved, forgets ids that have left the window, watches the disk. A second thread checkpoints closed
//! segments, which takes longer.
//!
//! Nothing here is on the way of an event; a crash between two steps is completed at the next start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use wayhold_model::{DestinationId, LaneId, Sequence};

use super::core::Shard;
use super::index_file::IndexError;
use super::segment::Segment;
use super::segment_file;
use crate::disk::{Overwrite, unlink_database};
use crate::progress::{Dropped, NotDurable};

/// How often resolved segments are looked for: cleaning is not urgent, and each look costs a little.
const CLEAN_EVERY: Duration = Duration::from_millis(250);

/// Segments that one round drops, each for a few syncs: the mark and closed segments wait meanwhile.
const DROPS_PER_ROUND: usize = 8;

/// How often an idle checkpointer looks for work.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);

/// Runs rounds until told to stop.
pub(crate) fn run(shard: &Shard, mark: &dyn Overwrite, stop: &AtomicBool) {
    let mut cleaned = Instant::now();
    while !stop.load(Ordering::Acquire) {
        shard.keeper.await_wake(shard.options.mark_sync);
        index(shard);
        sync_mark(shard, mark);
        shard.space.check();
        if cleaned.elapsed() >= CLEAN_EVERY {
            clean(shard);
            cleaned = Instant::now();
        }
        shard.keeper.round_ended();
    }
}

/// Checkpoints closed segments until told to stop.
pub(crate) fn run_checkpoints(shard: &Shard, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let due = due_for_checkpoint(shard);
        if due.is_empty() {
            std::thread::sleep(CHECKPOINT_EVERY);
        }
        for segment in due {
            checkpoint(shard, &segment);
            shard.keeper.round_ended();
            if stop.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

/// Writes the index files of closed segments.
fn index(shard: &Shard) {
    for segment in shard
        .segments()
        .iter()
        .filter(|segment| segment.is_closed() && !segment.is_indexed())
    {
        let Err(error) = segment.write_index(shard.disk.as_ref()) else {
            continue;
        };
        if error.kind() == std::io::ErrorKind::StorageFull {
            shard.space.exhausted();
        }
        shard.condition.degraded(format!(
            "{} cannot be written: {error}",
            segment.index_path.display()
        ));
    }
}

fn sync_mark(shard: &Shard, mark: &dyn Overwrite) {
    if shard.mark_dirty.swap(false, Ordering::AcqRel)
        && let Err(error) = mark.sync()
    {
        shard
            .condition
            .degraded(format!("the mark cannot be synced: {error}"));
    }
}

/// Unlinks segments of which nothing is unresolved, and index files that have left the window.
fn clean(shard: &Shard) {
    let mut dropped = 0;
    for segment in shard.segments() {
        if !segment.is_closed() || !segment.is_indexed() {
            continue;
        }
        if segment.rows() == 0 {
            drop_empty(shard, &segment);
        } else if is_resolved(shard, &segment) {
            // Progress says in health why it cannot record; the segments stay until it can.
            if drop_segment(shard, &segment).is_err() {
                break;
            }
            dropped += 1;
            if dropped == DROPS_PER_ROUND {
                break;
            }
        }
    }
    raise_floors(shard);
    forget(shard);
}

/// Everything before the first segment that is held is resolved.
fn raise_floors(shard: &Shard) {
    let held = shard.segments();
    let Some((first, _)) = held.iter().find_map(|segment| segment.span()) else {
        return;
    };
    for lane in shard
        .catalog
        .destinations()
        .iter()
        .map(|destination| destination.lane)
    {
        // Asked first: a change, even an empty one, costs a write of progress.
        if shard.progress.view(lane, |view| view.floor().0) < first {
            shard.progress.raise_floor(lane, Sequence(first));
        }
    }
}

/// Whether every delivery of a segment is resolved. Remembers per lane the first that is not, so that a
/// stuck segment costs one look and a draining one is walked once.
fn is_resolved(shard: &Shard, segment: &Segment) -> bool {
    let mut from = segment
        .unresolved_from
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    for destination in segment.counts().into_keys() {
        let Some(lane) = shard.lane_of(destination) else {
            return false;
        };
        let known = from.get(&destination).copied();
        if known == Some(RESOLVED) {
            continue;
        }
        if let Some(sequence) = known
            && !shard
                .progress
                .view(lane, |view| view.is_resolved(Sequence(sequence)))
        {
            return false;
        }
        match first_unresolved(shard, segment, destination, lane, known.unwrap_or(0)) {
            Ok(Some(sequence)) => {
                from.insert(destination, sequence);
                return false;
            }
            Ok(None) => from.insert(destination, RESOLVED),
            Err(error) => {
                shard
                    .condition
                    .degraded(format!("{} {error}", segment.index_path.display()));
                // Not known to be resolved, so it is kept.
                return false;
            }
        };
    }
    true
}

/// In `Segment::unresolved_from`: nothing of the lane is unresolved.
const RESOLVED: u64 = u64::MAX;

fn first_unresolved(
    shard: &Shard,
    segment: &Segment,
    destination: DestinationId,
    lane: LaneId,
    after: u64,
) -> Result<Option<u64>, IndexError> {
    let sequences = segment.lane_after(shard.disk.as_ref(), destination, after, usize::MAX)?;
    Ok(shard.progress.view(lane, |view| {
        sequences
            .into_iter()
            .find(|sequence| !view.is_resolved(Sequence(*sequence)))
    }))
}

/// Records durably that a segment is dropped, then unlinks it. In this order a crash between the two is
/// completed at the next start, and the accounting counts its events once.
fn drop_segment(shard: &Shard, segment: &Arc<Segment>) -> Result<(), NotDurable> {
    // Its WAL may be on its way into the database.
    let (Some((first, last)), Ok(_changing)) = (segment.span(), segment.files.try_lock()) else {
        return Ok(());
    };
    let accepted: Vec<(LaneId, u64)> = segment
        .counts()
        .into_iter()
        .filter_map(|(destination, count)| Some((shard.lane_of(destination)?, count)))
        .collect();
    let dropped = Dropped {
        segment: segment.number(),
        first: Sequence(first),
        last: Sequence(last),
    };
    shard.progress.drop_segment(dropped, &accepted)?;
    segment.set_dropped();
    if !shard.readers.close(segment.number()) {
        // Somebody looks at it; the next round finds them gone.
        return Ok(());
    }
    shard.remember_segment(segment);
    if let Err(error) = unlink_database(shard.disk.as_ref(), &segment.path) {
        warn!(segment = segment.number(), %error, "a resolved segment cannot be unlinked; the next start does");
        return Ok(());
    }
    shard.progress.forget_dropped(segment.number());
    debug!(segment = segment.number(), "segment dropped");
    Ok(())
}

/// Unlinks a segment that failed before its first row was acknowledged. The index file goes last: it says
/// that the database holds nothing.
fn drop_empty(shard: &Shard, segment: &Arc<Segment>) {
    let Ok(_changing) = segment.files.try_lock() else {
        return;
    };
    segment.set_dropped();
    shard.remember_segment(segment);
    shard
        .remembered
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|other| other.number() != segment.number());
    for removed in [
        unlink_database(shard.disk.as_ref(), &segment.path),
        shard.disk.unlink(&segment.index_path),
    ] {
        if let Err(error) = removed {
            warn!(segment = segment.number(), %error, "an empty segment cannot be unlinked; the next start does");
        }
    }
}

/// Unlinks index files whose every id has left the window, by time or by number.
fn forget(shard: &Shard) {
    let window = u64::try_from(shard.options.window.as_micros()).unwrap_or(u64::MAX);
    let oldest = shard.clock.now().as_micros().saturating_sub(window);
    let mut rows: usize = shard.segments().iter().map(|segment| segment.rows()).sum();
    let mut remembered = shard
        .remembered
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let mut gone = Vec::new();
    for segment in remembered.iter().rev() {
        if segment.newest() < oldest || rows >= shard.options.window_ids {
            gone.push(Arc::clone(segment));
        }
        rows += segment.rows();
    }
    remembered.retain(|segment| gone.iter().all(|other| other.number() != segment.number()));
    drop(remembered);
    for segment in gone {
        if let Err(error) = shard.disk.unlink(&segment.index_path) {
            warn!(segment = segment.number(), %error, "an index file cannot be unlinked; the next start does");
        }
    }
}

fn due_for_checkpoint(shard: &Shard) -> Vec<Arc<Segment>> {
    let after = u64::try_from(shard.options.checkpoint_after.as_micros()).unwrap_or(u64::MAX);
    let due = shard.clock.now().as_micros().saturating_sub(after);
    let mut segments = shard.segments();
    segments.retain(|segment| {
        segment.is_closed()
            && segment.is_indexed()
            && segment.closed_at.load(Ordering::Relaxed) <= due
            && !segment.checkpointed.load(Ordering::Relaxed)
    });
    segments
}

fn checkpoint(shard: &Shard, segment: &Segment) {
    let _changing = segment.files.lock().unwrap_or_else(PoisonError::into_inner);
    if segment.is_dropped() {
        return;
    }
    match segment_file::checkpoint(&segment.path, shard.options.vfs.as_deref()) {
        Ok(true) => {
            segment.checkpointed.store(true, Ordering::Relaxed);
            if let Ok(bytes) = shard.disk.len(&segment.path) {
                segment.bytes.store(bytes, Ordering::Relaxed);
            }
        }
        Ok(false) => {}
        Err(error) => {
            shard.condition.degraded(format!(
                "{} cannot be checkpointed: {error}",
                segment.path.display()
            ));
            // Trying for ever would hold up accepting; the rows stay readable in the WAL.
            segment.checkpointed.store(true, Ordering::Relaxed);
        }
    }
}
