//! A short run of `wayhold-torture crash-points`, and that it notices a disk that lies.

use wayhold_torture::{Verdict, crash_points};

#[test]
fn nothing_is_lost_wherever_the_power_fails() {
    let verdict = crash_points::run(&crash_points::Arguments::new(2_000, 1, false));
    assert_eq!(verdict, Verdict::Held);
}

#[test]
fn a_disk_whose_syncs_do_nothing_is_noticed() {
    let verdict = crash_points::run(&crash_points::Arguments::new(2_000, 1, true));
    assert!(matches!(verdict, Verdict::Broken(_)), "{verdict:?}");
}
