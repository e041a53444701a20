//! How a lane starts attempts: whose turn it is, what must be fetched or recorded first, and the
//! hand-over to the sink.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::Instant;
use tracing::{error, info, warn};
use wayhold_model::{FailureClass, OutcomeKind, Timestamp};
use wayhold_store::{AttemptRecord, Delivery, Resolution, RunState};

use super::errand::{Chosen, Done, Purpose, caught};
use super::{BATCH_MAX, LaneTask, Lot};
use crate::dispatch::attempt::Prepared;
use crate::dispatch::expiry::expires_at;
use crate::dispatch::order::{Next, Turn};
use crate::dispatch::pace::{Openings, repeats_max};
use crate::dispatch::steady::Steady;
use crate::sink::Attempt;

/// Most batches read in one pass when everything read is set aside; then the task yields.
const READS_PER_PASS: usize = 4;

impl LaneTask {
    pub(super) fn is_running(&self) -> bool {
        self.record.state == RunState::Running && self.stop_by.is_none() && self.sink.is_some()
    }

    /// Starts as many attempts as run state, pace, order and the bound on repeats allow.
    pub(super) fn start_attempts(&mut self) {
        let now = self.now();
        self.looked_at = now;
        self.again = false;
        self.launch_paced();
        if self.rewinding && !self.rewind() {
            return;
        }
        if self.read_again_at.is_some_and(|at| at <= now)
            && let Some(reader) = &mut self.reader
        {
            reader.read_failed_again();
            self.read_again_at = None;
            self.at_tail = false;
        }
        if !self.is_running() {
            // What lies first is worth knowing even when nothing may start.
            self.read_if_empty();
            return;
        }
        self.order.wake(now);
        let (openings, probe) = match self.openings(now) {
            Openings::Free(openings) => (openings, false),
            Openings::Probe => (1, true),
            Openings::WaitUntil(_) => (0, false),
        };
        let mut reads_left = READS_PER_PASS;
        for _ in 0..openings {
            let Some(turn) = self.choose(now, &mut reads_left) else {
                break;
            };
            self.prepare(turn, probe);
        }
    }

    /// Begins again from what the store holds, once nothing is under way: what was set aside behind the lane
    /// and is pending now goes before everything of its key that was not sent yet, and is read as there is
    /// room. Whether that is done.
    fn rewind(&mut self) -> bool {
        let is_quiet = self.flight.is_empty()
            && self.preparing == 0
            && self.ready.is_empty()
            && !self.away.is_away(Purpose::Refill);
        let Some(reader) = self.reader.as_mut().filter(|_| is_quiet) else {
            return false;
        };
        reader.rewind();
        self.order.rewind();
        self.to_refill.clear();
        self.buffer.clear();
        self.ahead.clear();
        self.read_again_at = None;
        self.at_tail = false;
        self.rewinding = false;
        true
    }

    pub(super) fn openings(&self, now: Timestamp) -> Openings {
        let away = self.flight.len() + self.preparing;
        let room = repeats_max(self.policy.concurrency).saturating_sub(self.unsynced + away);
        let ahead = self.pace.ahead_max().saturating_sub(self.preparing);
        let room = room.min(ahead);
        match self.pace.openings(now, away) {
            Openings::Free(openings) => Openings::Free(openings.min(room)),
            other => other,
        }
    }

    /// Whose turn it is: retries and first attempts take turns, so neither starves the other, and
    /// retries take a bounded share.
    fn choose(&mut self, now: Timestamp, reads_left: &mut usize) -> Option<Turn> {
        let retry_may = self.retries_away < self.pace.retries_max();
        if retry_may
            && self.last_chosen == Lot::First
            && let Some(turn) = self.next_retry()
        {
            self.last_chosen = Lot::Retry;
            return Some(turn);
        }
        self.last_chosen = Lot::First;
        if let Some(turn) = self.next_first(now, reads_left) {
            return Some(turn);
        }
        if retry_may { self.next_retry() } else { None }
    }

    fn next_retry(&mut self) -> Option<Turn> {
        loop {
            match self.order.next_retry() {
                Next::Turn(turn) => return Some(turn),
                Next::Refill(refill) => self.to_refill.push(refill),
                Next::Nothing => return None,
            }
        }
    }

    fn next_first(&mut self, now: Timestamp, reads_left: &mut usize) -> Option<Turn> {
        loop {
            match self.order.next_released() {
                Next::Turn(turn) => return Some(turn),
                Next::Refill(refill) => self.to_refill.push(refill),
                Next::Nothing => break,
            }
        }
        loop {
            while self.order.may_read_ahead()
                && let Some(delivery) = self.buffer.pop_front()
            {
                let retry_at = delivery
                    .retry_at
                    .map(|at| Steady::from_wall(at, self.clock.now(), now));
                if let Some(turn) = self.order.offer(delivery, retry_at) {
                    return Some(turn);
                }
            }
            if *reads_left == 0 && self.buffer.is_empty() && self.may_read() {
                self.again = true;
                return None;
            }
            *reads_left = reads_left.saturating_sub(1);
            if !self.read_if_empty() {
                return None;
            }
        }
    }

