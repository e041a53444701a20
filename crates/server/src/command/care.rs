//! What looks after commands all the time: those whose time passed expire, those whose delivery ended without them
//! hearing of it are brought to an end, and keys that nobody will use again are forgotten. A crash anywhere else is
//! made up for here.

use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;
use wayhold_model::Timestamp;
use wayhold_model::approval::Void;
use wayhold_model::command::{CommandId, SOURCE, State};
use wayhold_store::commands::{Transition, View};
use wayhold_store::{CommandsError, DeliveryState};

use super::desk::{CommandDesk, CommandError};
use super::gate::void;
use super::records::{made_up_for, moved, ourselves};
use super::track::dead;

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Commands looked at in one go: more than one group changes at one time, so that a page ends between two times.
const PAGE: u32 = 1024;

/// A command that changed less long ago is left to whoever is at work on it.
const SETTLED_FOR: Duration = Duration::from_secs(2);

/// How long a key is remembered; longer while its command has not ended.
pub const KEYS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Keys looked at in one go, and forgotten in one change: each has a page of its own of a large index, and others wait for the
/// change.
const KEYS_AT_ONCE: u32 = 256;

/// Goes in one look: more keys than come about between two, so that they do not gather, and an end to one look.
const KEY_PAGES_PER_LOOK: u32 = 128;

impl CommandDesk {
    /// Looks after commands until `stop` says so.
    pub async fn care(self, mut stop: watch::Receiver<bool>) {
        let (mut from, mut keys_from) = (Timestamp::EPOCH, 0);
        loop {
            tokio::select! {
                _ = stop.changed() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if *stop.borrow() {
                return;
            }
            let looked = async {
                self.expire().await?;
                from = self.bring_to_an_end(from).await?;
                keys_from = self.forget_keys(keys_from).await?;
                Ok::<_, CommandError>(())
            };
            if let Err(error) = looked.await {
                warn!(%error, "commands are not looked after; trying again");
            }
        }
    }

    async fn expire(&self) -> Result<(), CommandError> {
        let now = self.0.clock.now();
        let due = self.look(move |view| view.to_expire(now, PAGE)).await?;
        if due.is_empty() {
            return Ok(());
        }
        let done = self.commands()?.change(move |change| {
            for id in &due {
                let Some(command) = change.command(*id)? else {
                    continue;
                };
                // What may have been executed goes on.
                if !command.state.may_become(State::Expired) {
                    continue;
                }
                let step = Transition {
                    from: command.state,
                    to: State::Expired,
                    reason: Some("its time passed"),
                };
                moved(change, *id, step, &ourselves())?;
                let (by, reason) = (ourselves(), "its time passed".to_owned());
                void(change, *id, &Void::Cancelled { by, reason })?;
            }
            Ok::<_, CommandsError>(())
        });
        Ok(done.await?)
    }

    /// Looks at a page of commands that are on the way; where the next page begins.
    async fn bring_to_an_end(&self, from: Timestamp) -> Result<Timestamp, CommandError> {
        let until = self.0.clock.now().before(SETTLED_FOR);
        let page = self
            .look(move |view| view.on_the_way((from, until), PAGE))
            .await?;
        let next = match page.last() {
            Some((_, at)) if page.len() >= PAGE as usize => *at,
            _ => Timestamp::EPOCH,
        };
        for (id, _) in page {
            self.look_after(id).await?;
        }
        Ok(next)
    }

    async fn look_after(&self, id: CommandId) -> Result<(), CommandError> {
        let (command, made_up_by) = self
            .look(move |view| {
                let mut ends = Vec::new();
                for one in view.compensating(id)? {
                    ends.push(view.state(one)?);
                }
                Ok((view.command(id)?, ends))
            })
            .await?;
        let Some(command) = command else {
            return Ok(());
        };
        if command.state == State::Compensating {
            return self.end_compensation(id, &made_up_by).await;
        }
        let store = self.0.store.clone();
        let found = crate::blocking::blocking(move || {
            let found = store.find(SOURCE, &id.to_string()).ok().flatten()?;
            let destination = *found.destinations.ids().first()?;
            store.delivery_state(found.position, destination).ok()
        });
        let state = found
            .await
            .map_err(|_interrupted| CommandsError::Stopping)?;
        let reason = match state {
            Some(DeliveryState::Dead {
                redriving: false, ..
            }) => "its delivery is a dead letter",
            Some(DeliveryState::Resolved) => {
                "its delivery was ended, and no outcome is on record; ask its target: commands reconcile"
            }
            // Waiting, or too old for the store to know.
            Some(_) | None => return Ok(()),
        };
        let done = self.commands()?.change(move |change| {
            // Whoever was at work meanwhile knows better.
            match change.command(id)? {
                Some(now) if now.changed_at == command.changed_at && !now.state.is_ended() => {
                    dead(change, id, reason)
                }
                _ => Ok(()),
            }
        });
        Ok(done.await?)
    }

    async fn end_compensation(
        &self,
        id: CommandId,
        made_up_by: &[Option<State>],
    ) -> Result<(), CommandError> {
        let to = match made_up_by.first().copied().flatten() {
            Some(State::Succeeded) => State::Compensated,
            Some(state) if state.is_ended() => State::CompensationFailed,
            _ => return Ok(()),
        };
        let done = self
            .commands()?
            .change(move |change| made_up_for(change, Some(id), to));
        Ok(done.await?)
    }

    /// Forgets old keys after the one with that number, those of commands on the way excepted; where to go on.
    async fn forget_keys(&self, mut after: u64) -> Result<u64, CommandError> {
        let now = self.0.clock.now();
        let young = (now.before(KEYS_KEPT), now);
        for _ in 0..KEY_PAGES_PER_LOOK {
            let look = move |view: &View<'_>| view.keys_to_forget(young, after, KEYS_AT_ONCE);
            let (old, next) = self.look(look).await?;
            if !old.is_empty() {
                let forget = self
                    .commands()?
                    .change(move |change| change.forget_keys(&old));
                forget.await?;
            }
            match next {
                Some(next) => after = next,
                None => return Ok(0),
            }
        }
        Ok(after)
    }
}
