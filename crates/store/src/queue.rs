//! The way to a shard's writer: a queue that is bounded by the bytes of the events in it.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::AppendError;
use crate::shard::writer::{Order, Request};

/// How long a request waits for room in the queue: longer, and the producer should know that the disk
/// does not keep up.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(5);

/// The queue of one shard.
pub(crate) struct Queue {
    orders: Sender<Order>,
    /// Bytes of events that may still be queued for a commit.
    room: Arc<Semaphore>,
    bytes_max: usize,
}

impl Queue {
    /// A queue for at most so many bytes; a request that is larger has it to itself.
    pub(crate) fn new(orders: Sender<Order>, bytes_max: usize) -> Self {
        Self {
            orders,
            room: Arc::new(Semaphore::new(bytes_max)),
            bytes_max,
        }
    }

    /// Waits for room, though not for ever.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, AppendError> {
        let share = u32::try_from(bytes.min(self.bytes_max)).unwrap_or(u32::MAX);
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(share) {
            return Ok(room);
        }
        let waiting = Arc::clone(&self.room).acquire_many_owned(share);
        match tokio::time::timeout(ROOM_WAIT, waiting).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(AppendError::Stopping),
            Err(_) => Err(AppendError::Busy),
        }
    }

    /// Hands a request to the writer.
    pub(crate) fn append(&self, request: Request) -> Result<(), AppendError> {
        let sent = self.orders.send(Order::Append(request));
        sent.map_err(|_| AppendError::Stopping)
    }

    /// Tells the writer to commit what is queued and to end. It may be gone already, after a panic.
    pub(crate) fn stop(&self) {
        drop(self.orders.send(Order::Stop));
    }

    /// Bytes that are queued.
    pub(crate) fn queued(&self) -> usize {
        self.bytes_max.saturating_sub(self.room.available_permits())
    }
}
