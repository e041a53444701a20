//! What a lane tells of itself: its state as people see it, and what blocks.

use wayhold_model::{Position, Timestamp};
use wayhold_store::RunState;

use super::LaneTask;
use crate::dispatch::attempt::Sent;
use crate::dispatch::order::Blocked;
use crate::dispatch::pace::Openings;
use crate::dispatch::snapshot::{BLOCKED_KEYS_SHOWN_MAX, BlockedKey, LaneSnapshot, LaneState};
use crate::dispatch::steady::Steady;

impl LaneTask {
    /// Keeps since when the lane is in its state.
    pub(super) fn note_state(&mut self) {
        let state = self.state_now();
        if state != self.state {
            self.state = state;
            self.state_since = match state {
                LaneState::Running | LaneState::Waiting => self.clock.now(),
                LaneState::Paused | LaneState::Disabled | LaneState::Retired => self.record.since,
            };
        }
    }

    fn state_now(&self) -> LaneState {
        match self.record.state {
            RunState::Paused => LaneState::Paused,
            RunState::Disabled => LaneState::Disabled,
            RunState::Retired => LaneState::Retired,
            RunState::Running if self.pace.is_waiting() => LaneState::Waiting,
            RunState::Running => match self.pace.quiet_until(self.now()) {
                Some(_) => LaneState::Waiting,
                None => LaneState::Running,
            },
        }
    }

    pub(super) fn snapshot(&self) -> LaneSnapshot {
        let now = self.now();
        let wall = self.clock.now();
        let shown = |at: Timestamp| Steady::to_wall(at, wall, now);
        let reason = match self.state {
            LaneState::Running => None,
            LaneState::Waiting => self.last_error.as_ref().map(|error| error.reason.clone()),
            LaneState::Paused | LaneState::Disabled | LaneState::Retired => {
                self.record.reason.clone()
            }
        };
        let blocked = self.order.top_blocked(BLOCKED_KEYS_SHOWN_MAX);
        LaneSnapshot {
            destination: self.record.id,
            name: self.record.name.clone(),
            state: self.state,
            reason,
            since: self.state_since,
            in_flight: self.flight.len(),
            retries: self.order.retries(),
            last_error: self.last_error.clone(),
            next_attempt: self.next_attempt(now).map(shown),
            oldest: self.oldest(),
            oldest_accepted: None,
            blocked_keys: self.order.blocked_count(),
            blocked: blocked
                .into_iter()
                .map(|key| self.show(key, &shown))
                .collect(),
            repeats: self.repeats,
            repeats_possible: self.repeats_possible,
        }
    }

    fn show(&self, blocked: Blocked, shown: &impl Fn(Timestamp) -> Timestamp) -> BlockedKey {
        let in_flight = self.in_flight_of(blocked.key);
        let attempts = in_flight.map_or(0, |sent| sent.history.attempts);
        BlockedKey {
            key: None,
            position: blocked
                .position
                .or(in_flight.map(|sent| sent.event.position)),
            event_id: None,
            held: blocked.held,
            attempts: blocked.attempts.max(attempts),
            retry_at: blocked.retry_at.map(shown),
            waiting: blocked.waiting,
        }
    }

    /// The earliest delivery that is not resolved, as far as the lane has read.
    fn oldest(&self) -> Option<Position> {
        let in_flight = self.flight.iter().map(|sent| sent.event.position).min();
        let aside = self.order.oldest();
        aside
            .into_iter()
            .chain(in_flight)
            .chain(self.first_unoffered())
            .min()
    }

    /// When the next attempt starts, in lane time, where the lane waits for a time.
    pub(super) fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        match self.openings(now) {
            _ if !self.is_running() => None,
            Openings::WaitUntil(at) => Some(at),
            Openings::Free(_) | Openings::Probe => self.order.next_due(),
        }
    }

    /// The earliest delivery that was read but not offered.
    pub(super) fn first_unoffered(&self) -> Option<Position> {
        let first = self.buffer.front().or(self.ahead.first());
        first.map(|delivery| delivery.event.position)
    }

    /// What a delivery of a key waits for.
    pub(super) fn ahead_of(&self, position: Position, key: u64) -> Option<Position> {
        let in_flight = self.in_flight_of(key).map(|sent| sent.event.position);
        let in_flight = in_flight.filter(|ahead| *ahead < position);
        let aside = self.order.ahead_of(position, key);
        in_flight.into_iter().chain(aside).min()
    }

    /// The earliest of a key that is in flight.
    fn in_flight_of(&self, key: u64) -> Option<&Sent> {
        let sent = self.flight.iter();
        let of_key = sent.filter(|sent| sent.event.key_hash == Some(key));
        of_key.min_by_key(|sent| sent.event.position)
    }
}
