//! A disk whose syncs fail for real, as a hunt for stores that go on after one as if nothing had happened.

use super::checks::Check;
use crate::black_box::story::instrumented;
use crate::io_errors::real::failing::one_full_store;

/// Real syncs that fail, and a power cut.
pub(super) const FAILING_DISK: Check = Check {
    name: "io-errors --disk failing",
    run: failing_disk,
};

fn failing_disk(seed: u64, fault: &str) {
    one_full_store(seed, |server| {
        server.set_program(instrumented());
        server.plant(fault);
    });
}
