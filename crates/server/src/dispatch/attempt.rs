//! One attempt on its way, as three types: prepared, sent, settled. Each can only become the next.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use wayhold_model::endurance::Streak;
use wayhold_model::verdict::{RetryPolicy, Tried, Verdict};
use wayhold_model::{Outcome, OutcomeKind, StoredEvent, Timestamp};
use wayhold_store::AttemptRecord;

use super::order::{History, Turn};

/// Chosen, with its event at hand; not sent yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) event: Arc<StoredEvent>,
    pub(super) history: History,
    /// Whether it is the breaker's probe.
    pub(super) probe: bool,
}

/// Handed to the sink.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) event: Arc<StoredEvent>,
    pub(super) history: History,
    pub(super) at: Instant,
    /// Whether its failure is one of those that the lane counts as known, see `sink::Known`.
    pub(super) knowing: bool,
}

/// Ended, and judged.
#[derive(Debug)]
pub(super) enum Settled {
    /// The destination has it.
    Delivered,
    /// To be tried again.
    Again {
        /// In lane time.
        at: Timestamp,
        record: AttemptRecord,
        after: History,
    },
    /// Given up.
    Dead(AttemptRecord),
}

/// The moment at which outcomes are taken, by all clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) instant: Instant,
    /// Lane time.
    pub(super) now: Timestamp,
    pub(super) wall: Timestamp,
}

/// What else decides about the whole destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    /// Whether the attempt may stop it. One that was sent before the destination was resumed, or changed, stops
    /// nothing, and is sent again as if it had been put off.
    pub(super) trusted: bool,
    /// How long its class of failure has been all that came.
    pub(super) streak: Streak,
}

/// What an attempt means for the whole destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Nothing.
    Delivery,
    /// It is paused.
    Pauses,
    /// It is disabled.
    Disables,
}

impl Prepared {
    /// The turn with its event.
    pub(super) fn new(turn: &Turn, event: Arc<StoredEvent>, probe: bool) -> Self {
        Self {
            event,
            history: turn.history,
            probe,
        }
    }

    /// Back to a turn, when it is not sent after all.
    pub(super) fn into_turn(self) -> Turn {
        let Self { event, history, .. } = self;
        let (position, key) = (event.position, event.key_hash);
        Turn {
            position,
            key,
            event: Some(event),
            history,
        }
    }

    /// Number of the attempt, from 1.
    pub(super) fn number(&self) -> u32 {
        self.history.attempts.saturating_add(1)
    }

    /// Handed to the sink at `at`.
    pub(super) fn sent(self, at: Instant, knowing: bool) -> Sent {
        Sent {
            event: self.event,
            history: self.history,
            at,
            knowing,
        }
    }
}

impl Sent {
    /// Number of the attempt, from 1.
    pub(super) fn number(&self) -> u32 {
        self.history.attempts.saturating_add(1)
    }

    /// What becomes of it, and of its destination: `wall` and how long it took go into the record.
    pub(super) fn settle(
        &self,
        outcome: &Outcome,
        Weight { trusted, streak }: Weight,
        policy: &RetryPolicy,
        Moment { instant, now, wall }: Moment,
        entropy: u64,
    ) -> (Settled, Reach) {
        let took = instant.saturating_duration_since(self.at);
        let number = self.number();
        // A redrive gets the whole policy anew.
        let before = self
            .history
            .letter
            .map_or(0, |redrive| redrive.attempts_before);
        let tried = Tried {
            attempts: number.saturating_sub(before),
            put_off: self.history.put_off,
            age: match self.history.letter {
                Some(_) => Duration::ZERO,
                None => wall.since(self.event.accepted_at),
            },
            streak,
        };
        let verdict = policy.verdict(tried, outcome, now, entropy);
        let Some(failure) = outcome.failure() else {
            return (Settled::Delivered, Reach::Delivery);
        };
        let record = AttemptRecord {
            number,
            at: wall,
            outcome: outcome.kind(),
            class: failure.class,
            status: failure.status,
            reason: failure.reason.clone(),
            answer: failure.answer.clone(),
            duration: Some(took),
        };
        let after = History {
            after_unknown: outcome.kind() == OutcomeKind::Unknown,
            ..self.history
        };
        let put_off = History {
            put_off: self.history.put_off.saturating_add(1),
            ..after
        };
        match verdict {
            Verdict::Settle => (Settled::Delivered, Reach::Delivery),
            Verdict::DeadLetter => (Settled::Dead(record), Reach::Delivery),
            Verdict::Disable if trusted => (Settled::Dead(record), Reach::Disables),
            Verdict::Retry { at, counts } => {
                let counted = History {
                    attempts: number,
                    put_off: 0,
                    ..after
                };
                let after = if counts { counted } else { put_off };
                (Settled::Again { at, record, after }, Reach::Delivery)
            }
            Verdict::Pause | Verdict::Disable => {
                let (at, after) = (now, put_off);
                let reach = if trusted {
                    Reach::Pauses
                } else {
                    Reach::Delivery
                };
                (Settled::Again { at, record, after }, reach)
            }
        }
    }
}

/// What a lane has in flight, found by the token that comes back with the outcome.
#[derive(Debug, Default)]
pub(super) struct Flight {
    slots: Vec<Option<Sent>>,
    free: Vec<usize>,
}

impl Flight {
    /// Keeps an attempt; its token.
    pub(super) fn insert(&mut self, sent: Sent) -> u64 {
        let index = if let Some(index) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(index) {
                *slot = Some(sent);
            }
            index
        } else {
            self.slots.push(Some(sent));
            self.slots.len() - 1
        };
        index as u64
    }

    /// Takes an attempt back; `None` for a token that is not in flight.
    pub(super) fn remove(&mut self, token: u64) -> Option<Sent> {
        let index = usize::try_from(token).ok()?;
        let sent = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        Some(sent)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in flight, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.slots.iter().flatten()
    }
}
