//! Compacts segments of which little is still needed, so that a destination that is down for long holds about
//! as much of the disk as it is owed, and not whatever lies around that.
//!
//! In this order: progress is synced, so that what is left out stays resolved; the events that are needed are
//! copied, sequences kept, into a new database beside the segments; that is synced and its log moved into it; its
//! index file is put in place, and from then on it counts; the database gets its name; progress counts what was
//! left out as it was counted before, and the new segment takes the place of its sources in one step. Once progress
//! has said that durably the remover takes the sources away; their index files stay for the idempotency window.
//! After a crash between any two steps the next start finishes, or finds that nothing was begun (`replaced`).
//!
//! Paced like the remover, and within the room above what accepting, settling and draining need.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};
use wayhold_model::Sequence;

use super::compaction::{Candidate, Limits, choose};
use super::core::Shard;
use super::index_file::{Identity, IndexFile};
use super::preparer::draw_uuid;
use super::readers::RowsError;
use super::recent::Recent;
use super::remover::pause_after;
use super::replaced::{compaction, held};
use super::retention::{self, Kept, over};
use super::row::Row;
use super::segment::{Segment, database_path, index_path};
use super::segment_file::{self, SegmentReader, SegmentWriter};
use crate::connection::Fault;
use crate::disk::{making, unlink_companions, unlink_database};
use crate::options::COMPACTION_SHORT_SEGMENTS;
use crate::space::Claim;

/// How long a disk is left alone that took no compaction.
const RETRY: Duration = Duration::from_secs(30);

/// Bytes of events that are copied in one transaction: a piece of work that a sync of the writer may have to
/// wait for.
const COPY_BYTES: usize = 1024 * 1024;

/// A compacted segment is written twice: into its log, and from there into its file.
const TIMES_WRITTEN: u64 = 2;

/// Pages that a segment's file has before its first row, and a log with them: what an estimate by rows misses.
const FIXED_PAGES: u64 = 16;

/// Compacts segments until told to stop.
pub(crate) fn run(shard: &Shard, stop: &AtomicBool) {
    let mut compactor = Compactor {
        shard,
        stop,
        lacks_room: false,
    };
    while !stop.load(Ordering::Acquire) {
        let pause = match compactor.run_once() {
            Ok(true) => continue,
            Ok(false) => shard.options.compaction_every,
            Err(failed) => {
                shard.condition.degraded(failed);
                RETRY
            }
        };
        // Not a sleep: whoever stops the store ends it.
        std::thread::park_timeout(pause);
    }
}

struct Compactor<'a> {
    shard: &'a Shard,
    stop: &'a AtomicBool,
    /// Whether it was said that there is no room to compact.
    lacks_room: bool,
}

/// Why a compaction was given up.
enum GivenUp {
    /// Not now: somebody needs a source, a backup is made, there is no room, or the store stops.
    Later,
    /// Never: a source is damaged. It is named, and its deliveries are made from where it lies.
    Unfit(Arc<Segment>, String),
    /// The disk takes nothing; another time, and another file.
    Failed(String),
}

impl<'a> Compactor<'a> {
    /// Compacts what is most worth it; whether there was anything.
    ///
    /// # Errors
    /// Says what the disk refused; nothing has changed.
    fn run_once(&mut self) -> Result<bool, String> {
        let Some((sources, _room)) = self.due() else {
            return Ok(false);
        };
        match self.compact(&sources) {
            Ok(()) => Ok(true),
            Err(GivenUp::Later) => Ok(false),
            Err(GivenUp::Unfit(segment, reason)) => {
                segment.is_fit.store(false, Ordering::Relaxed);
                let path = segment.path.display();
                self.shard
                    .condition
                    .degraded(format!("{path} is not compacted: {reason}"));
                Ok(true)
            }
            Err(GivenUp::Failed(reason)) => Err(reason),
        }
    }

    /// What is to be compacted, with room for it.
    fn due(&mut self) -> Option<(Vec<Arc<Segment>>, Claim<'a>)> {
        let shard = self.shard;
        if shard.holds_segments() {
            return None;
        }
        let mut closed = shard.segments();
        closed.retain(|segment| segment.is_closed());
        let candidates = candidates(shard, &closed);
        let options = &shard.options;
        let fixed = FIXED_PAGES * u64::from(options.page_size);
        let needs = |live: u64| live.saturating_mul(TIMES_WRITTEN) + fixed;
        let limits = Limits {
            bytes: options.segment_bytes,
            rows: u64::from(options.segment_rows),
            gain: options.compaction_gain,
        };
        let wanted = choose(&candidates, limits)?;
        let room = shard.space.spare().saturating_sub(fixed) / TIMES_WRITTEN;
        // Little is better than nothing: what it gives back makes room for more.
        let limits = Limits {
            bytes: limits.bytes.min(room),
            ..limits
        };
        let chosen = choose(&candidates, limits).and_then(|chosen| {
            let live = candidates.get(chosen.clone())?.iter().map(|one| one.live);
            Some((chosen, shard.space.claim(needs(live.sum()))?))
        });
        let Some((chosen, claim)) = chosen else {
            if !std::mem::replace(&mut self.lacks_room, true) {
                let segments = wanted.len();
                warn!(
                    segments,
                    room,
                    "segments cannot be compacted: the disk has no room for what is left of them"
                );
            }
            return None;
        };
        if std::mem::take(&mut self.lacks_room) {
            info!("segments are compacted again: the disk has room");
        }
        Some((closed.get(chosen)?.to_vec(), claim))
    }

