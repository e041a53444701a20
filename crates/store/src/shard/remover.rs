//! Removes the databases of resolved segments once their retention is over. Paced, because freeing a large
//! file is work for the volume (its journal, and the device where freed blocks are discarded) that it
//! cannot give to the writer's syncs meanwhile.
//!
//! In this order: progress says durably that the segment is resolved and counted (the keeper did that), the
//! database gets a name under which nobody opens it, its files are shortened and unlinked, progress forgets
//! the segment, and the index file remembers it. After a crash between any two steps the next start
//! finds either the database under its own name, and keeps it, or finishes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::core::Shard;
use super::retention::{Kept, Limits, over};
use super::segment::Segment;
use crate::disk::{DATABASE_SUFFIXES, leaving, with_suffix};

/// How often it is looked for segments whose retention is over: space is given back that much later.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pause is this many times as long as the step before it took, so that removing takes a fixed share of
/// the disk, however slow that is.
const PAUSE_FACTOR: u32 = 4;

/// Longest pause, so that a step that was slow once does not stop the removal.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Removes segments until told to stop.
pub(crate) fn run(shard: &Shard, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        run_once(shard, stop);
        // Not a sleep: whoever stops the store ends it.
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Removes what is due, or stops in the middle when told to.
pub(crate) fn run_once(shard: &Shard, stop: &AtomicBool) {
    let pace = Pace { shard, stop };
    let (due, mut promise) = shard.space.make_room(|lacking| due(shard, lacking));
    for segment in due {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let bytes = segment.bytes.load(Ordering::Relaxed);
        pace.remove(&segment);
        promise.settle(bytes);
    }
}

/// With their bytes: segments whose retention is over where the volume lacks so many bytes, those that a reader held when theirs was, and those that were compacted.
/// What a replay needs stays, beside what the retention keeps.
fn due(shard: &Shard, lacking: u64) -> (Vec<Arc<Segment>>, u64) {
    let retained = shard.retained();
    let bytes = |segment: &Arc<Segment>| segment.bytes.load(Ordering::Relaxed);
    let goes = |segment: &&Arc<Segment>| segment.is_dropped() || segment.is_replaced();
    let going: u64 = retained.iter().filter(goes).map(bytes).sum();
    let now = shard.clock.now().as_micros();
    let staying = retained.iter().filter(|segment| !goes(segment));
    let (needed, kept): (Vec<_>, Vec<_>) =
        staying.partition(|segment| shard.is_needed_again(segment));
    let needed = needed.into_iter().map(bytes).sum();
    let before = shard.needed_bytes.swap(needed, Ordering::Relaxed);
    shard.space.need_again(before, needed);
    let kept: Vec<Kept> = kept
        .into_iter()
        .map(|segment| Kept {
            number: segment.number(),
            bytes: bytes(segment),
            age: Duration::from_micros(now.saturating_sub(segment.resolved_at().unwrap_or(now))),
        })
        .collect();
    let limits = Limits {
        time: shard.options.retention,
        bytes: shard.retention_bytes.load(Ordering::Relaxed),
        wanted: lacking.saturating_sub(going),
    };
    let over: BTreeSet<u64> = over(&kept, limits).into_iter().collect();
    let is_due = |segment: &Arc<Segment>| goes(&segment) || over.contains(&segment.number());
    let due: Vec<Arc<Segment>> = retained.into_iter().filter(is_due).collect();
    let sum = due.iter().map(bytes).sum();
    (due, sum)
}

struct Pace<'a> {
    shard: &'a Shard,
    stop: &'a AtomicBool,
}

