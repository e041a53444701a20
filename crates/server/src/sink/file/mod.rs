//! File destination: one structured CloudEvent a line, synced before it counts as delivered.

pub mod config;

mod lines;
mod sink;

pub use sink::FileSink;
