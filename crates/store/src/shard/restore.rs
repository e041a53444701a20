//! Fills the idempotency window at open, from the files of all shards. Reads the index files of the window
//! and no others, so that it takes as long with millions pending as with none.

use std::cmp::Reverse;
use std::sync::Arc;

use super::core::Shard;
use super::segment::Segment;

/// From index files, in order of acceptance, and from active segments.
pub(crate) fn restore_window(shards: &[Arc<Shard>]) {
    let mut segments: Vec<(&Arc<Shard>, Arc<Segment>)> = Vec::new();
    for shard in shards {
        segments.extend(shard.known().into_iter().map(|segment| (shard, segment)));
    }
    segments.sort_by_cached_key(|(_, segment)| Reverse((segment.newest(), segment.number())));
    let mut rows = 0;
    let within: Vec<(&Arc<Shard>, Arc<Segment>)> = segments
        .into_iter()
        .filter(|(_, segment)| segment.rows() > 0)
        .take_while(|(shard, segment)| {
            let window = u64::try_from(shard.options.window.as_micros()).unwrap_or(u64::MAX);
            let oldest = shard.clock.now().as_micros().saturating_sub(window);
            let wanted = rows < shard.options.window_ids && segment.newest() >= oldest;
            rows += segment.rows();
            wanted
        })
        .collect();
    for (shard, segment) in within.iter().rev() {
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
