//! The embedded durable store: events are committed to append-only segments before a receipt is given,
//! lanes read them back in order, and what became of each delivery is recorded until the segment can
//! be unlinked. Knows nothing of HTTP or sinks; SQLite types never leave this crate.
//!
//! ```text
//! <data>/LOCK  reserve  catalog.db
//!        g1/s0/mark  state.db  <n>.db[-wal,-shm]  <n>.idx
//! ```
//!
//! Modules in suggested reading order.

pub mod delivery;

pub use delivery::{
    AttemptRecord, DeadLetter, Delivery, DeliveryState, LaneTotals, Receipt, Resolution,
};
