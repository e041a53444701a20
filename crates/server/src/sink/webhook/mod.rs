//! Webhook destination: one HTTP request an event, to addresses that may be reached.

pub mod config;

pub mod address;
pub mod auth;
mod classify;
pub mod client;
mod line;
mod rate_limit;
mod request;
mod retry_after;
mod shape;
pub mod sign;

mod sink;

pub(crate) use classify::meaning_of_status;
pub(super) use client::SystemNames;
pub(super) use line::{Line, Way};
pub(super) use retry_after::retry_after;
pub use sink::WebhookSink;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod unreachable;