    fn compact(&self, sources: &[Arc<Segment>]) -> Result<(), GivenUp> {
        // As long as these are held, nobody changes the files of a source, or finds it resolved.
        let guards: Option<Vec<MutexGuard<'_, ()>>> = sources
            .iter()
            .map(|source| source.files.try_lock().ok())
            .collect();
        let _changing = guards.ok_or(GivenUp::Later)?;
        if !sources.iter().all(|source| is_free(source)) {
            return Err(GivenUp::Later);
        }
        let survivors = self.survivors(sources)?;
        if survivors.iter().all(Vec::is_empty) {
            // The keeper is about to find it resolved.
            return Err(GivenUp::Later);
        }
        // What is left out is not found again, so that it is resolved has to survive any crash first.
        self.shard
            .progress
            .durable_soon()
            .map_err(|_| GivenUp::Later)?;
        let target = Target::new(self.shard, sources)?;
        let made = self.make(&target, sources, &survivors);
        let recent = match made {
            Ok(recent) => recent,
            Err(given_up) => {
                target.discard();
                return Err(given_up);
            }
        };
        self.exchange(&target, sources, &recent)
    }

    /// Of each source the sequences that are still needed.
    fn survivors(&self, sources: &[Arc<Segment>]) -> Result<Vec<Vec<u64>>, GivenUp> {
        sources
            .iter()
            .map(|source| {
                let mut kept = needed(self.shard, source)
                    .map_err(|error| GivenUp::Unfit(Arc::clone(source), error.to_string()))?;
                if planted!("compaction-forgets") {
                    kept.pop();
                }
                Ok(kept)
            })
            .collect()
    }

    /// Makes the target's database: synced, and without a log.
    fn make(
        &self,
        target: &Target<'_>,
        sources: &[Arc<Segment>],
        survivors: &[Vec<u64>],
    ) -> Result<Recent, GivenUp> {
        let shard = self.shard;
        let mut file = target.create()?;
        failpoint!("compact.begun");
        let mut recent = Recent::default();
        for (source, sequences) in sources.iter().zip(survivors) {
            self.copy(source, sequences, |rows| {
                file.append(rows).map_err(|(fault, error)| match fault {
                    Fault::NoSpace => GivenUp::Later,
                    _ => target.failed(&error),
                })?;
                for row in rows {
                    recent.push(row);
                }
                Ok(())
            })?;
        }
        failpoint!("compact.copied");
        drop(file);
        match segment_file::checkpoint(&target.made, shard.options.vfs.as_deref()) {
            Ok(true) => {}
            Ok(false) => return Err(target.failed(&"somebody else has it open")),
            Err(error) if error.fault() == Fault::NoSpace => return Err(GivenUp::Later),
            Err(error) => return Err(target.failed(&error)),
        }
        failpoint!("compact.checkpointed");
        unlink_companions(shard.disk.as_ref(), &target.made)
            .map_err(|error| target.failed(&error))?;
        Ok(recent)
    }

    /// Hands rows of a source on, some at a time and with pauses.
    fn copy(
        &self,
        source: &Arc<Segment>,
        sequences: &[u64],
        mut take: impl FnMut(&[Row]) -> Result<(), GivenUp>,
    ) -> Result<(), GivenUp> {
        let shard = self.shard;
        let unread = |error: RowsError| match error.is_lasting(&source.path) {
            true => GivenUp::Unfit(Arc::clone(source), error.to_string()),
            false => GivenUp::Failed(format!("{} cannot be read: {error}", source.path.display())),
        };
        if sequences.is_empty() {
            return Ok(());
        }
        let vfs = shard.options.vfs.as_deref();
        let (reader, _) =
            SegmentReader::open(&source.path, Some(source.identity), shard.hash_seed, vfs)
                .map_err(|error| unread(error.into()))?;
        let mut rest = sequences;
        while !rest.is_empty() {
            let begun = Instant::now();
            let read = reader.rows(rest, COPY_BYTES);
            let rows: Result<Vec<Row>, _> = read
                .map_err(|error| unread(error.into()))?
                .into_iter()
                .collect();
            let rows = rows.map_err(|damaged| {
                let position = shard.position(damaged.sequence);
                let reason = format!("event {position} in it is damaged");
                GivenUp::Unfit(Arc::clone(source), reason)
            })?;
            rest = rest.get(rows.len()..).unwrap_or_default();
            take(&rows)?;
            std::thread::park_timeout(pause_after(begun.elapsed()));
            let is_over = self.stop.load(Ordering::Acquire) || shard.holds_segments();
            if is_over || shard.space.wanted() > 0 {
                return Err(GivenUp::Later);
            }
        }
        Ok(())
    }

