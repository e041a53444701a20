//! When checkpoints are signed: every ten seconds or thousand records in which something was written; and the same task puts
//! them into a second place, and removes what is older than the retention.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use wayhold_model::Clock;

use super::anchors::Anchors;
use super::ledger::{Ledger, LedgerError};

/// Longest time that a record waits for a checkpoint; far less in the build that is killed where it signs one.
const EVERY: Duration = match cfg!(feature = "failpoints") {
    false => Duration::from_secs(10),
    true => Duration::from_millis(300),
};

/// Records after which one is signed at once.
const RECORDS: u64 = 1_000;

/// How often it is looked whether there is anything to do.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often the audit trail is followed.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// How often what is older than the retention is removed.
const RETAIN_EVERY: Duration = Duration::from_secs(3_600);

/// Runs until the ledger is stopped.
pub async fn run(
    ledger: Weak<Ledger>,
    anchors: Arc<Anchors>,
    keep: Duration,
    clock: Arc<dyn Clock>,
) {
    #[cfg(feature = "failpoints")]
    let keep = wayhold_store::failpoint::kept(keep);
    let mut due = Due::new(Instant::now());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(ledger) = ledger.upgrade().filter(|ledger| !ledger.is_stopped()) else {
            return;
        };
        let Some(commands) = ledger.commands() else {
            continue;
        };
        let records = *commands.ledger().borrow();
        let now = Instant::now();
        if due.checkpoint(records, now) {
            // Counted as tried whatever comes of it, so that a fault is met every ten seconds and not four times a second.
            due.signed = (records, now);
            match ledger.checkpoint().await {
                Ok(Some(note)) => anchors.offer(&note),
                Ok(None) => {}
                Err(error) => tell(&error, "no checkpoint was signed"),
            }
        }
        if now.duration_since(due.followed) >= FOLLOW_EVERY {
            due.followed = now;
            if let Err(error) = ledger.follow_destinations().await {
                tell(&error, "the audit trail was not followed into the ledger");
            }
        }
        if now.duration_since(due.retained) >= RETAIN_EVERY || due.is_first_look {
            due.is_first_look = false;
            due.retained = now;
            match ledger.retain(keep, clock.as_ref()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "records older than the retention removed"),
                Err(error) => tell(&error, "records older than the retention not removed"),
            }
        }
    }
}

fn tell(error: &LedgerError, what: &str) {
    tracing::error!(%error, "{what}");
}

/// What was done when.
struct Due {
    /// Records at the last checkpoint, and when that was.
    signed: (u64, Instant),
    retained: Instant,
    followed: Instant,
    is_first_look: bool,
}

impl Due {
    fn new(now: Instant) -> Self {
        Self {
            signed: (0, now),
            retained: now,
            followed: now,
            is_first_look: true,
        }
    }

    /// Whether a checkpoint is to be signed now.
    fn checkpoint(&self, records: u64, now: Instant) -> bool {
        let (signed, at) = self.signed;
        let new = records.saturating_sub(signed);
        new >= RECORDS || (new > 0 && now.duration_since(at) >= EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_due_after_ten_seconds_or_a_thousand_records_in_which_something_came() {
        let begin = Instant::now();
        let mut due = Due::new(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!due.checkpoint(0, at(100)));
        assert!(!due.checkpoint(1, at(9)));
        assert!(due.checkpoint(1, at(10)));
        assert!(!due.checkpoint(999, at(0)));
        assert!(due.checkpoint(1_000, at(0)));
        due.signed = (1_000, at(10));
        assert!(!due.checkpoint(1_000, at(100)));
        assert!(!due.checkpoint(1_999, at(19)));
        assert!(due.checkpoint(2_000, at(11)));
    }
}
