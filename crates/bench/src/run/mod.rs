//! The comparison: every server in turn, in several rounds, so that what disturbs the machine
//! disturbs them all; medians of rounds, and ratios within one round. Modules in suggested reading
//! order.

pub mod args;
pub mod part;
pub mod plan;
pub mod wanted;

pub mod accept;
pub mod commands;
pub mod ledger;
pub mod route;
pub mod segments;

pub mod behind;
pub mod delivering;
pub mod disk;
pub mod unlink;

pub mod drain;

pub mod backlog;
pub mod cold;
pub mod restart;

pub mod service;

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod outbox;

pub mod crowd;
pub mod webhook;

pub mod control;
pub mod files;

pub mod quantile;
pub mod series;
pub mod verdict;

pub use args::{Args, main};
