//! By force: the real binary over HTTP, killed, cut off from power, refused by its disk, damaged. What
//! the clients were told and what the destinations received is written down outside of the system and
//! judged once faults have stopped and everything is drained (`history`). A run that accepted or
//! delivered too little counts as failed. Modules in suggested reading order; figures of long runs and
//! how to repeat them are in docs/reliability.md.
//!
//! `WAYHOLD_FAULTS_ROUNDS` sets how many kills or cuts a test makes, `WAYHOLD_FAULTS_SEED` where its
//! random numbers begin; a failure prints both.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod seed;

mod client;
mod server;

mod receiver;

mod history;

mod load;

mod native;
mod volume;

mod kill;

mod stop;

mod power_cut;

mod unsynced_tail;

mod failed_sync;

mod failing_shard;

mod call_by_call;

mod full_disk;

mod damage;