    /// Puts the target in the place of its sources.
    fn exchange(
        &self,
        target: &Target<'_>,
        sources: &[Arc<Segment>],
        recent: &Recent,
    ) -> Result<(), GivenUp> {
        let shard = self.shard;
        let exchange = shard.exchange.lock();
        let is_held = exchange.unwrap_or_else(PoisonError::into_inner);
        let may_go = |source: &Arc<Segment>| is_free(source) && !shard.is_needed_again(source);
        if *is_held || !sources.iter().all(may_go) {
            target.discard();
            return Err(GivenUp::Later);
        }
        let compacted = match target.put_in_place(recent) {
            Ok(compacted) => Arc::new(compacted),
            Err(given_up) => {
                // Until it is gone the sources stay as they are: a start would take it for theirs.
                while !target.discard() && !self.stop.load(Ordering::Acquire) {
                    std::thread::park_timeout(RETRY);
                }
                return Err(given_up);
            }
        };
        let now = shard.clock.now().as_micros().max(1);
        compacted.closed_at.store(now, Ordering::Release);
        compacted.checkpointed.store(true, Ordering::Relaxed);
        compacted.measure(shard.disk.as_ref());
        let index = compacted.load(shard.disk.as_ref());
        let index = match index {
            Ok(index) => index,
            Err(error) => {
                while !target.discard() && !self.stop.load(Ordering::Acquire) {
                    std::thread::park_timeout(RETRY);
                }
                return Err(target.failed(&error));
            }
        };
        let lanes = held(&compacted, sources, &index);
        let Some(record) = compaction(&compacted, sources, lanes) else {
            return Err(GivenUp::Later);
        };
        shard.exchange_segments(sources, &compacted, || shard.progress.compact(&record));
        failpoint!("compact.exchanged");
        // What is not durable yet will be; the remover waits for it, whatever this says.
        let is_durable = shard.progress.durable_soon().is_ok();
        failpoint!("compact.recorded");
        self.account(sources, &compacted, is_durable);
        Ok(())
    }

    fn account(&self, sources: &[Arc<Segment>], compacted: &Segment, is_durable: bool) {
        let bytes = |segment: &Segment| segment.bytes.load(Ordering::Relaxed);
        let before: u64 = sources.iter().map(|source| bytes(source)).sum();
        let after = bytes(compacted);
        let given_back = before.saturating_sub(after);
        self.shard.compactions.fetch_add(1, Ordering::Relaxed);
        self.shard
            .compacted_bytes
            .fetch_add(given_back, Ordering::Relaxed);
        debug!(
            segment = compacted.number(),
            sources = sources.len(),
            events = compacted.rows(),
            before,
            after,
            is_durable,
            "segments compacted"
        );
        self.shard.keeper.wake();
    }
}

/// Closed segments as candidates.
fn candidates(shard: &Shard, closed: &[Arc<Segment>]) -> Vec<Candidate> {
    let now = shard.clock.now().as_micros();
    let shares: Vec<(u64, u64, u64)> = closed
        .iter()
        .map(|segment| {
            let rows = segment.rows() as u64;
            let total = segment.bytes.load(Ordering::Relaxed);
            let live_rows = shard.held_in(segment).min(rows);
            let live = u128::from(total) * u128::from(live_rows) / u128::from(rows.max(1));
            (live_rows, u64::try_from(live).unwrap_or(total), total)
        })
        .collect();
    // What is resolved of them is kept for replay as whole segments are, all together.
    let kept: Vec<Kept> = closed
        .iter()
        .zip(&shares)
        .map(|(segment, (_, live, total))| {
            let since =
                [&segment.touched_at, &segment.closed_at].map(|at| at.load(Ordering::Relaxed));
            let since = since.into_iter().max().unwrap_or(now);
            Kept {
                number: segment.number(),
                bytes: total.saturating_sub(*live),
                age: Duration::from_micros(now.saturating_sub(since)),
            }
        })
        .collect();
    let retained = shard.retained();
    let retained = retained
        .iter()
        .filter(|segment| !segment.is_replaced())
        .map(|segment| segment.bytes.load(Ordering::Relaxed));
    let short = COMPACTION_SHORT_SEGMENTS.saturating_mul(shard.options.segment_bytes);
    let limits = retention::Limits {
        time: shard.options.retention,
        bytes: shard
            .retention_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(retained.sum()),
        wanted: short.saturating_sub(shard.space.spare()),
    };
    let over: BTreeSet<u64> = over(&kept, limits).into_iter().collect();
    closed
        .iter()
        .zip(shares)
        .map(|(segment, (live_rows, live, total))| Candidate {
            span: segment.span().unwrap_or_default(),
            live_rows,
            live,
            total,
            may: live_rows > 0
                && segment.is_indexed()
                && segment.checkpointed.load(Ordering::Relaxed)
                && segment.is_fit.load(Ordering::Relaxed)
                && is_free(segment)
                && over.contains(&segment.number())
                && !shard.is_needed_again(segment),
        })
        .collect()
}

