//! File destination: one structured CloudEvent a line, synced before it counts as delivered.

pub mod config;

mod lines;
mod sink;

#[cfg(test)]
mod faults;

pub use sink::FileSink;
