//! A long idempotency window in little memory: accepting with fifty million ids under a memory limit, set
//! against the same server with the ordinary window and no limit. Modules in suggested reading order.

pub mod args;

pub mod limit;
pub mod recognised;

pub use args::{Args, main};