    fn may_read(&self) -> bool {
        self.reader.is_some()
            && !self.at_tail
            && self.stop_by.is_none()
            && self.order.may_read_ahead()
    }

    /// Takes or reads the next batch if nothing of the last is left; says whether there is one now.
    fn read_if_empty(&mut self) -> bool {
        if !self.buffer.is_empty() {
            return false;
        }
        if self.ahead.is_empty() {
            return self.may_read() && self.read();
        }
        self.buffer.extend(self.ahead.drain(..));
        self.read_ahead();
        true
    }

    /// Has one batch fetched while the one before it is sent.
    pub(super) fn read_ahead(&mut self) {
        if self.is_running() && self.ahead.is_empty() && self.may_read() {
            self.read();
        }
    }

    /// Reads the next batch; says whether it is there. What lies on disk is fetched by an errand.
    fn read(&mut self) -> bool {
        let Some(mut reader) = self.reader.take() else {
            return false;
        };
        match reader.read_cached(BATCH_MAX) {
            Some(batch) => {
                self.reader = Some(reader);
                self.at_tail = batch.is_empty();
                self.take_batch(batch);
                !self.at_tail
            }
            None => {
                self.errands.spawn_blocking(move || {
                    let batch = caught(|| reader.read(BATCH_MAX));
                    Done::Read(reader, batch)
                });
                false
            }
        }
    }

    /// Keeps a batch that was read after everything that was read before.
    pub(super) fn take_batch(&mut self, batch: Vec<Delivery>) {
        match self.buffer.is_empty() {
            true => self.buffer.extend(batch),
            false => self.ahead = batch,
        }
    }

    /// A turn on its way to being sent: its event is fetched and its start recorded where needed.
    fn prepare(&mut self, mut turn: Turn, probe: bool) {
        self.preparing += 1;
        self.retries_away += usize::from(!turn.history.is_first());
        if probe {
            self.pace.probe_chosen();
        }
        let at_hand = turn
            .event
            .take()
            .or_else(|| self.handle.event_cached(turn.position));
        match at_hand {
            Some(event) => self.prepared(Prepared::new(&turn, event, probe)),
            None => self.to_load.push(Chosen { turn, probe }),
        }
    }

    pub(super) fn prepared(&mut self, prepared: Prepared) {
        if self.is_expired(&prepared) {
            self.expire(&prepared);
        } else if self.is_spent(&prepared) {
            self.give_up(&prepared);
        } else if self.must_record(&prepared) {
            self.to_record.push(prepared);
        } else {
            self.launch(prepared);
        }
    }

    /// Whether the event says that nobody wants it any more. A redrive is somebody who wants it.
    fn is_expired(&self, prepared: &Prepared) -> bool {
        let ends = expires_at(&prepared.event.event).filter(|_| prepared.history.letter.is_none());
        ends.is_some_and(|end| end <= self.clock.now())
    }

    fn expire(&mut self, prepared: &Prepared) {
        let (position, history) = (prepared.event.position, prepared.history);
        self.preparing -= 1;
        self.retries_away -= usize::from(!history.is_first());
        if prepared.probe {
            self.pace.probe_given_up();
        }
        self.order.handed_over(prepared.event.key_hash);
        info!(
            destination = self.record.name,
            %position,
            attempts = history.attempts,
            "delivery expired: the event's expirytime has passed"
        );
        self.unsynced += 1;
        self.handle.settle(&prepared.event, Resolution::Expired);
        self.order.resolved(prepared.event.key_hash, history);
    }

    /// Whether all attempts that policy allows were made: the last one was cut off by a stop, or the
    /// limit was lowered since.
    fn is_spent(&self, prepared: &Prepared) -> bool {
        let limit = self.policy.retry.attempts_ever().unwrap_or(u32::MAX);
        prepared.history.letter.is_none() && prepared.history.attempts >= limit
    }

    fn give_up(&mut self, prepared: &Prepared) {
        let Prepared {
            event,
            history,
            probe,
        } = prepared;
        self.preparing -= 1;
        self.retries_away -= usize::from(!history.is_first());
        if *probe {
            self.pace.probe_given_up();
        }
        self.order.handed_over(event.key_hash);
        let (position, attempts) = (event.position, history.attempts);
        warn!(destination = self.record.name, %position, attempts, "delivery given up as a dead letter");
        let last = AttemptRecord {
            answer: None,
            duration: None,
            number: attempts,
            at: self.clock.now(),
            outcome: OutcomeKind::Unknown,
            class: FailureClass::Interrupted,
            status: None,
            reason: "the server stopped before the outcome was known".to_owned(),
        };
        self.unsynced += 1;
        self.handle.settle(event, Resolution::DeadLettered(last));
        self.order.dead_lettered(position, event.key_hash, *history);
    }

