//! Producers as they are often written, to compare Wayhold's Kafka destination with. Modules in
//! suggested reading order.

pub mod produce;
pub mod topic;

pub use produce::{Args, main};
