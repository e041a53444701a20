//! By force: the real binary over HTTP, killed, cut off from power, refused by its disk, damaged. How it is
//! judged is in `wayhold_torture::black_box`; what takes long is a kind of `scripts/torture` and tried
//! here a few times. Modules in suggested reading order; figures of long runs are in docs/reliability.md.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod kill;

mod stop;

mod power_cut;

mod unsynced_tail;

mod failed_sync;

mod failing_shard;

mod call_by_call;

mod real_disk;

mod damage;
