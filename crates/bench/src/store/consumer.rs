//! A consumer that does nothing with what it gets but say that it has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wayhold_store::{Delivery, Lane, LaneHandle, ReadError};

/// Deliveries read at once.
const READ_MAX: usize = 500;

/// Settles until `stop`, then what is left. Blocking.
///
/// # Errors
/// When the store cannot read what it holds.
pub fn consume(mut lane: Lane, stop: &Arc<AtomicBool>) -> Result<u64, ReadError> {
    let handle = lane.handle();
    let mut settled = 0;
    loop {
        let last_look = stop.load(Ordering::Acquire);
        let deliveries = match lane.read_cached(READ_MAX) {
            Some(deliveries) => deliveries,
            None => lane.read(READ_MAX)?,
        };
        if deliveries.is_empty() {
            if last_look {
                return Ok(settled);
            }
            // Shorter than a commit: the consumer keeps up, and sleeps rather than spins.
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        settled += deliveries.len() as u64;
        settle(&handle, &deliveries);
    }
}

fn settle(handle: &LaneHandle, deliveries: &[Delivery]) {
    let positions: Vec<_> = deliveries
        .iter()
        .map(|delivery| delivery.event.position)
        .collect();
    handle.settle_delivered(&positions);
}
