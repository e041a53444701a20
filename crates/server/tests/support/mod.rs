//! What tests of the built binary share: the server as a process of its own, a raw HTTP client, and a
//! receiver of webhooks. Everything waits with a bound and ends only what it started.

#![expect(
    clippy::unwrap_used,
    reason = "a test may end where it finds what it did not expect"
)]

pub(crate) mod http;
pub(crate) mod receiver;
pub(crate) mod server;

use std::time::{Duration, Instant};

/// How long anything may take that should happen at once; generous, since machines are slow at times.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < until,
            "{what} did not come about within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until `holds`.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}
