//! The built binary between real files and a real Kafka, looked at by a client of another language
//! (`scripts/verify/kafka`): everything arrives as it was and where Java's producer would put it, one
//! topic's trouble stays its own, and nothing is lost or reordered when broker and server are killed, leaders move, replicas
//! are away, or a quota is used up.

#![cfg(feature = "kafka")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::format_push_string,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

#[expect(dead_code, reason = "shared with tests that need more of it")]
#[path = "../support/mod.rs"]
mod support;

mod arrival;
mod attempts;
mod broker;
mod cluster;
mod debezium;
mod isolation;
mod judge;
mod leaders;
mod load;
mod lost_answers;
mod outage;
mod partitioning;
mod quota;
