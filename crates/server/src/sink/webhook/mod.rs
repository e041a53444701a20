//! Webhook destination: one HTTP request an event.

pub mod config;
