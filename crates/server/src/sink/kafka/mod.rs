//! Kafka destination: one record an event, by librdkafka.

pub mod config;
pub mod property;

mod classify;
mod client;
mod request;
mod topic;
mod window;

mod lifecycle;
mod sink;

pub(crate) use classify::meaning_of_number;
pub use sink::KafkaSink;

#[cfg(test)]
mod bad_day;
#[cfg(test)]
mod fatal;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod partitions;
#[cfg(test)]
mod real;
#[cfg(test)]
mod rig;
