//! What a lane does beside its loop: reading the disk, waiting for a sync. At most one errand of each
//! kind is away, and it takes everything of its kind that has gathered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::sleep;
use tracing::{error, warn};
use wayhold_model::{Position, StoredEvent};
use wayhold_store::{Delivery, Lane, NotDurable, ReadError};

use super::LaneTask;
use crate::dispatch::attempt::Prepared;
use crate::dispatch::order::{KEY_POSITIONS_MAX, Refill, Turn};
use crate::dispatch::pace::{READ_AGAIN_AFTER, repeats_max};
use crate::sink::Sink;

/// An errand that came back.
pub(super) enum Done {
    Read(Box<Lane>, Result<Vec<Delivery>, ReadError>),
    Loaded(Vec<(Chosen, Result<Arc<StoredEvent>, ReadError>)>),
    Refilled(Vec<(Refill, Result<Vec<Position>, ReadError>)>),
    Recorded(Vec<Prepared>, Result<(), NotDurable>),
    Synced(Result<usize, NotDurable>),
    Halted,
    Parted(Option<Arc<dyn Sink>>),
}

/// A turn whose event is being fetched.
pub(super) struct Chosen {
    pub(super) turn: Turn,
    pub(super) probe: bool,
}

/// What an errand is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Load,
    Refill,
    Record,
    Sync,
}

/// Which errands are under way: at most one of each purpose.
#[derive(Debug, Default)]
pub(super) struct Away([Option<Purpose>; 4]);

impl Away {
    /// Whether an errand may leave; then it is away.
    fn leaves(&mut self, purpose: Purpose) -> bool {
        let is_away = self.0.contains(&Some(purpose));
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none() && !is_away) {
            *place = Some(purpose);
        }
        !is_away
    }

    /// Whether an errand of this purpose is under way.
    pub(super) fn is_away(&self, purpose: Purpose) -> bool {
        self.0.contains(&Some(purpose))
    }

    fn is_back(&mut self, purpose: Purpose) {
        for place in self.0.iter_mut().filter(|place| **place == Some(purpose)) {
            *place = None;
        }
    }
}

impl LaneTask {
    pub(super) fn send_errands(&mut self) {
        if !self.to_load.is_empty() && self.away.leaves(Purpose::Load) {
            let handle = self.handle.clone();
            let chosen = std::mem::take(&mut self.to_load);
            self.errands.spawn_blocking(move || {
                let load = |chosen: Chosen| {
                    let event = caught(|| handle.event(chosen.turn.position));
                    (chosen, event)
                };
                Done::Loaded(chosen.into_iter().map(load).collect())
            });
        }
        if !self.to_refill.is_empty() && self.away.leaves(Purpose::Refill) {
            let handle = self.handle.clone();
            let refills = std::mem::take(&mut self.to_refill);
            self.errands.spawn_blocking(move || {
                let fetch = |refill: Refill| {
                    let Refill {
                        key,
                        after,
                        through,
                    } = refill;
                    (
                        refill,
                        caught(|| handle.next_of_key(key, after, through, KEY_POSITIONS_MAX)),
                    )
                };
                Done::Refilled(refills.into_iter().map(fetch).collect())
            });
        }
        if !self.to_record.is_empty() && self.away.leaves(Purpose::Record) {
            let handle = self.handle.clone();
            let starting = std::mem::take(&mut self.to_record);
            self.errands.spawn(async move {
                let starts: Vec<_> = starting
                    .iter()
                    .map(|prepared| (prepared.event.position, prepared.number()))
                    .collect();
                let recorded = handle.record_starts(&starts).await;
                Done::Recorded(starting, recorded)
            });
        }
        let unsynced_max = repeats_max(self.policy.concurrency) / 2;
        if self.unsynced > unsynced_max && self.away.leaves(Purpose::Sync) {
            let handle = self.handle.clone();
            let settled = self.unsynced;
            self.errands.spawn(async move {
                let synced = handle.durable().await;
                if synced.is_err() {
                    // The disk takes nothing: asking again at once would not change that.
                    sleep(READ_AGAIN_AFTER).await;
                }
                Done::Synced(synced.map(|()| settled))
            });
        }
    }

