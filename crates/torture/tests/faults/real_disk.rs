//! Real disks whose syncs fail, and real disks without a free byte, a few times; `scripts/torture io-errors` does
//! it for long.

use wayhold_torture::io_errors::real::{failing, full, is_possible};
use wayhold_torture::{Budget, Verdict};

/// Failing disks that a change waits for, and full ones: two episodes, with one shard and with three.
const FAILING: u64 = 4;
const FULL: u64 = 6;

#[test]
fn disks_whose_syncs_fail_are_refused_and_left_behind_with_nothing_lost() {
    if is_possible() {
        assert_eq!(failing::run(&Budget::of(FAILING)), Verdict::Held);
    }
}

#[test]
fn a_store_that_answers_without_syncing_is_found_out_by_a_failing_disk() {
    if is_possible() {
        let control = Budget {
            control: true,
            ..Budget::of(1)
        };
        let found = failing::run(&control);
        assert!(matches!(found, Verdict::Broken(_)), "{found:?}");
    }
}

#[test]
fn a_full_disk_is_announced_drained_and_left_behind() {
    if is_possible() {
        assert_eq!(full::run(&Budget::of(FULL)), Verdict::Held);
    }
}
