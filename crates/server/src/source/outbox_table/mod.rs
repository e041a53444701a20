//! An outbox table in a service's own database: rows that it committed beside its business data become
//! events. A row is deleted or marked only after its event is durable here, and the event's identity is
//! made of the row's, so that a row which is read twice is one event. Modules in suggested reading order.

pub mod port;
pub mod row;

mod mapping;

mod held;
mod standing;

mod reader;

mod postgres;

mod cells;
mod mysql;
mod sqlite;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::config::{self, OutboxTableConfig};

pub use mysql::Mysql;
pub use port::{Batch, Connected, Database, End, Finding, Lag, Reader, Settler, Trouble, Waker};
pub use postgres::Postgres;
pub use reader::{Reading, Surroundings};
pub use row::{Column, Payload, Place, Row};
pub use sqlite::Sqlite;
pub use standing::{RefusedRow, Snapshot, Standing, State};

/// What reads a configured table; nothing is opened yet.
pub fn open(config: &OutboxTableConfig) -> Arc<dyn Database> {
    match &config.database {
        config::Database::Postgres(url) => Arc::new(Postgres::new(config, url)),
        config::Database::Mysql(url) => Arc::new(Mysql::new(config, url.expose())),
        config::Database::Sqlite(path) => Arc::new(Sqlite::new(config, path.clone())),
    }
}
