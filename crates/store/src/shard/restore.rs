//! Fills the idempotency window at open. Reads the index files of the window and no others, so that it
//! takes as long with millions pending as with none.

use std::cmp::Reverse;
use std::sync::{Arc, PoisonError};

use super::core::Shard;
use super::segment::Segment;

/// From index files, oldest first, and from the active segment.
pub(crate) fn restore_window(shard: &Shard) {
    let oldest = shard
        .clock
        .now()
        .as_micros()
        .saturating_sub(u64::try_from(shard.options.window.as_micros()).unwrap_or(u64::MAX));
    let mut segments: Vec<Arc<Segment>> = shard.segments();
    segments.extend(
        shard
            .remembered
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned(),
    );
    segments.sort_unstable_by_key(|segment| Reverse(segment.number()));
    let mut rows = 0;
    let within: Vec<Arc<Segment>> = segments
        .into_iter()
        .take_while(|segment| {
            let wanted = rows < shard.options.window_ids
                && (segment.newest() >= oldest || segment.rows() == 0);
            rows += segment.rows();
            wanted
        })
        .collect();
    for segment in within.iter().rev() {
        let restore = || {
            segment.each_identity(shard.disk.as_ref(), |entry| {
                if entry.fingerprint.is_some() {
                    shard.window.restore(entry.id_hash, entry.sequence);
                }
            })
        };
        let restored = match restore() {
            Err(error) if shard.mend_index(segment, &error) => restore(),
            other => other,
        };
        if let Err(error) = restored {
            shard.condition.degraded(format!(
                "{} {error}; its ids are not recognised as duplicates",
                segment.index_path.display()
            ));
        }
    }
}
