//! What events take by the formats alone, so that a machine can be sized before it is filled. What depends
//! on the events themselves, their bytes in segments, has to be measured.

use crate::shard::index_file;
use crate::window;

/// Bytes of the index files of so many events, each with an ordering key and so many destinations. Left
/// out is the head of each file, below a kibibyte.
pub fn index_bytes(events: u64, destinations: u64) -> u64 {
    let event = index_file::EVENT_BYTES as u64;
    let obligation = index_file::OBLIGATION_BYTES as u64;
    events.saturating_mul(event.saturating_add(obligation.saturating_mul(destinations)))
}

/// Bytes of memory of an idempotency window over so many ids, allocated at open.
pub fn window_bytes(ids: u64) -> u64 {
    window::bytes(ids)
}
