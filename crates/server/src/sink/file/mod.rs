//! File destination: one structured CloudEvent a line.

pub mod config;
