//! How a lane takes outcomes: each is judged, recorded in the store, and told to order and pace.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::time::Instant;
use tracing::{debug, info, warn};
use wayhold_model::endurance::Streak;
use wayhold_model::{Outcome, Receipt, Timestamp};
use wayhold_store::{AttemptRecord, Resolution, RunState};

use super::LaneTask;
use super::errand::Done;
use crate::dispatch::attempt::{Moment, Reach, Sent, Settled, Weight};
use crate::dispatch::dispatcher::Halt;
use crate::dispatch::on_record::{Ended, entry_of};
use crate::dispatch::pace::Change;
use crate::dispatch::snapshot::LastError;
use crate::dispatch::steady::Steady;
use crate::sink::{Fate, Finished};

impl LaneTask {
    /// Takes a batch of outcomes. The deliveries among them that arrived are recorded together.
    pub(super) fn settle_all(&mut self, outcomes: &mut Vec<Finished>) {
        let instant = Instant::now();
        let moment = Moment {
            instant,
            now: self.steady.at(instant),
            wall: self.clock.now(),
        };
        for finished in outcomes.drain(..) {
            let Finished {
                token,
                outcome,
                said,
            } = finished;
            if let Some(sent) = self.flight.remove(token) {
                if sent.knowing {
                    self.known.take(&outcome);
                }
                if !said.quotas.is_empty() {
                    let in_flight = self.flight.len();
                    self.pace.note_quotas(&said.quotas, in_flight, moment.now);
                }
                if said.withdrawn {
                    self.end_withdrawn(&sent);
                    continue;
                }
                self.record(&sent, &outcome, said.receipt, moment);
                let fate = self.settle(&sent, &outcome, moment);
                if let Some(waiting) = said.fate {
                    // Nobody waits any more once the server stops.
                    waiting.send(fate).ok();
                }
            }
        }
        if self.flight.is_empty() {
            self.known.take_all();
        }
        wayhold_store::failpoint!("lane.outcomes-taken");
        if !self.recorded.is_empty() {
            self.attempts.add(&mut self.recorded);
        }
        if !self.delivered.is_empty() {
            self.handle.settle_delivered(&self.delivered);
            self.metrics.delivered.inc_by(self.delivered.len() as u64);
            self.delivered.clear();
            if let Some(last) = &mut self.last_error {
                last.failing_since = None;
            }
        }
    }

    /// Puts an attempt on the record, where the destination asks for it.
    fn record(&mut self, sent: &Sent, outcome: &Outcome, receipt: Option<Receipt>, moment: Moment) {
        let ended = Ended {
            position: sent.event.position,
            destination: self.record.id,
            number: sent.number(),
            at: moment.wall,
            took: moment.instant.saturating_duration_since(sent.at),
            outcome,
            receipt,
            replay: None,
        };
        self.recorded.extend(entry_of(ended, self.policy.record));
    }

    /// Ends a delivery that a stated rule has ended: nothing was sent.
    fn end_withdrawn(&mut self, sent: &Sent) {
        self.retries_away -= usize::from(!sent.history.is_first());
        // It says nothing of the destination, should it have been the breaker's probe.
        self.pace.probe_given_up();
        self.unsynced += 1;
        info!(
            destination = self.record.name,
            position = %sent.event.position,
            "delivery ended: what it was for is not wanted any more"
        );
        match sent.history.letter {
            Some(redrive) => self
                .handle
                .settle_letter(redrive.letter, Resolution::Expired),
            None => self.handle.settle(&sent.event, Resolution::Expired),
        }
        self.order.resolved(sent.event.key_hash, sent.history);
    }

