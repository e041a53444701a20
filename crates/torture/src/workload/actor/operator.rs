//! What an operator does to the store: dead letters, pauses, another number of shards, backups.

use tokio::task::spawn_blocking;
use wayhold_store::backup::Progress;
use wayhold_store::{DeadLetter, LetterError, Resolution, RunState};

use super::{Actor, Patience};
use crate::workload::backup_below;
use crate::workload::history::{Fact, Stage};
use crate::workload::script::{Ending, Script};

/// How often an operator asks for what a failing sync prevented. At most one sync fails at a time, so that
/// the second try works.
const TRIES: usize = 3;

impl Actor<'_> {
    fn letters(&self) -> Result<Vec<DeadLetter>, String> {
        let letters = self.store.dead_letters().list(None, None, 1000);
        match letters {
            Err(error) if self.patience == Patience::Full => Err(error.to_string()),
            letters => Ok(letters.unwrap_or_default()),
        }
    }

    fn delivery_of(&self, letter: &DeadLetter) -> Option<(usize, usize)> {
        let event = Script::of_id(letter.event.event.id())?;
        let mut destinations = self.destinations.iter();
        let destination = destinations.position(|one| *one == letter.destination)?;
        Some((event, destination))
    }

    pub(super) async fn redrive(&self, count: usize, ending: Option<Ending>) -> Result<(), String> {
        let letters = self.letters()?;
        let idle = letters.into_iter().filter(|letter| !letter.redriving);
        for letter in idle.take(count) {
            let delivery = self.delivery_of(&letter).ok_or("a letter of nobody")?;
            self.note(Fact::Became(delivery, Stage::Redriving));
            let redriven = self.store.dead_letters().redrive(letter.id, "operator");
            self.note_undone(delivery, redriven.as_ref().err());
            if !self.done(redriven)? {
                continue;
            }
            self.note(Fact::DurableOf(delivery));
            let Some(ending) = ending else { continue };
            let (stage, resolution) = match ending {
                Ending::Dead => (Stage::Dead, Resolution::DeadLettered(self.attempt(9))),
                Ending::Delivered | Ending::Expired | Ending::Failed => {
                    (Stage::Resolved, Resolution::Delivered)
                }
            };
            self.note(Fact::Became(delivery, stage));
            if let Some(outstanding) = self.lanes.get(delivery.1) {
                outstanding
                    .lane
                    .handle()
                    .settle_letter(letter.id, resolution);
            }
        }
        self.durable().await
    }

    /// What is refused was not done; of what was `Unavailable` nobody knows.
    fn note_undone(&self, delivery: (usize, usize), refused: Option<&LetterError>) {
        match refused {
            None => {}
            Some(LetterError::Unavailable { .. }) => self.note(Fact::Unsure(delivery)),
            Some(_) => self.note(Fact::Became(delivery, Stage::Dead)),
        }
    }

    pub(super) fn discard(&self) -> Result<(), String> {
        let letters = self.letters()?;
        if let Some(letter) = letters.iter().find(|letter| !letter.redriving) {
            let delivery = self.delivery_of(letter).ok_or("a letter of nobody")?;
            self.note(Fact::Became(delivery, Stage::Resolved));
            let discarded = self
                .store
                .dead_letters()
                .discard(letter.id, "operator", "of no use");
            self.note_undone(delivery, discarded.as_ref().err());
            if self.done(discarded)? {
                self.note(Fact::DurableOf(delivery));
            }
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, destination: usize) -> Result<(), String> {
        let (Some(paused), Some(id)) = (
            self.paused.get_mut(destination),
            self.destinations.get(destination),
        ) else {
            return Ok(());
        };
        *paused = !*paused;
        let (paused, state) = match *paused {
            true => (true, RunState::Paused),
            false => (false, RunState::Running),
        };
        self.note(Fact::Pausing(destination, paused));
        let set = self
            .store
            .catalog()
            .set_run_state(*id, state, "operator", Some("a test"));
        if self.done(set)? {
            self.note(Fact::Paused(destination, paused));
        }
        Ok(())
    }

    /// Whether an operator's action was done; an error only where nothing may prevent it.
    fn done<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> Result<bool, String> {
        match result {
            Ok(_) => Ok(true),
            // A catalogue whose sync failed takes nothing until the next start, and says so.
            Err(_) if self.patience == Patience::Short => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Changes the number of shards while these requests are sent.
    pub(super) async fn reshard(
        &mut self,
        shards: u16,
        beside: &[Vec<usize>],
    ) -> Result<(), String> {
        let mut refused = String::new();
        for _ in 0..self.tries() {
            self.note(Fact::Resharding(shards));
            let store = self.store.clone();
            let changing = spawn_blocking(move || store.set_shards(shards, "operator", None));
            self.accept(beside).await?;
            match changing.await.map_err(|error| error.to_string())? {
                Ok(_generation) => {
                    self.note(Fact::Sharded(shards));
                    return Ok(());
                }
                Err(error) => refused = error.to_string(),
            }
        }
        self.done(Err::<(), _>(refused)).map(|_| ())
    }

    /// Makes a backup while these requests are sent, again into the same directory where it was cut off.
    pub(super) async fn back_up(&mut self, beside: &[Vec<usize>]) -> Result<(), String> {
        let number = self.backups;
        self.backups += 1;
        let mut refused = String::new();
        for _ in 0..self.tries() {
            self.note(Fact::BackingUp(number));
            let store = self.store.clone();
            let to = backup_below(self.disk.recorder.root(), number);
            let copying = spawn_blocking(move || store.back_up(&to, &Progress::default()));
            self.accept(beside).await?;
            match copying.await.map_err(|error| error.to_string())? {
                Ok(_manifest) => {
                    self.note(Fact::BackedUp(number));
                    return Ok(());
                }
                Err(error) => refused = error.to_string(),
            }
        }
        self.done(Err::<(), _>(refused)).map(|_| ())
    }

    fn tries(&self) -> usize {
        match self.patience {
            Patience::Full => TRIES,
            Patience::Short => 1,
        }
    }
}
