//! Named places at which the torture harness ends the process, and faults that it plants to learn whether it
//! would notice them. Only with the feature `failpoints`, which is never a default: without it both macros
//! leave nothing behind, not even the name (`crates/torture/tests/released.rs` looks for them in the binary).
//!
//! Limits are smaller too (`hastened`), so that a short run meets what otherwise happens once in a while.
//!
//! ```text
//! WAYHOLD_FAILPOINT=group.committed:3   kill -9 of itself when that point is reached for the third time
//! WAYHOLD_PLANTED=answer-before-sync    this fault, all the time
//! ```

/// A place of this name, `<area>.<what is about to happen or has happened>`, where the process may be told
/// to die.
#[macro_export]
#[cfg(feature = "failpoints")]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::reached($name)
    };
}

/// A place of this name; nothing in this build.
#[macro_export]
#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint {
    ($name:literal) => {};
}

/// Whether the fault of this name is planted.
#[macro_export]
#[cfg(feature = "failpoints")]
macro_rules! planted {
    ($name:literal) => {
        $crate::failpoint::is_planted($name)
    };
}

/// Whether the fault of this name is planted: never in this build.
#[macro_export]
#[cfg(not(feature = "failpoints"))]
macro_rules! planted {
    ($name:literal) => {
        false
    };
}

#[cfg(feature = "failpoints")]
pub use armed::{hastened, is_planted, kept, reached};

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Once, OnceLock};
    use std::time::Duration;

    use crate::options::Options;

    /// How long records of the ledger are kept: nothing at all where `WAYHOLD_LEDGER_AGED` is set, since nobody waits half a
    /// year to see some removed.
    pub fn kept(keep: Duration) -> Duration {
        match std::env::var_os("WAYHOLD_LEDGER_AGED") {
            Some(_) => Duration::ZERO,
            None => keep,
        }
    }

    /// Passes a point; does not return where this is the hit that the environment names.
    pub fn reached(name: &str) {
        static ARM: Once = Once::new();
        ARM.call_once(arm);
        fail::fail_point!(name);
    }

    /// Whether the environment plants this fault.
    pub fn is_planted(name: &str) -> bool {
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        let planted = PLANTED.get_or_init(|| std::env::var("WAYHOLD_PLANTED").ok());
        planted.as_deref() == Some(name)
    }

    /// The same options with limits at which a short run reaches every point.
    pub fn hastened(options: Options) -> Options {
        Options {
            checkpoint_after: Duration::from_millis(150),
            removal_step: 64 * 1024,
            compaction_gain: 1,
            compaction_every: Duration::from_millis(50),
            ..options
        }
    }

    fn arm() {
        let Ok(wanted) = std::env::var("WAYHOLD_FAILPOINT") else {
            return;
        };
        let (name, hits) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        let hits: u64 = hits.parse().expect("WAYHOLD_FAILPOINT: expected NAME:HITS");
        let left = AtomicU64::new(hits);
        let die = move || {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                end();
            }
        };
        fail::cfg_callback(name, die).expect("a callback needs no parsing");
    }

    /// `kill -9` of this process: nothing is flushed, dropped or said.
    fn end() {
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::KILL).ok();
        // The signal may take a moment to arrive; nothing may happen after this point.
        loop {
            std::thread::park();
        }
    }
}