    pub(super) fn take_errand(&mut self, done: Done) {
        match done {
            Done::Read(reader, batch) => {
                self.reader = Some(reader);
                match batch {
                    Ok(batch) => self.take_batch(batch),
                    Err(error) => self.reading_failed(&error),
                }
                self.read_ahead();
            }
            Done::Loaded(loaded) => {
                self.away.is_back(Purpose::Load);
                for (chosen, event) in loaded {
                    self.take_loaded(chosen, event);
                }
            }
            Done::Refilled(refills) => {
                self.away.is_back(Purpose::Refill);
                for (refill, positions) in refills {
                    self.take_refill(refill, positions);
                }
            }
            Done::Recorded(prepared, recorded) => {
                self.away.is_back(Purpose::Record);
                self.take_recorded(prepared, recorded);
            }
            Done::Halted => {}
            Done::Parted(sink) => self.parted(sink),
            Done::Synced(settled) => {
                self.away.is_back(Purpose::Sync);
                match settled {
                    Ok(settled) => self.unsynced = self.unsynced.saturating_sub(settled),
                    Err(error) => {
                        warn!(destination = self.record.name, %error, "outcomes are not durable yet");
                    }
                }
            }
        }
    }

    /// What could not be recorded is not sent: an attempt nobody knows of could be made for ever.
    fn take_recorded(&mut self, prepared: Vec<Prepared>, recorded: Result<(), NotDurable>) {
        let Err(error) = recorded else {
            for prepared in prepared {
                self.launch(prepared);
            }
            return;
        };
        warn!(destination = self.record.name, %error, "starts could not be recorded");
        let again_at = self.now().after(READ_AGAIN_AFTER);
        for prepared in prepared {
            self.withdraw(prepared, again_at);
        }
    }

    fn reading_failed(&mut self, error: &ReadError) {
        warn!(destination = self.record.name, %error, "reading deliveries failed");
        self.read_again_at = Some(self.now().after(READ_AGAIN_AFTER));
    }

    fn take_loaded(&mut self, chosen: Chosen, event: Result<Arc<StoredEvent>, ReadError>) {
        let Chosen { turn, probe } = chosen;
        let error = match event {
            Ok(event) => return self.prepared(Prepared::new(&turn, event, probe)),
            Err(error) => error,
        };
        self.preparing -= 1;
        self.retries_away -= usize::from(!turn.history.is_first());
        if probe {
            self.pace.probe_given_up();
        }
        self.order.handed_over(turn.key);
        let position = turn.position;
        match error {
            ReadError::Damaged { .. } => {
                // As in reading ahead: it stays unresolved, is named in health, and stops nobody.
                error!(destination = self.record.name, %position, "a damaged event was skipped");
                self.order.resolved(turn.key, turn.history);
            }
            ReadError::Failed { .. } => {
                warn!(destination = self.record.name, %position, %error, "reading an event failed");
                self.order
                    .put_back(turn, self.now().after(READ_AGAIN_AFTER));
            }
        }
    }

    fn take_refill(&mut self, refill: Refill, positions: Result<Vec<Position>, ReadError>) {
        match positions {
            Ok(positions) => self.order.refilled(refill, positions),
            Err(error) => {
                warn!(destination = self.record.name, %error, "looking up a key's events failed");
                self.order
                    .refill_failed(refill, self.now().after(READ_AGAIN_AFTER));
            }
        }
    }
}

/// Runs what reads the store. A panic in it counts as a read that failed, so it takes nothing with it.
pub(super) fn caught<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, ReadError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_panic| {
        Err(ReadError::Failed {
            file: "an event".to_owned(),
            reason: "the reader panicked".to_owned(),
        })
    })
}
