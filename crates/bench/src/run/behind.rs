//! A consumer that stays behind: it takes what comes in, no less and no more, so many events late, and
//! therefore from the disk.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::control::{pause, pending, resume};
use crate::BenchError;

/// How often the consumer is looked at: it takes some thousand events meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// How far behind it was while it was held there.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub least: u64,
    pub most: u64,
}

/// Lets a paused destination deliver whenever it is more than `behind` deliveries behind, and pauses it
/// otherwise, until told that it is `over`.
pub fn hold(
    server: SocketAddr,
    destination: &str,
    behind: u64,
    over: &AtomicBool,
) -> Result<Kept, BenchError> {
    let first = pending(server, destination)?;
    let mut kept = Kept {
        least: first,
        most: first,
    };
    let mut delivers = false;
    while !over.load(Ordering::Acquire) {
        let pending = pending(server, destination)?;
        kept.least = kept.least.min(pending);
        kept.most = kept.most.max(pending);
        let wanted = pending > behind;
        if wanted != delivers {
            match wanted {
                true => resume(server, destination)?,
                false => pause(server, destination)?,
            }
            delivers = wanted;
        }
        std::thread::sleep(LOOK);
    }
    Ok(kept)
}
