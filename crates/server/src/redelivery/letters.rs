//! What an operator does with dead letters. The store holds them and audits every action before it is
//! done; this brings it together with the lanes, which send what is redriven and hold keys.
//!
//! An action is durable before the lane hears of it. A crash in between is no loss: a redrive under way
//! is taken up at the next start, and what was discarded holds no key then.

use std::sync::Arc;

use thiserror::Error;
use tracing::{info, warn};
use wayhold_model::{Clock, DestinationId, Event, Timestamp};
use wayhold_store::{DeadLetter, EditedLetter, LetterError, LetterGroup, LetterSelection, Store};

use super::feeding::AllRunning;
use super::letter_filter::{LettersMeant, Names};
use super::many::LETTERS_PER_ACTION_MAX;
use crate::dispatch::Dispatcher;

/// Most dead letters that one listing gives: each brings its event along.
pub const LISTED_MAX: usize = 100;

/// Most dead letters that one listing holds against its filter: a moment's work, whatever the filter asks for.
pub const LOOKED_AT_MAX: usize = 2_000;

/// Most groups that one answer gives. More causes than that are no groups any more.
pub const GROUPS_MAX: usize = 100;

/// Dead letters, and where the next page begins where there may be one.
#[derive(Debug)]
pub struct Page {
    /// The letters.
    pub letters: Vec<DeadLetter>,
    /// Number after which to go on.
    pub next: Option<u64>,
}

/// Dead letters of one cause.
#[derive(Debug)]
pub struct Group {
    /// What they have in common, and how many there are.
    pub group: LetterGroup,
    /// The first of them; `None` where it is damaged or has just ended.
    pub oldest: Option<DeadLetter>,
    /// The last of them.
    pub newest: Option<DeadLetter>,
}

/// Why nothing came of it.
#[derive(Debug, Error)]
pub enum RedeliveryError {
    /// The store's answer; it says what to do next.
    #[error(transparent)]
    Letter(#[from] LetterError),
    /// A discard without a reason would leave a hole in the audit trail; give one.
    #[error("reason: expected a sentence that says why")]
    NoReason,
    /// Nothing was done; look at what there is now, and ask again with the number that is right.
    #[error("expect: {found} dead letters are meant, not {expected}")]
    Unexpected {
        /// What the caller expects.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// Nothing was done; mean fewer of them.
    #[error(
        "more than {LETTERS_PER_ACTION_MAX} dead letters are meant; narrow it by class, fingerprint or filter"
    )]
    TooMany,
    /// Nothing was done; wait until it has ended, or stop it.
    #[error("a redrive of many dead letters is under way at this destination")]
    Running,
    /// The server is stopping; ask its successor.
    #[error("the server is stopping")]
    Stopping,
}

/// The dead letters, with the lanes they concern; a cheap handle.
#[derive(Clone)]
pub struct Letters {
    pub(super) store: Store,
    pub(super) dispatcher: Dispatcher,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) running: AllRunning,
}

