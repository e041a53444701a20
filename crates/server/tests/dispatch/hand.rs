//! Randomness and time by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wayhold::clock::{Entropy, SystemClock};
use wayhold_model::{Clock, Timestamp};

/// SplitMix64: the same numbers in every run.
pub(crate) struct Seeded(pub(crate) AtomicU64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(seed)))
    }
}

impl Entropy for Seeded {
    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The system's clock, moved by hand.
#[derive(Default)]
pub(crate) struct Shifted {
    pub(crate) back: AtomicU64,
}

impl Clock for Shifted {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros() - self.back.load(Relaxed))
    }
}
