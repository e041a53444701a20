//! Lanes over the real store, against a destination whose answers are scripted: what arrives, in which
//! order, how often, and what is left on record.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where what it rests on does not hold"
)]

mod classes;
mod destination;
mod every_sink;
mod failures;
mod hand;
mod miniature;
mod operators;
mod order;
mod redriven_together;
mod set_aside;
mod troubled;

use std::time::Duration;

/// Longest any test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
