//! A disk whose syncs fail for real, as a hunt for stores that go on after one as if nothing had happened.

use std::time::Duration;

use super::checks::Check;
use crate::black_box::story::instrumented;
use crate::io_errors::real::failing::one_full_store;

/// Real syncs that fail, and a power cut.
pub(super) const FAILING_DISK: Check = Check {
    name: "io-errors --disk failing",
    run: failing_disk,
};

/// How long a server with a planted fault is waited for.
const PATIENCE: Duration = Duration::from_secs(8);

fn failing_disk(seed: u64, fault: Option<&str>) {
    one_full_store(seed, |server| {
        server.set_program(instrumented());
        if let Some(fault) = fault {
            server.plant(fault, PATIENCE);
        }
    });
}
