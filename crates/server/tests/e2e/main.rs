//! The built binary through its public faces only: HTTP, command line, signals and files.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may end where it finds what it did not expect, and says what it skips"
)]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod approvals;
mod attempts;
mod backlog;
mod backups;
mod bench;
mod command_line;
mod commands;
mod deciding;
mod drill;
mod events;
mod failures;
mod first_minute;
mod forwarding;
mod ledger;
mod letters;
mod limits;
mod lost_answers;
mod network_faults;
mod outbox_recipes;
mod quotas;
mod reconciling;
mod reload;
mod replays;
mod rescue;
mod retention;
mod rules;
mod shards;
mod signatures;
mod sources;
mod start_and_stop;
mod trial;
