//! The way in, from bytes on a socket to receipts: modes and vectors, refusals, streams, connections,
//! hostile requests, tokens. Every server listens on a free loopback port and lives in a folder of its
//! own; every wait is bounded.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod support;

mod connections;
mod durable;
mod hostile;
mod modes;
mod refusals;
mod smuggling;
mod streams;
mod tokens;