impl Letters {
    /// The dead letters of this store, redriven through these lanes.
    pub fn new(store: Store, dispatcher: Dispatcher, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            dispatcher,
            clock,
            running: AllRunning::default(),
        }
    }

    /// The dead letters that are meant, oldest first: at most `max` (and [`LISTED_MAX`]) of those with a number
    /// above `after`. Looks at [`LOOKED_AT_MAX`] letters at most, so a page may be short and not the last.
    ///
    /// # Errors
    /// When the store cannot read them now.
    pub async fn list(
        &self,
        which: LettersMeant,
        after: Option<u64>,
        max: usize,
    ) -> Result<Page, RedeliveryError> {
        let max = max.clamp(1, LISTED_MAX);
        let now = self.clock.now();
        self.ask(move |store| read_page(store, &which, after, max, now))
            .await
    }

    /// Dead letters of one cause together, the largest group first, each with its oldest and newest letter where
    /// those can be read; at most [`GROUPS_MAX`], and how many there are.
    ///
    /// # Errors
    /// When the store cannot read them now.
    pub async fn groups(
        &self,
        destination: Option<DestinationId>,
    ) -> Result<(Vec<Group>, usize), RedeliveryError> {
        self.ask(move |store| {
            let letters = store.dead_letters();
            let groups = letters.groups(destination)?;
            let all = groups.len();
            let with_examples = groups.into_iter().take(GROUPS_MAX).map(|group| Group {
                oldest: letters.get(group.oldest).ok(),
                newest: letters.get(group.newest).ok(),
                group,
            });
            Ok((with_examples.collect(), all))
        })
        .await
    }

    /// One dead letter.
    ///
    /// # Errors
    /// When there is none of that number, or it cannot be read.
    pub async fn show(&self, id: u64) -> Result<DeadLetter, RedeliveryError> {
        self.ask(move |store| store.dead_letters().get(id)).await
    }

    /// Sends a dead letter again, before any unsent later event of its key. However many ask at once, one
    /// redrive is under way; the others are told so. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When there is none of that number, a redrive is under way already, or the store cannot record it.
    pub async fn redrive(&self, id: u64, by: &str) -> Result<DeadLetter, RedeliveryError> {
        let by = by.to_owned();
        self.redrive_whole(id, move |store| store.dead_letters().redrive(id, &by))
            .await
    }

    /// The same with an edited event in the letter's place. The letter's own event is kept, also once the edited
    /// one has arrived.
    ///
    /// # Errors
    /// As `redrive`, when the reason is empty, or when identity or ordering key are not the same.
    pub async fn redrive_edited(
        &self,
        id: u64,
        edited: Event,
        reason: &str,
        by: &str,
    ) -> Result<DeadLetter, RedeliveryError> {
        if reason.trim().is_empty() {
            return Err(RedeliveryError::NoReason);
        }
        let (by, reason, now) = (by.to_owned(), reason.to_owned(), self.clock.now());
        self.redrive_whole(id, move |store| {
            let letters = store.dead_letters();
            letters.redrive_edited(id, edited, &reason, (&by, now))
        })
        .await
    }

    async fn redrive_whole(
        &self,
        id: u64,
        redrive: impl FnOnce(&Store) -> Result<DeadLetter, LetterError> + Send + 'static,
    ) -> Result<DeadLetter, RedeliveryError> {
        let this = self.clone();
        whole(async move {
            let letter = this.ask(redrive).await?;
            info!(letter = id, "dead letter redriven");
            this.dispatcher.redrive(letter.clone()).await;
            Ok(letter)
        })
        .await
    }

    /// What was edited of a letter, also of one that has ended; `None` where nothing was.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub async fn edit(&self, id: u64) -> Result<Option<EditedLetter>, RedeliveryError> {
        self.ask(move |store| store.dead_letters().edit(id)).await
    }

    /// Sends all dead letters of a destination that refer to their events again, each before any unsent later
    /// event of its key; how many. They are read as the lane has room. Those with a copy of their event are
    /// redriven one by one. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When the store cannot record all of it now: repeating it takes the rest.
    pub async fn redrive_many(
        &self,
        which: LetterSelection,
        by: &str,
    ) -> Result<u64, RedeliveryError> {
        let (this, by) = (self.clone(), by.to_owned());
        whole(async move {
            let (destination, principal) = (which.destination, by.clone());
            let redriven = this
                .ask(move |store| store.dead_letters().revive(&which, &by))
                .await;
            // Also after a failure: what became pending before it is not to wait for a restart.
            this.dispatcher.rewind(destination).await;
            let redriven = redriven?;
            info!(redriven, by = principal, "dead letters redriven");
            Ok(redriven)
        })
        .await
    }

    /// Ends all dead letters of a destination that refer to their events; how many. Those with a copy, which
    /// may hold their keys, are discarded one by one. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// When the reason is empty, or the store cannot record all of it now: repeating it takes the rest.
    pub async fn discard_many(
        &self,
        which: LetterSelection,
        by: &str,
        reason: &str,
    ) -> Result<u64, RedeliveryError> {
        if reason.trim().is_empty() {
            return Err(RedeliveryError::NoReason);
        }
        let (this, by, reason) = (self.clone(), by.to_owned(), reason.to_owned());
        whole(async move {
            let principal = by.clone();
            let discarded = this
                .ask(move |store| store.dead_letters().discard_all(&which, &by, &reason))
                .await?;
            info!(discarded, by = principal, "dead letters discarded");
            Ok(discarded)
        })
        .await
    }

    /// Ends a dead letter for good: the event will not reach this destination. Goes on when the caller
    /// stops waiting.
    ///
    /// # Errors
    /// When there is none of that number, a redrive is under way, the reason is empty, or the store
    /// cannot record it.
    pub async fn discard(&self, id: u64, by: &str, reason: &str) -> Result<(), RedeliveryError> {
        if reason.trim().is_empty() {
            return Err(RedeliveryError::NoReason);
        }
        let (this, by, reason) = (self.clone(), by.to_owned(), reason.to_owned());
        whole(async move { this.discard_whole(id, by, reason).await }).await
    }

    async fn discard_whole(
        &self,
        id: u64,
        by: String,
        reason: String,
    ) -> Result<(), RedeliveryError> {
        let letter = match self.show(id).await {
            Ok(letter) => Some(letter),
            // It can still be discarded; only its key is not known.
            Err(RedeliveryError::Letter(LetterError::Damaged { .. })) => None,
            Err(error) => return Err(error),
        };
        let principal = by.clone();
        self.ask(move |store| store.dead_letters().discard(id, &by, &reason))
            .await?;
        info!(letter = id, by = principal, "dead letter discarded");
        match letter {
            Some(letter) => {
                // What a replay gave up holds nobody, and the event's own letter may.
                let key = letter.event.key_hash.filter(|_| letter.replay.is_none());
                let place = (letter.event.position, key);
                self.dispatcher.discarded(letter.destination, place).await;
            }
            None => warn!(
                letter = id,
                "a damaged dead letter may hold its key until a restart"
            ),
        }
        Ok(())
    }

    /// Asks the store where it may wait for the disk.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Store) -> Result<T, LetterError> + Send + 'static,
    ) -> Result<T, RedeliveryError> {
        self.try_ask(move |store| Ok(ask(store)?)).await
    }

    /// The same of a question that can fail by itself.
    pub(super) async fn try_ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Store) -> Result<T, RedeliveryError> + Send + 'static,
    ) -> Result<T, RedeliveryError> {
        let store = self.store.clone();
        let answer = tokio::task::spawn_blocking(move || ask(&store)).await;
        answer.map_err(|_cancelled| RedeliveryError::Stopping)?
    }
}

