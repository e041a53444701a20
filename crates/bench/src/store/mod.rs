//! The store alone, without HTTP: callers in the same process append, a consumer that does nothing
//! settles. It tells what the disk layout costs, and it decided page size and flush times. Modules in
//! suggested reading order.

pub mod args;

pub mod engine;

pub mod append;
pub mod backlog;
pub mod consumer;

pub mod kernel;

pub use args::{Args, main};
