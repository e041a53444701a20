//! Kafka destination: one record an event.

pub mod config;
