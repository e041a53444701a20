//! Failed authentications, counted per address, so that guessing is slowed down and seen. Lives in
//! memory: a restart forgives.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use wayhold_model::Timestamp;

/// Failures that an address may have within `WINDOW`; a service with a stale token makes a few.
const FAILURES_MAX: u32 = 30;

/// How long failures count.
const WINDOW: Duration = Duration::from_secs(60);

/// Most addresses remembered. When there are more, old ones go first, then all: an attacker with so
/// many addresses is not slowed by counting.
const ADDRESSES_MAX: usize = 10_000;

/// Counts of failures. Unix sockets count as one address.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<Option<IpAddr>, Count>>);

#[derive(Debug)]
struct Count {
    since: Timestamp,
    failures: u32,
}

impl Failures {
    /// Counts one and says how long to wait when there were too many.
    pub(super) fn count(&self, address: Option<IpAddr>, now: Timestamp) -> Option<Duration> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= ADDRESSES_MAX && !counts.contains_key(&address) {
            counts.retain(|_, count| now.since(count.since) < WINDOW);
            if counts.len() >= ADDRESSES_MAX {
                counts.clear();
            }
        }
        let count = counts.entry(address).or_insert(Count {
            since: now,
            failures: 0,
        });
        if now.since(count.since) >= WINDOW {
            *count = Count {
                since: now,
                failures: 0,
            };
        }
        count.failures = count.failures.saturating_add(1);
        (count.failures > FAILURES_MAX).then(|| WINDOW.saturating_sub(now.since(count.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_to_wait_after_too_many_failures_and_others_are_not() {
        let failures = Failures::default();
        let (eve, ada) = (
            Some(IpAddr::from([10, 0, 0, 1])),
            Some(IpAddr::from([10, 0, 0, 2])),
        );
        let start = Timestamp::from_micros(1);
        for _ in 0..FAILURES_MAX {
            assert_eq!(failures.count(eve, start), None);
        }
        assert_eq!(failures.count(eve, start), Some(WINDOW));
        assert_eq!(failures.count(ada, start), None);
        assert_eq!(failures.count(eve, start.after(WINDOW)), None);
    }
}
