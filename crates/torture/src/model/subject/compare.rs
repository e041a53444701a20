//! What the store says, held against what the reference says.

use std::collections::BTreeSet;

use wayhold_model::{Position, StoredEvent};
use wayhold_store::DeliveryState;

use super::{Checked, Subject};
use crate::model::reference::{Counts, State};
use crate::model::steps::DESTINATIONS;
use crate::model::values::number_of;

impl Subject {
    /// Compares all there is, without changing anything.
    pub(in crate::model) async fn check(&mut self) -> Checked {
        self.check_counts()?;
        let events: Vec<_> = self
            .reference
            .iter()
            .map(|(n, one)| (n, one.position))
            .collect();
        for (number, position) in &events {
            let mut states = BTreeSet::new();
            for to in 0..DESTINATIONS {
                let expected = self.reference.state(*number, to);
                let state = self.state(*position, to, expected)?;
                ensure!(
                    Some(state) == expected,
                    "delivery {to} of event {number} is {state:?}, expected {expected:?}"
                );
                states.insert(state);
            }
            let found = self
                .store
                .event(*position)
                .map_err(|error| error.to_string())?;
            match found.map(|found| found.event) {
                Some(Some(event)) => self.same(*number, &event)?,
                Some(None) => {
                    let is_held = states.contains(&State::Pending);
                    ensure!(
                        !is_held,
                        "event {number} is pending, and only its trace is left"
                    );
                    self.seen.dropped += 1;
                }
                None => return Err(format!("event {number} at {position} is forgotten")),
            }
        }
        // Letters are listed from the file.
        self.sync(0).await?;
        self.check_letters()?;
        let health = self.store.health();
        ensure!(
            health.unavailable.is_none(),
            "the store says {:?}",
            health.unavailable
        );
        ensure!(
            health.degraded.is_empty(),
            "the store says {:?}",
            health.degraded
        );
        Ok(())
    }

    fn check_letters(&mut self) -> Checked {
        for to in 0..DESTINATIONS {
            let destination = self.to.get(to).copied();
            let letters = self
                .store
                .dead_letters()
                .list(destination, None, usize::MAX);
            let letters = letters.map_err(|error| error.to_string())?;
            let mut numbers = BTreeSet::new();
            for letter in letters {
                let number = number_of(&letter.event)?;
                self.same(number, &letter.event)?;
                ensure!(
                    numbers.insert(number),
                    "event {number} is dead twice for {to}"
                );
            }
            let dead = self.reference.that_are(to, State::Dead);
            ensure!(
                numbers == dead,
                "letters of {to} are {numbers:?}, expected {dead:?}"
            );
        }
        Ok(())
    }

    /// The accounting identity, and that its counts are the reference's own.
    pub(super) fn check_counts(&self) -> Checked {
        for (to, destination) in self.to.iter().enumerate() {
            let totals = self.store.totals(*destination);
            let said = Counts {
                accepted: totals.accepted,
                pending: totals.pending,
                delivered: totals.delivered,
                dead: totals.dead,
                expired: totals.expired,
                discarded: totals.discarded,
            };
            let expected = self.reference.counts(to);
            ensure!(
                said == expected,
                "destination {to}: {said:?}, expected {expected:?}"
            );
        }
        Ok(())
    }

    /// Where a delivery stands. How it was resolved the store only counts: then it is what is expected.
    pub(super) fn state(
        &self,
        position: Position,
        to: usize,
        expected: Option<State>,
    ) -> Result<State, String> {
        Ok(match self.delivery_state(position, to)? {
            DeliveryState::Pending | DeliveryState::Retrying { .. } => State::Pending,
            DeliveryState::Dead {
                redriving: true, ..
            } => State::Pending,
            DeliveryState::Dead {
                redriving: false, ..
            } => State::Dead,
            DeliveryState::Resolved => match expected {
                Some(ended @ (State::Delivered | State::Expired | State::Discarded)) => ended,
                _ => {
                    return Err(format!(
                        "{position} is resolved for {to}, expected {expected:?}"
                    ));
                }
            },
        })
    }

    pub(super) fn same(&self, number: u64, event: &StoredEvent) -> Checked {
        let Some(known) = self.reference.get(number) else {
            return Err(format!("event {number} was never accepted"));
        };
        ensure!(
            event.event.data() == known.data.as_bytes() && event.position == known.position,
            "event {number} at {} came back altered, from {}",
            known.position,
            event.position
        );
        Ok(())
    }
}
