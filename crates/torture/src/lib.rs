//! Harnesses that try by force whether Wayhold's promises hold, each a *kind* of `wayhold-torture`. How they
//! work and what they found is in `docs/reliability.md`.

pub mod black_box;
pub mod commands;
pub mod crash_points;
pub mod io_errors;
pub mod kill;
pub mod model;
pub mod mutants;
pub mod outbox_table;
pub mod power_cut;
pub mod reshard;
pub mod sources;

mod budget;
mod dice;
mod disk;
mod verdict;
mod workload;
mod workplace;

pub use budget::Budget;
pub use verdict::Verdict;
