//! `kill -9` at random moments, a few times; `scripts/torture kill` does it for long.

use wayhold_torture::{Budget, Verdict, kill};

/// Kills that a change waits for, with one shard and with three.
const KILLS: u64 = 20;

#[test]
fn a_server_that_is_killed_again_and_again_loses_reorders_and_alters_nothing() {
    assert_eq!(kill::at_random(&Budget::of(KILLS)), Verdict::Held);
}