fn read_page(
    store: &Store,
    which: &LettersMeant,
    mut after: Option<u64>,
    max: usize,
    now: Timestamp,
) -> Result<Page, LetterError> {
    let names = Names::of(store);
    let (mut found, mut looked_at) = (Vec::new(), 0);
    loop {
        let page = store.dead_letters().page(which.query.clone(), after, max)?;
        let is_short = page.letters.len() < max;
        for letter in page.letters {
            looked_at += 1;
            after = Some(letter.id);
            if which.holds(&letter, names.name(letter.destination), now) {
                found.push(letter);
            }
            if found.len() == max || looked_at == LOOKED_AT_MAX {
                // It may have been the last one; the next page is empty then.
                return Ok(Page {
                    letters: found,
                    next: after,
                });
            }
        }
        after = page.next;
        // Where few of many letters are what the store looks for, one look at them is enough for an answer.
        if after.is_none() || is_short {
            return Ok(Page {
                letters: found,
                next: after,
            });
        }
    }
}

/// Runs an action in a task of its own: a client that disconnects between record and lane must not
/// leave the lane uninformed.
pub(super) async fn whole<T: Send + 'static>(
    action: impl Future<Output = Result<T, RedeliveryError>> + Send + 'static,
) -> Result<T, RedeliveryError> {
    tokio::spawn(action)
        .await
        .unwrap_or(Err(RedeliveryError::Stopping))
}