impl Pace<'_> {
    /// Removes a segment, or leaves it for the next round where somebody still has it.
    fn remove(&self, segment: &Arc<Segment>) {
        let shard = self.shard;
        // A checkpoint that began before it was resolved may be under way.
        let Ok(_changing) = segment.files.try_lock() else {
            return;
        };
        // What was found at the start may not be written yet; health says why it cannot be.
        if shard.progress.durable_soon().is_err() {
            return;
        }
        // A replay may have begun since this was due.
        let goes = segment.is_dropped() || segment.is_replaced();
        if !goes && shard.is_needed_again(segment) {
            return;
        }
        if !segment.try_drop() || !shard.readers.close(segment.number()) {
            return;
        }
        match self.unlink(segment) {
            Ok(true) => {
                failpoint!("remove.unlinked");
                self.note_replaced(segment);
                shard.remember_segment(segment);
                shard.progress.forget_segment(segment.number());
                debug!(segment = segment.number(), "segment removed");
            }
            Ok(false) => {}
            Err(error) => shard.condition.degraded(format!(
                "{} cannot be removed: {error}",
                segment.path.display()
            )),
        }
    }

    /// Nothing of a segment that was compacted is missing, also where progress should be lost.
    fn note_replaced(&self, segment: &Segment) {
        let now = self.shard.clock.now().as_micros();
        if segment.is_replaced()
            && let Err(error) = segment.note_resolved(self.shard.disk.as_ref(), now)
        {
            warn!(segment = segment.number(), %error, "an index file cannot say that its segment was compacted");
        }
    }

    /// Whether it was finished; otherwise the store stops.
    fn unlink(&self, segment: &Segment) -> std::io::Result<bool> {
        let disk = self.shard.disk.as_ref();
        let aside = leaving(&segment.path);
        if disk.exists(&segment.path)? {
            failpoint!("remove.before-renaming");
            disk.rename(&segment.path, &aside)?;
            failpoint!("remove.renamed");
        }
        let companions = DATABASE_SUFFIXES.map(|suffix| with_suffix(&segment.path, suffix));
        for path in companions.into_iter().chain([aside]) {
            let mut bytes = match disk.exists(&path)? {
                true => disk.len(&path)?,
                false => continue,
            };
            // Who had the shared index mapped and is cut short dies of it; it is small.
            let step = match path.extension() {
                Some(extension) if extension == "db-shm" => u64::MAX,
                _ => self.shard.options.removal_step,
            };
            while bytes > step {
                bytes -= step;
                let begun = Instant::now();
                disk.shorten(&path, bytes)?;
                failpoint!("remove.shortened");
                if !self.pause(begun.elapsed()) {
                    return Ok(false);
                }
            }
            let begun = Instant::now();
            failpoint!("remove.before-unlinking");
            disk.unlink(&path)?;
            if !self.pause(begun.elapsed()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets others have the disk after a step that took so long; `false` where the store stops. A volume
    /// that lacks room does not wait.
    fn pause(&self, took: Duration) -> bool {
        if self.shard.space.wanted() == 0 {
            std::thread::park_timeout(pause_after(took));
        }
        !self.stop.load(Ordering::Acquire)
    }
}

/// How long others have the disk after a step that took so long.
pub(super) fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use wayhold_model::{Clock, DestinationSet, Event, EventParts, Timestamp};

    use super::*;
    use crate::{NewEvent, Options, Store};

    #[test]
    fn a_pause_is_in_proportion_to_the_step_and_has_an_end() {
        let pause = |millis| pause_after(Duration::from_millis(millis));
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(3), Duration::from_millis(12));
        assert_eq!(pause(50), PAUSE_MAX);
        assert_eq!(pause_after(Duration::MAX), PAUSE_MAX);
    }

    #[derive(Debug)]
    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(self.0.load(Ordering::SeqCst))
        }
    }

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(20), "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stores events that are owed to nobody, so resolved at once.
    async fn store_events(store: &Store, count: u64) {
        for n in 0..count {
            let parts = EventParts {
                id: &n.to_string(),
                source: "/test",
                kind: "com.example.test",
                ..EventParts::default()
            };
            let new = NewEvent {
                event: Arc::new(Event::new(&parts).unwrap()),
                destinations: Arc::new(DestinationSet::new([])),
                identified: false,
                set_aside: None,
            };
            store.append(vec![new]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reader_delays_the_removal_of_its_segment_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(HandClock(AtomicU64::new(1)));
        let hour = Duration::from_secs(3600);
        let options = Options {
            segment_rows: 8,
            tail_bytes: 0,
            window_ids: 1_000,
            min_free: Some(0),
            reserve_bytes: 4096,
            retention: hour,
            ..Options::default()
        };
        let as_clock: Arc<dyn Clock> = Arc::<HandClock>::clone(&clock);
        let (store, _) = Store::open(dir.path(), options, as_clock).unwrap();
        store_events(&store, 24).await;
        let retained = || store.figures().segments_retained;
        eventually("three are resolved", || retained() == 3);
        let map = store.inner().shards.map();
        let shard = map.all().next().unwrap();
        assert!(shard.event(9).unwrap().is_some());
        let reader = shard.readers.cached(2).unwrap();
        clock
            .0
            .fetch_add(u64::try_from(hour.as_micros()).unwrap(), Ordering::SeqCst);
        eventually("the others are removed", || retained() == 1);
        store_events(&store, 8).await;
        eventually("what comes after is kept as ever", || retained() == 2);
        let path = shard.dir.join("2.db");
        // It can still be read by whoever has it, whole; nobody opens it again.
        let rows = reader.lock().unwrap().rows(&[9, 16], usize::MAX).unwrap();
        assert!(rows.iter().all(Result::is_ok) && path.exists());
        drop(reader);
        eventually("it is removed too", || retained() == 1);
        assert!(!path.exists());
        assert!(shard.event(9).unwrap().is_none());
        assert_eq!(store.health().degraded, Vec::<String>::new());
        store.stop();
    }
}
