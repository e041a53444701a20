//! Kafka destination: one record an event, by librdkafka.

pub mod config;
pub mod property;

mod topic;

mod sink;

pub use sink::KafkaSink;
