//! The built binary between real files and a real Kafka, looked at by a client of another language
//! (`scripts/verify/kafka`): everything arrives as it was, one topic's trouble stays its own, and
//! nothing is lost or reordered when broker and server are killed.

#![cfg(feature = "kafka")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

#[path = "../support/mod.rs"]
mod support;

mod arrival;
mod broker;
mod isolation;
