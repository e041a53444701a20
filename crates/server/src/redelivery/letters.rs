//! What an operator does with dead letters. The store holds them and audits every action before it is
//! done; this brings it together with the lanes, which send what is redriven and hold keys.
//!
//! An action is durable before the lane hears of it. A crash in between is no loss: a redrive under way
//! is taken up at the next start, and what was discarded holds no key then.

use thiserror::Error;
use tracing::{info, warn};
use wayhold_model::DestinationId;
use wayhold_store::{DeadLetter, LetterError, LetterSelection, Store};

use crate::dispatch::Dispatcher;

/// Most dead letters that one listing gives: each brings its event along.
pub const LISTED_MAX: usize = 100;

/// Why nothing came of it.
#[derive(Debug, Error)]
pub enum RedeliveryError {
    /// The store's answer; it says what to do next.
    #[error(transparent)]
    Letter(#[from] LetterError),
    /// A discard without a reason would leave a hole in the audit trail; give one.
    #[error("reason: expected a sentence that says why")]
    NoReason,
    /// The server is stopping; ask its successor.
    #[error("the server is stopping")]
    Stopping,
}

/// The dead letters, with the lanes they concern; a cheap handle.
#[derive(Clone)]
pub struct Letters {
    store: Store,
    dispatcher: Dispatcher,
}

impl Letters {
    /// The dead letters of this store, redriven through these lanes.
    pub fn new(store: Store, dispatcher: Dispatcher) -> Self {
        Self { store, dispatcher }
    }

    /// At most `max` (and [`LISTED_MAX`]) dead letters with a number above `after`, oldest first.
    ///
    /// # Errors
    /// When the store cannot read them now.
    pub async fn list(
        &self,
        destination: Option<DestinationId>,
        after: Option<u64>,
        max: usize,
    ) -> Result<Vec<DeadLetter>, RedeliveryError> {
        let max = max.min(LISTED_MAX);
        self.ask(move |store| store.dead_letters().list(destination, after, max))
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
        let (this, by) = (self.clone(), by.to_owned());
        whole(async move {
            let principal = by.clone();
            let letter = this
                .ask(move |store| store.dead_letters().redrive(id, &by))
                .await?;
            info!(letter = id, by = principal, "dead letter redriven");
            this.dispatcher.redrive(letter.clone()).await;
            Ok(letter)
        })
        .await
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
            Some(letter) => self.dispatcher.discarded(&letter).await,
            None => warn!(
                letter = id,
                "a damaged dead letter may hold its key until a restart"
            ),
        }
        Ok(())
    }

    /// Asks the store where it may wait for the disk.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Store) -> Result<T, LetterError> + Send + 'static,
    ) -> Result<T, RedeliveryError> {
        let store = self.store.clone();
        let answer = tokio::task::spawn_blocking(move || ask(&store)).await;
        Ok(answer.map_err(|_cancelled| RedeliveryError::Stopping)??)
    }
}

/// Runs an action in a task of its own: a client that disconnects between record and lane must not
/// leave the lane uninformed.
async fn whole<T: Send + 'static>(
    action: impl Future<Output = Result<T, RedeliveryError>> + Send + 'static,
) -> Result<T, RedeliveryError> {
    tokio::spawn(action)
        .await
        .unwrap_or(Err(RedeliveryError::Stopping))
}
