//! Power cuts, a few times; `scripts/torture power-cut` does it for long.

use wayhold_torture::black_box::volume::can_cut_power;
use wayhold_torture::{Budget, Verdict, power_cut};

/// Cuts that a change waits for, with one shard and with three.
const CUTS: u64 = 12;

/// Cuts of a store that does not sync.
const CONTROL_CUTS: u64 = 3;

#[test]
fn a_server_whose_power_is_cut_again_and_again_loses_reorders_and_alters_nothing() {
    if can_cut_power("power cuts") {
        assert_eq!(power_cut::of_the_store(&Budget::of(CUTS)), Verdict::Held);
    }
}

#[test]
fn a_store_that_answers_without_syncing_is_found_out_by_a_power_cut() {
    if can_cut_power("the control of power cuts") {
        let found = power_cut::control(&Budget::of(CONTROL_CUTS));
        assert!(matches!(found, Verdict::Broken(_)), "{found:?}");
    }
}