    fn settle(&mut self, sent: &Sent, outcome: &Outcome, moment: Moment) -> Fate {
        let event = &sent.event;
        let (position, key) = (event.position, event.key_hash);
        self.retries_away -= usize::from(!sent.history.is_first());
        self.metrics
            .attempt_duration
            .observe(moment.instant.saturating_duration_since(sent.at));
        self.observe(outcome, moment);
        let entropy = if outcome.failure().is_some() {
            self.entropy.next()
        } else {
            0
        };
        let trusted = self.trusted_from.is_none_or(|from| sent.at >= from);
        let streak = self.go_on(outcome, moment.now);
        let weight = Weight { trusted, streak };
        let (settled, reach) = sent.settle(outcome, weight, &self.policy.retry, moment, entropy);
        let fate = match &settled {
            Settled::Delivered => Fate::Resolved,
            Settled::Again { at, .. } => Fate::Again(Steady::to_wall(*at, moment.wall, moment.now)),
            Settled::Dead(_) => Fate::Dead,
        };
        match settled {
            Settled::Delivered => {
                self.metrics
                    .delivery_latency
                    .observe(moment.wall.since(event.accepted_at));
                self.settle_delivered(sent);
                self.order.resolved(key, sent.history);
            }
            Settled::Again { at, record, after } => {
                let at = match wayhold_store::planted!("sent-again-too-early") {
                    true => moment.now,
                    false => at,
                };
                self.metrics.failed(record.outcome, record.class).inc();
                self.note_error(sent, &record);
                debug!(
                    destination = self.record.name,
                    %position,
                    attempt = record.number,
                    outcome = record.outcome.name(),
                    class = record.class.name(),
                    reason = record.reason,
                    "attempt failed"
                );
                if sent.history.letter.is_none() {
                    let retry_at = Steady::to_wall(at, moment.wall, moment.now);
                    match after.put_off {
                        0 => self.handle.record_failure(position, record, retry_at),
                        _ => self.handle.record_put_off(position, record, retry_at),
                    }
                }
                self.order.failed(event, sent.history, after, at);
            }
            Settled::Dead(record) => {
                self.metrics.failed(record.outcome, record.class).inc();
                self.note_error(sent, &record);
                warn!(
                    destination = self.record.name,
                    %position,
                    attempt = record.number,
                    outcome = record.outcome.name(),
                    class = record.class.name(),
                    status = record.status,
                    reason = record.reason,
                    "delivery given up as a dead letter"
                );
                self.unsynced += 1;
                let resolution = Resolution::DeadLettered(record);
                match sent.history.letter {
                    Some(redrive) => self.handle.settle_letter(redrive.letter, resolution),
                    None => self.handle.settle(event, resolution),
                }
                self.order.dead_lettered(position, key, sent.history);
            }
        }
        match reach {
            Reach::Delivery => {}
            Reach::Pauses => self.halt(RunState::Paused, outcome, moment),
            Reach::Disables => self.halt(RunState::Disabled, outcome, moment),
        }
        fate
    }

    /// Keeps how long one class of failure has been all that comes of the destination. What concerns a part of
    /// it says nothing of the whole.
    fn go_on(&mut self, outcome: &Outcome, now: Timestamp) -> Streak {
        let Some(failure) = outcome.failure() else {
            self.streak = None;
            self.delivered_at = Some(now);
            return Streak::default();
        };
        if failure.of_part {
            return Streak::default();
        }
        let (_, since, times) = match self.streak {
            Some(same) if same.0 == failure.class => same,
            _ => (failure.class, now, 0),
        };
        let times = times.saturating_add(1);
        self.streak = Some((failure.class, since, times));
        Streak {
            times,
            lasting: now.since(since),
            delivered: self.delivered_at.map(|at| now.since(at)),
        }
    }

    /// Starts nothing more at the destination, for what it answered. The lane stops at once; that it did is
    /// put on record by the dispatcher, in one order with what operators want.
    fn halt(&mut self, state: RunState, outcome: &Outcome, moment: Moment) {
        let is_new = match self.record.state {
            RunState::Running => true,
            RunState::Paused => state == RunState::Disabled,
            RunState::Disabled | RunState::Retired => false,
        };
        let Some(failure) = outcome.failure().filter(|_| is_new) else {
            return;
        };
        let reason = format!("{}: {}", failure.class.name(), failure.reason);
        warn!(
            destination = self.record.name,
            state = state.name(),
            reason,
            "destination stopped for what it answered; resume it once that is mended"
        );
        self.record.state = state;
        self.record.since = moment.wall;
        self.record.reason = Some(reason.clone());
        let stands = Arc::new(AtomicBool::new(true));
        self.own_stop = Some(Arc::clone(&stands));
        let halt = Halt {
            destination: self.record.name.clone(),
            state,
            reason,
            stands,
        };
        let halts = self.halts.clone();
        // Nobody takes it once the server stops: then the next start finds out again.
        self.errands.spawn(async move {
            halts.send(halt).await.ok();
            Done::Halted
        });
    }

    fn settle_delivered(&mut self, sent: &Sent) {
        self.unsynced += 1;
        match sent.history.letter {
            Some(redrive) => {
                self.metrics.delivered.inc();
                self.handle
                    .settle_letter(redrive.letter, Resolution::Delivered);
            }
            None => self.delivered.push(sent.event.position),
        }
    }

    fn observe(&mut self, outcome: &Outcome, moment: Moment) {
        // Randomness is only needed where the breaker may open.
        let entropy = if outcome.failure().is_some() {
            self.entropy.next()
        } else {
            0
        };
        match self.pace.observe(outcome, moment.now, entropy) {
            None => {}
            Some(Change::Opened) => {
                let reason = outcome.failure().map(|failure| failure.reason.as_str());
                warn!(
                    destination = self.record.name,
                    reason, "destination fails; leaving it alone"
                );
            }
            Some(Change::Closed) => {
                info!(destination = self.record.name, "destination answers again");
            }
        }
    }

    fn note_error(&mut self, sent: &Sent, record: &AttemptRecord) {
        let failing_since = self.last_error.as_ref().and_then(|last| last.failing_since);
        self.last_error = Some(LastError {
            at: record.at,
            failing_since: Some(failing_since.unwrap_or(record.at)),
            position: sent.event.position,
            outcome: record.outcome,
            class: record.class,
            status: record.status,
            reason: record.reason.clone(),
        });
    }
}
