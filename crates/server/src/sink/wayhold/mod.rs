//! Another Wayhold as a destination: events go to it in batches, through its ordinary door. It stores a batch
//! whole or not at all, and knows an event again that it has already.

pub mod config;

mod classify;
mod request;
mod waiting;

mod sink;

pub(crate) use classify::meaning_of_status;
pub use sink::ForwardSink;

#[cfg(test)]
mod centre;
#[cfg(test)]
mod real;
