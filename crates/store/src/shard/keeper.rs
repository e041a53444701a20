//! Keeps a shard in order beside its writer: writes index files, syncs the mark, finds segments of which
//! everything is resolved, forgets ids that have left the window, watches the disk. A second thread
//! checkpoints closed segments, which takes longer, and a third removes what was kept long enough
//! (`remover`).
//!
//! Nothing here is on the way of an event; a crash between two steps is completed at the next start. A
//! round costs as much as changed since the one before, not as much as is held.

use std::collections::BTreeMap;
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
use crate::progress::{NotDurable, ResolvedSegment};

/// How often resolved segments are looked for: cleaning is not urgent, and each look costs a little.
const CLEAN_EVERY: Duration = Duration::from_millis(250);

/// Segments that one round records as resolved, each for two syncs: the mark and closed segments wait
/// meanwhile.
const RESOLVED_PER_ROUND: usize = 8;

/// How often an idle checkpointer looks for work.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);

/// Runs rounds until told to stop.
pub(crate) fn run(shard: &Shard, mark: &dyn Overwrite, stop: &AtomicBool) {
    let mut cleaned = Instant::now();
    let mut work = Work::default();
    while !stop.load(Ordering::Acquire) {
        shard.keeper.await_wake(shard.options.mark_sync);
        index(shard, &mut work);
        take_compacted(shard, &mut work.due);
        sync_mark(shard, mark);
        shard.space.check();
        if cleaned.elapsed() >= CLEAN_EVERY {
            clean(shard, &mut work.due);
            cleaned = Instant::now();
        }
        shard.keeper.round_ended();
    }
}

/// What a round goes on with.
#[derive(Default)]
struct Work {
    /// Every closed segment of a lower number has its index file and was once due.
    seen_below: u64,
    due: Due,
}

/// Closed segments that are to be looked at, by number: they are new, or something of them was resolved.
type Due = BTreeMap<u64, Arc<Segment>>;

