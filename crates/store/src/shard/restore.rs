//! Fills the idempotency window at open, from the files of all shards. Reads the ids of the window's index
//! files and nothing else, so that it takes as long with millions pending as with none.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::core::Shard;
use super::index_file::IndexError;
use super::segment::Segment;
use crate::catalog::GenerationRecord;
use crate::options::{Options, RESTORING_THREADS_MAX};
use crate::window::{Reach, Window};

/// How far the window of a store with these shards reaches.
///
/// Segments are restored one after the other in order of their newest events, which of two shards overlap in
/// time: of every other shard one segment may come after an id and yet begin before it. So much further a
/// window of several shards reaches, and never less far than `window_ids`. (While store time stands still,
/// because the clock was set back, the order between shards is not known; within one shard it always is.)
pub(crate) fn reach(options: &Options, generations: &[GenerationRecord]) -> Reach {
    let shards = generations.iter().map(|one| usize::from(one.shards));
    let others = shards.sum::<usize>().saturating_sub(1);
    // A segment ends with the group that fills it, and may hold that much more: less than as much again.
    let segment = (options.segment_rows as usize).saturating_mul(2);
    let overlap = others.saturating_mul(segment);
    Reach {
        ids: options.window_ids.saturating_add(overlap),
        micros: u64::try_from(options.window.as_micros()).unwrap_or(u64::MAX),
    }
}

/// A segment whose ids go into the window.
struct Restored<'a> {
    shard: &'a Shard,
    segment: Arc<Segment>,
    /// Rows before this one are beyond the window.
    skipped: usize,
    /// The row that each chapter begins with, and the chapter; ascending.
    chapters: Vec<(usize, u64)>,
}

/// From index files, in order of acceptance, and from active segments.
pub(crate) fn restore_window(window: &Window, shards: &[Arc<Shard>]) {
    if planted!("ids-forgotten-at-restart") {
        return;
    }
    let mut within: Vec<Restored<'_>> = newest_first(window.reach(), shards);
    within.reverse();
    for restored in &mut within {
        restored.place(window);
    }
    // Which chapter an id goes into is decided: the order in which they come does not matter any more.
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(restored) = within.get(next.fetch_add(1, Ordering::Relaxed)) {
            restored.fill(window);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(RESTORING_THREADS_MAX).min(within.len()) {
            scope.spawn(work);
        }
        work();
    });
}

/// Segments that hold ids of the window, newest first.
fn newest_first(reach: Reach, shards: &[Arc<Shard>]) -> Vec<Restored<'_>> {
    let mut segments: Vec<(&Shard, Arc<Segment>)> = Vec::new();
    for shard in shards {
        let known = shard.known().into_iter();
        segments.extend(known.map(|segment| (shard.as_ref(), segment)));
    }
    // The ids of a compacted segment are those of its sources, whose index files stay as long as the window
    // reaches back to them.
    segments.retain(|(_, segment)| segment.rows() > 0 && !segment.is_compacted());
    segments.sort_by_cached_key(|(_, segment)| Reverse((segment.newest(), segment.number())));
    let mut ids = 0;
    segments
        .into_iter()
        .map_while(|(shard, segment)| {
            let oldest = shard.clock.now().as_micros().saturating_sub(reach.micros);
            if ids >= reach.ids || segment.newest() < oldest {
                return None;
            }
            let rows = segment.rows();
            let skipped = rows.saturating_sub(reach.ids - ids);
            ids += rows - skipped;
            Some(Restored {
                shard,
                segment,
                skipped,
                chapters: Vec::new(),
            })
        })
        .collect()
}

impl Restored<'_> {
    /// Gives chapters to its rows, all of them as of its newest: earlier by that than they were accepted, the
    /// window would let go of them too soon.
    fn place(&mut self, window: &Window) {
        let (rows, at) = (self.segment.rows(), self.segment.newest());
        let mut row = self.skipped;
        while row < rows {
            let placed = window.place(&self.segment, rows - row, at);
            self.chapters.push((row, placed.chapter));
            row += placed.ids;
        }
    }

    /// Puts its ids into the window.
    fn fill(&self, window: &Window) {
        let shard = self.shard;
        let filled = match self.try_fill(window) {
            Err(error) if shard.mend_index(&self.segment, &error) => self.try_fill(window),
            other => other,
        };
        if let Err(error) = filled {
            shard.condition.degraded(format!(
                "{} {error}; its ids are not recognised as duplicates",
                self.segment.index_path.display()
            ));
        }
    }

    fn try_fill(&self, window: &Window) -> Result<(), IndexError> {
        self.segment.with_ids(self.shard.disk.as_ref(), |ids| {
            window.restore(ids.filter_map(|(id_hash, row)| Some((id_hash, self.chapter(row)?))));
        })
    }

    /// The chapter of a row; `None` where it is beyond the window.
    fn chapter(&self, row: usize) -> Option<u64> {
        let begun = self.chapters.partition_point(|(first, _)| *first <= row);
        let (_, chapter) = self.chapters.get(begun.checked_sub(1)?)?;
        Some(*chapter)
    }
}
