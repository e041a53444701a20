//! Random numbers that a seed repeats, and how many rounds a test makes: `WAYHOLD_FAULTS_ROUNDS`, with random
//! numbers from `WAYHOLD_FAULTS_SEED` on.

use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64. Shared by threads: the numbers are the same in every run, who gets which is not.
pub struct Seed(AtomicU64);

impl Seed {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self
            .0
            .fetch_add(GOLDEN, Ordering::Relaxed)
            .wrapping_add(GOLDEN);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `times`, on average.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// How many rounds to make: what the environment says, else the few that a change can wait for.
pub fn rounds(short: u64) -> u64 {
    number("WAYHOLD_FAULTS_ROUNDS").unwrap_or(short)
}

/// Where random numbers begin.
pub fn first_seed() -> u64 {
    number("WAYHOLD_FAULTS_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().expect("a whole number"))
}

/// Runs one seeded episode; when it fails, says how to run it again.
pub fn episode(test: &str, seed: u64, rounds: u64, run: impl FnOnce()) {
    struct Replay<'a>(&'a str, u64, u64);
    impl Drop for Replay<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let Self(test, seed, rounds) = self;
                println!(
                    "again: WAYHOLD_FAULTS_SEED={seed} WAYHOLD_FAULTS_ROUNDS={rounds} \
                     cargo test -p wayhold-torture --test faults {test}"
                );
            }
        }
    }
    let replay = Replay(test, seed, rounds);
    run();
    drop(replay);
}