/// Checkpoints closed segments until told to stop.
pub(crate) fn run_checkpoints(shard: &Shard, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let due = due_for_checkpoint(shard);
        if due.is_empty() {
            // Not a sleep: whoever stops the store ends it.
            std::thread::park_timeout(CHECKPOINT_EVERY);
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

/// Writes the index files of segments that were closed.
fn index(shard: &Shard, work: &mut Work) {
    let mut failed = None;
    for segment in shard.closed_from(work.seen_below) {
        let number = segment.number();
        // Not asked of one that has it: its checkpoint may be under way, and take long.
        let written = match segment.is_indexed() {
            true => Ok(()),
            false => segment.write_index(shard.disk.as_ref()),
        };
        match written {
            Ok(()) => {
                work.due.insert(number, segment);
                work.seen_below = failed.unwrap_or(number + 1);
            }
            Err(error) => {
                if error.kind() == std::io::ErrorKind::StorageFull {
                    shard.space.exhausted();
                }
                shard.condition.degraded(format!(
                    "{} cannot be written: {error}",
                    segment.index_path.display()
                ));
                failed = failed.or(Some(number));
            }
        }
    }
}

/// Compacted segments are to be looked at as those are that were closed.
fn take_compacted(shard: &Shard, due: &mut Due) {
    let mut compacted = shard
        .compacted
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let new = compacted.drain(..);
    due.extend(new.map(|segment| (segment.number(), segment)));
}

fn sync_mark(shard: &Shard, mark: &dyn Overwrite) {
    failpoint!("keep.before-mark-sync");
    if shard.mark_dirty.swap(false, Ordering::AcqRel)
        && let Err(error) = mark.sync()
    {
        shard
            .condition
            .degraded(format!("the mark cannot be synced: {error}"));
    }
}

/// Records segments of which nothing is unresolved, and unlinks index files that have left the window.
fn clean(shard: &Shard, due: &mut Due) {
    let touched = shard.progress.take_touched();
    if !touched.is_empty() {
        let touches = |segment: &Segment| {
            let span = segment.span();
            span.is_some_and(|(first, last)| touched.meets(Sequence(first), Sequence(last)))
        };
        let segments = shard
            .segments
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let now = shard.clock.now().as_micros();
        let is_due = |segment: &&Arc<Segment>| {
            segment.is_closed() && segment.is_indexed() && touches(segment)
        };
        for segment in segments.iter().filter(is_due) {
            segment.touched_at.store(now, Ordering::Relaxed);
            due.insert(segment.number(), Arc::clone(segment));
        }
    }
    if !due.is_empty() {
        look_at(shard, due);
        raise_floors(shard);
    }
    forget(shard);
}

/// Looks at segments of which something was resolved; those that it could not finish stay due.
fn look_at(shard: &Shard, due: &mut Due) {
    let mut left = RESOLVED_PER_ROUND;
    due.retain(|_, segment| {
        if left == 0 {
            return true;
        }
        if segment.rows() == 0 {
            return !drop_empty(shard, segment);
        }
        // What was left of it is another segment's now.
        if segment.is_replaced() {
            return false;
        }
        match look(shard, segment) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                shard
                    .condition
                    .degraded(format!("{} {error}", segment.index_path.display()));
                // Not known to be resolved, so it is kept. What can be read later is looked at again.
                return matches!(error, IndexError::Read(_));
            }
        }
        match retain(shard, segment) {
            Ok(done) => {
                left -= usize::from(done);
                !done
            }
            // Progress says in health why it cannot record; the segments stay until it can.
            Err(NotDurable) => {
                left = 0;
                true
            }
        }
    });
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

/// Whether every delivery of a segment is resolved and no dead letter refers to it: first by the counts, which costs no reading, then, once
/// they say so, by every single delivery.
fn look(shard: &Shard, segment: &Segment) -> Result<bool, IndexError> {
    if planted!("delete-before-acknowledgement") {
        return Ok(true);
    }
    if shard.has_held(segment) {
        return Ok(false);
    }
    for destination in segment.counts().into_keys() {
        let Some(lane) = shard.lane_of(destination) else {
            return Ok(false);
        };
        let held = match first_held(shard, segment, destination, lane) {
            Err(error) if shard.mend_index(segment, &error) => {
                first_held(shard, segment, destination, lane)
            }
            looked => looked,
        };
        if held?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn first_held(
    shard: &Shard,
    segment: &Segment,
    destination: DestinationId,
    lane: LaneId,
) -> Result<Option<u64>, IndexError> {
    let sequences = segment.lane_after(shard.disk.as_ref(), destination, 0, usize::MAX)?;
    Ok(shard.progress.view(lane, |view| {
        sequences
            .into_iter()
            .find(|sequence| view.is_held(Sequence(*sequence)))
    }))
}

/// Records durably that a segment is resolved and counted, once; from then on it is kept for the
/// retention. `false` where its files are being changed: later.
fn retain(shard: &Shard, segment: &Arc<Segment>) -> Result<bool, NotDurable> {
    let (Some((first, last)), Ok(_changing)) = (segment.span(), segment.files.try_lock()) else {
        return Ok(false);
    };
    // It may have been compacted since it was looked at.
    if segment.is_replaced() {
        return Ok(true);
    }
    let accepted: Vec<(LaneId, u64)> = segment
        .counts()
        .into_iter()
        .filter_map(|(destination, count)| Some((shard.lane_of(destination)?, count)))
        .collect();
    let resolved = ResolvedSegment {
        segment: segment.number(),
        first: Sequence(first),
        last: Sequence(last),
    };
    failpoint!("resolve.before-recording");
    shard.progress.resolve_segment(resolved, &accepted)?;
    failpoint!("resolve.recorded");
    let now = shard.clock.now().as_micros();
    if let Err(error) = segment.note_resolved(shard.disk.as_ref(), now) {
        // Only if progress is lost as well would its deliveries be repeated.
        warn!(segment = segment.number(), %error, "an index file cannot say that its segment is resolved");
    }
    segment.measure(shard.disk.as_ref());
    failpoint!("resolve.noted");
    shard.retain_segment(segment);
    debug!(segment = segment.number(), "segment resolved");
    Ok(true)
}

/// Unlinks a segment that failed before its first row was acknowledged. The index file goes last: it says
/// that the database holds nothing. `false` where its files are being changed: later.
fn drop_empty(shard: &Shard, segment: &Segment) -> bool {
    let Ok(_changing) = segment.files.try_lock() else {
        return false;
    };
    if !segment.try_drop() {
        return false;
    }
    shard.forget_empty(segment);
    for removed in [
        unlink_database(shard.disk.as_ref(), &segment.path),
        shard.disk.unlink(&segment.index_path),
    ] {
        if let Err(error) = removed {
            warn!(segment = segment.number(), %error, "an empty segment cannot be unlinked; the next start does");
        }
    }
    true
}

/// Unlinks index files whose every id has left the window, by time or by number.
pub(crate) fn forget(shard: &Shard) {
    let oldest = shard.clock.now().as_micros();
    let oldest = oldest.saturating_sub(shard.window.reach().micros);
    shard.window.expire(oldest);
    // A compacted segment says of its sources that they are not needed, for as long as they are there.
    let leaving: Vec<(u64, u64)> = shard
        .retained()
        .iter()
        .filter(|segment| segment.is_replaced())
        .filter_map(|segment| segment.span())
        .collect();
    let is_witness = |segment: &Segment| {
        let covers = segment.identity.covers;
        covers.is_some_and(|(first, last)| {
            let mut spans = leaving.iter();
            spans.any(|(from, to)| first <= *from && *to <= last)
        })
    };
    let mut remembered = shard
        .remembered
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let gone: Vec<Arc<Segment>> = remembered
        .extract_if(.., |segment| {
            !shard.window.names(segment) && !is_witness(segment)
        })
        .collect();
    drop(remembered);
    for segment in gone {
        failpoint!("forget.before-unlinking");
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
    // It may have become resolved while it waited: then nobody needs it to be shorter.
    if segment.resolved_at().is_some() || segment.is_dropped() || segment.is_replaced() {
        return;
    }
    failpoint!("checkpoint.before-moving");
    match segment_file::checkpoint(&segment.path, shard.options.vfs.as_deref()) {
        Ok(true) => {
            failpoint!("checkpoint.moved");
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
