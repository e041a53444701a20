//! Webhook destination: one HTTP request an event, to addresses that may be reached.

pub mod config;

mod sink;

pub use sink::WebhookSink;
