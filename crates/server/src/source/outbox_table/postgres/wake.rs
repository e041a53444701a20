//! Wakes the reader by `NOTIFY`, which the trigger of our layout sends when a transaction with new rows
//! commits. Without such a trigger the poll interval is all there is.

use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::super::port::{Trouble, Waker};
use super::trouble;

/// The channel that the trigger notifies.
pub(super) const CHANNEL: &str = "wayhold_outbox";

/// Listens on a connection of its own.
pub(super) struct PostgresWaker(PgListener);

impl PostgresWaker {
    pub(super) async fn listen(options: PgConnectOptions) -> Result<Self, Trouble> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await.map_err(trouble)?;
        listener.listen(CHANNEL).await.map_err(trouble)?;
        Ok(Self(listener))
    }

    async fn wait(&mut self) -> Result<(), Trouble> {
        self.0.recv().await.map_err(trouble)?;
        // One look answers all that were sent meanwhile.
        while self.0.next_buffered().is_some() {}
        Ok(())
    }
}

impl Waker for PostgresWaker {
    fn woken(&mut self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(self.wait())
    }
}
