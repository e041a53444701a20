//! How a replay takes outcomes: the policy of its destination decides, and order, pace and counts follow.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};
use wayhold_model::endurance::Streak;
use wayhold_model::verdict::{Tried, Verdict};
use wayhold_model::{Outcome, Receipt};
use wayhold_store::AttemptRecord;
use wayhold_store::catalog::ReplayState;

use super::window::{Tries, Turn};
use super::{Flying, ReplayLane, errand};
use crate::dispatch::on_record::{Ended, entry_of};
use crate::sink::{Finished, Said};

impl ReplayLane {
    pub(super) fn settle_all(&mut self) {
        for Finished {
            token,
            outcome,
            said: Said {
                quotas, receipt, ..
            },
        } in std::mem::take(&mut self.outcomes)
        {
            if let Some(Flying { turn, sent_at }) = self.flight.remove(&token) {
                if !quotas.is_empty() {
                    self.pace
                        .note_quotas(&quotas, self.flight.len(), self.now());
                }
                let took = sent_at.elapsed();
                self.note(&turn, &outcome, receipt, took);
                self.settle(&turn, &outcome, took);
            }
        }
        if !self.recorded.is_empty() {
            self.attempts.add(&mut self.recorded);
        }
    }

    /// Puts an attempt on the record, where the destination asks for it.
    fn note(&mut self, turn: &Turn, outcome: &Outcome, receipt: Option<Receipt>, took: Duration) {
        let Some(service) = &self.service else { return };
        let ended = Ended {
            position: turn.event.position,
            destination: self.record.destination,
            number: turn.tries.attempts.saturating_add(1),
            at: self.clock.now(),
            took,
            outcome,
            receipt,
            replay: Some(self.record.id),
        };
        self.recorded.extend(entry_of(ended, service.policy.record));
    }

    fn settle(&mut self, turn: &Turn, outcome: &Outcome, took: Duration) {
        let now = self.now();
        let position = turn.event.position;
        // Randomness is only needed where something failed.
        let has_failed = outcome.failure().is_some();
        let draw = || if has_failed { self.entropy.next() } else { 0 };
        let (of_breaker, of_wait) = (draw(), draw());
        self.pace.observe(outcome, now, of_breaker);
        let number = turn.tries.attempts.saturating_add(1);
        let tried = Tried {
            attempts: number,
            put_off: turn.tries.put_off,
            // Its event is old; what is waited for is this delivery of it.
            age: now.since(turn.tries.since),
            // What goes on at the destination is its own lane's to judge.
            streak: Streak::default(),
        };
        let Some(service) = &self.service else { return };
        let retry = &service.policy.retry;
        let verdict = retry.verdict(tried, outcome, now, of_wait);
        self.is_dirty = true;
        if let Some(failure) = outcome.failure() {
            self.progress.counts.failed += 1;
            self.last_error = Some(format!("{}: {}", failure.class.name(), failure.reason));
            debug!(
                replay = self.record.id,
                %position,
                attempt = number,
                class = failure.class.name(),
                reason = failure.reason,
                "attempt failed"
            );
        }
        let put_off = Tries {
            put_off: turn.tries.put_off.saturating_add(1),
            ..turn.tries
        };
        match verdict {
            Verdict::Settle => {
                self.progress.counts.delivered += 1;
                self.metrics.replayed.inc();
                self.resolve(turn);
            }
            Verdict::Retry { at, counts } => {
                let counted = Tries {
                    attempts: number,
                    put_off: 0,
                    ..turn.tries
                };
                let tries = if counts { counted } else { put_off };
                self.window.failed(position, tries, at);
            }
            Verdict::Pause => {
                self.window.failed(position, put_off, now);
                self.pause_itself(outcome);
            }
            Verdict::DeadLetter => self.give_up(turn, outcome, took),
            Verdict::Disable => {
                self.give_up(turn, outcome, took);
                self.pause_itself(outcome);
            }
        }
    }

    fn resolve(&mut self, turn: &Turn) {
        self.window.resolved(turn.event.position);
        self.unsaved += 1;
        self.speed.resolved(Instant::now());
    }

    /// It becomes a dead letter that names the replay, on disk before it is recorded that the replay is done with it.
    fn give_up(&mut self, turn: &Turn, outcome: &Outcome, took: Duration) {
        let Some(failure) = outcome.failure() else {
            return;
        };
        warn!(
            replay = self.record.id,
            position = %turn.event.position,
            class = failure.class.name(),
            reason = failure.reason,
            "replayed delivery given up as a dead letter"
        );
        let last = AttemptRecord {
            number: turn.tries.attempts.saturating_add(1),
            at: self.clock.now(),
            outcome: outcome.kind(),
            class: failure.class,
            status: failure.status,
            reason: failure.reason.clone(),
            answer: failure.answer.clone(),
            duration: Some(took),
        };
        let (id, destination) = (self.record.id, self.record.destination);
        self.store
            .give_up_replayed(id, destination, &turn.event, last);
        self.progress.counts.dead += 1;
        self.resolve(turn);
    }

    /// What stops a whole destination stops a replay to it. The destination's own lane finds out by itself.
    fn pause_itself(&mut self, outcome: &Outcome) {
        if self.record.state != ReplayState::Running || self.is_putting {
            return;
        }
        let reason = outcome
            .failure()
            .map(|failure| format!("{}: {}", failure.class.name(), failure.reason));
        warn!(
            replay = self.record.id,
            reason, "replay paused for what the destination answered"
        );
        // At once; the record follows.
        self.record.state = ReplayState::Paused;
        self.is_putting = true;
        let (store, id) = (self.store.clone(), self.record.id);
        self.errands.spawn_blocking(move || {
            errand::put(&store, id, ReplayState::Paused, reason.as_deref())
        });
    }
}