/// Whether nobody needs a segment to stay as it is.
fn is_free(segment: &Segment) -> bool {
    !segment.is_pinned()
        && !segment.is_dropped()
        && !segment.is_replaced()
        && segment.resolved_at().is_none()
}

/// The sequences of a segment that are still needed, ascending.
fn needed(shard: &Shard, segment: &Segment) -> Result<Vec<u64>, super::index_file::IndexError> {
    let index = segment.load(shard.disk.as_ref())?;
    let mut needed = BTreeSet::new();
    for destination in segment.counts().into_keys() {
        let sequences: Vec<u64> = index.lane_after(destination, 0).collect();
        match shard.lane_of(destination) {
            Some(lane) => shard.progress.view(lane, |view| {
                let held = |sequence: &u64| view.is_held(Sequence(*sequence));
                needed.extend(sequences.into_iter().filter(held));
            }),
            // Whoever it is, nobody has delivered it.
            None => needed.extend(sequences),
        }
    }
    Ok(needed.into_iter().collect())
}

/// A compacted segment on its way.
struct Target<'a> {
    shard: &'a Shard,
    identity: Identity,
    path: PathBuf,
    /// Where its database lies until it is put in place.
    made: PathBuf,
    index_path: PathBuf,
}

impl<'a> Target<'a> {
    fn new(shard: &'a Shard, sources: &[Arc<Segment>]) -> Result<Self, GivenUp> {
        let ends = [sources.first(), sources.last()].map(|source| source?.span());
        let [Some((first, _)), Some((_, last))] = ends else {
            return Err(GivenUp::Later);
        };
        // A number is never given again, whatever becomes of the file.
        let number = shard.next_number.fetch_add(1, Ordering::Relaxed);
        let identity = Identity {
            generation: shard.generation.0,
            shard: shard.id.0,
            number,
            uuid: draw_uuid().map_err(|error| GivenUp::Failed(error.to_string()))?,
            covers: Some((first, last)),
        };
        let path = database_path(&shard.dir, number);
        Ok(Self {
            shard,
            identity,
            made: making(&path),
            index_path: index_path(&shard.dir, number),
            path,
        })
    }

    fn create(&self) -> Result<SegmentWriter, GivenUp> {
        let options = &self.shard.options;
        SegmentWriter::create(
            self.shard.disk.as_ref(),
            &self.made,
            self.identity,
            self.shard.hash_seed,
            (options.page_size, options.vfs.as_deref()),
        )
        .map_err(|error| match error.fault() {
            Fault::NoSpace => GivenUp::Later,
            _ => self.failed(&error),
        })
    }

    fn put_in_place(&self, recent: &Recent) -> Result<Segment, GivenUp> {
        let disk = self.shard.disk.as_ref();
        failpoint!("compact.before-index");
        let index = IndexFile::write(disk, &self.index_path, self.identity, recent)
            .map_err(|error| self.failed(&error))?;
        failpoint!("compact.indexed");
        disk.rename(&self.made, &self.path)
            .map_err(|error| self.failed(&error))?;
        failpoint!("compact.renamed");
        Ok(Segment::indexed(&self.shard.dir, index))
    }

    /// Removes whatever there is of it, the index file first: with that it would count. `false` where it could
    /// not be removed.
    fn discard(&self) -> bool {
        let disk = self.shard.disk.as_ref();
        let removed = disk
            .unlink(&self.index_path)
            .and_then(|()| unlink_database(disk, &self.path))
            .and_then(|()| unlink_database(disk, &self.made));
        if let Err(error) = &removed {
            warn!(segment = self.identity.number, %error, "an unfinished compaction cannot be removed; the next start does");
        }
        removed.is_ok()
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> GivenUp {
        GivenUp::Failed(format!(
            "segments cannot be compacted into {}: {error}",
            self.path.display()
        ))
    }
}