    /// The first attempt is recorded by its outcome, later ones before they are sent; after an unclean
    /// stop whatever may have been under way then is recorded before too, so that an event that takes
    /// the process down with it cannot do so uncounted. A redrive is on record as such already.
    fn must_record(&mut self, prepared: &Prepared) -> bool {
        if prepared.history.letter.is_some() {
            return false;
        }
        if prepared.history.attempts > 0 {
            return true;
        }
        let before = self.record_first;
        self.record_first = before.saturating_sub(1);
        before > 0
    }

    /// What is prepared goes out when its time has come.
    pub(super) fn launch(&mut self, prepared: Prepared) {
        if self.pace.has_rate() {
            self.paced.push_back(prepared);
            self.launch_paced();
        } else {
            self.launch_now(prepared);
        }
    }

    /// What the rate held back goes out, as far as it allows now.
    fn launch_paced(&mut self) {
        while !self.paced.is_empty() {
            // What does not go out at all need not wait for it.
            if self.may_send() && !self.pace.let_one_go(self.now()) {
                return;
            }
            if let Some(prepared) = self.paced.pop_front() {
                self.launch_now(prepared);
            }
        }
    }

    /// Whether attempts that were chosen before may still be sent.
    fn may_send(&self) -> bool {
        let is_quiet = || self.pace.quiet_until(self.now()).is_some();
        self.is_running() && !(self.pace.was_asked_to_wait() && is_quiet())
    }

    /// What is prepared goes out, unless an operator, a stop, the receiver's own wish or the failure of an earlier
    /// event came in between.
    fn launch_now(&mut self, prepared: Prepared) {
        let (position, key) = (prepared.event.position, prepared.event.key_hash);
        if !self.may_send() || self.order.must_wait(position, key, prepared.history) {
            let now = self.now();
            self.withdraw(prepared, now);
            return;
        }
        self.preparing -= 1;
        self.pace.sent_one();
        if prepared.probe {
            self.pace.probe_sent();
        }
        if prepared.history.after_unknown {
            self.repeats += 1;
            self.metrics.repeats.inc();
        }
        let event = Arc::clone(&prepared.event);
        let number = prepared.number();
        let knowing = self.policy.in_flight_per_key > 1;
        let token = self.flight.insert(prepared.sent(Instant::now(), knowing));
        let finish = self.finish.clone();
        let mut attempt = Attempt::new(event, number, self.policy.timeout, token, finish);
        if knowing {
            attempt = attempt.knowing(&self.known);
            self.order.handed_over(key);
        }
        self.ready.push(attempt);
    }

    /// What is prepared does not go out now and takes its turn again later.
    pub(super) fn withdraw(&mut self, prepared: Prepared, again_at: Timestamp) {
        self.preparing -= 1;
        self.retries_away -= usize::from(!prepared.history.is_first());
        if prepared.probe {
            self.pace.probe_given_up();
        }
        self.order.handed_over(prepared.event.key_hash);
        self.order.put_back(prepared.into_turn(), again_at);
    }

    /// Hands what is ready to the sink. A sink that panics loses nothing: attempts that it did not take
    /// end as unknown when they are dropped.
    pub(super) fn submit(&mut self) {
        let Some(sink) = self.sink.as_deref().filter(|_| !self.ready.is_empty()) else {
            return;
        };
        wayhold_store::failpoint!("lane.before-sending");
        if wayhold_store::planted!("settle-before-the-answer") {
            let sent = self.ready.iter().map(|attempt| attempt.event.position);
            self.handle.settle_delivered(&sent.collect::<Vec<_>>());
        }
        while !self.ready.is_empty() {
            // Whoever crashes a sink takes those down that are handed over with it. Once that happened,
            // each goes alone, so that only the one at fault crashes again.
            let mut handed = match self.sink_panicked {
                true => vec![self.ready.remove(0)],
                false => std::mem::take(&mut self.ready),
            };
            let count = handed.len();
            if catch_unwind(AssertUnwindSafe(|| sink.submit(&mut handed))).is_err() {
                self.sink_panicked = true;
                self.process_metrics.panics.inc();
                error!(
                    destination = self.record.name,
                    attempts = count,
                    "the sink panicked; its attempts count as failed"
                );
            }
            handed.clear();
            if self.ready.is_empty() {
                self.ready = handed;
            }
        }
        wayhold_store::failpoint!("lane.sent");
    }
}
