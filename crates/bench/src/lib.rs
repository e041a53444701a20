//! Servers to compare Wayhold with, a load generator that treats them all the same, and the run that
//! sets them against each other on one machine. Never shipped. Modules in suggested reading order.

pub mod course;
pub mod payload;

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod load;
pub mod postgres;
pub mod serve;
pub mod store;
pub mod webhook;

pub mod process;
pub mod run;
pub mod window;

/// Why a measurement has no result: a sentence for the person who started it.
pub type BenchError = Box<dyn std::error::Error + Send + Sync>;
