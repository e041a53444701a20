//! The Wayhold server as a library; the binary `wayhold` is its command line. Modules in suggested
//! reading order.

pub mod api;
pub mod app;
pub mod auth;
pub mod backups;
pub mod blocking;
pub mod clock;
pub mod command;
pub mod config;
pub mod dispatch;
pub mod fault_proxy;
pub mod http;
pub mod ingest;
pub mod redelivery;
pub mod sink;
pub mod source;
pub mod telemetry;

pub mod cli;
