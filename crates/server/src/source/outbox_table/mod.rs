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
pub use port::{Batch, Connected, Database, End, Finding, Lag, Reader, Settler, Trouble, Waker};
pub use postgres::Postgres;
pub use reader::{Reading, Surroundings};
pub use row::{Column, Payload, Place, Row};
pub use standing::{RefusedRow, Snapshot, Standing, State};
