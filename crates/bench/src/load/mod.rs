//! The load generator: one thread, one epoll, keep-alive connections, requests prepared beforehand.
//! It shares the machine with the server it measures, so it has to cost less than the server does.
//! Modules in suggested reading order.

pub mod args;
pub mod request;

pub mod answer;
pub mod connection;
pub mod generator;
pub mod latencies;

pub use args::{Args, main};
pub use latencies::Report;
pub use request::COMMAND_KIND;
