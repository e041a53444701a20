//! What stands in the store's place behind our front: nothing, or the classic outbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use wayhold::ingest::Keeper;
use wayhold_model::{Generation, Position, Sequence, ShardId};
use wayhold_store::{AppendError, NewEvent, Receipt};

use super::classic::Outbox;

/// Drops what it gets and gives receipts for it.
#[derive(Default)]
pub struct Nothing {
    dropped: AtomicU64,
}

impl Keeper for Nothing {
    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<Receipt>, AppendError>> {
        let first = self
            .dropped
            .fetch_add(events.len() as u64, Ordering::Relaxed);
        let receipts = (first..)
            .zip(&events)
            .map(|(number, _)| receipt(0, number))
            .collect();
        Box::pin(std::future::ready(Ok(receipts)))
    }
}

/// The classic outbox, a blocking thread for each request, as it is used.
pub struct Classic {
    outbox: Arc<Outbox>,
}

impl Classic {
    /// Keeps events in `outbox`.
    pub fn new(outbox: Outbox) -> Self {
        Self {
            outbox: Arc::new(outbox),
        }
    }
}

impl Keeper for Classic {
    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<Receipt>, AppendError>> {
        let outbox = Arc::clone(&self.outbox);
        Box::pin(async move {
            let inserted = tokio::task::spawn_blocking(move || outbox.insert_all(&events)).await;
            let rows = inserted.map_err(unavailable)?.map_err(unavailable)?;
            let rows = rows.into_iter();
            Ok(rows
                .map(|(file, row)| receipt(file, row.unsigned_abs()))
                .collect())
        })
    }
}

fn unavailable(error: impl std::fmt::Display) -> AppendError {
    AppendError::Unavailable {
        reason: error.to_string(),
    }
}

fn receipt(shard: usize, number: u64) -> Receipt {
    let position = Position {
        generation: Generation(1),
        shard: ShardId(u16::try_from(shard).unwrap_or(u16::MAX)),
        sequence: Sequence(number),
    };
    Receipt {
        position,
        duplicate: false,
    }
}
