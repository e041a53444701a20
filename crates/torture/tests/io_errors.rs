//! A short run of `wayhold-torture io-errors`, and that it notices a disk that lies.

use wayhold_torture::{Verdict, io_errors};

#[test]
fn nothing_acknowledged_is_lost_whichever_call_fails() {
    let verdict = io_errors::run(&io_errors::Arguments::new(300, 1, false));
    assert_eq!(verdict, Verdict::Held);
}

#[test]
fn a_disk_whose_syncs_do_nothing_is_noticed() {
    let verdict = io_errors::run(&io_errors::Arguments::new(600, 1, true));
    assert!(matches!(verdict, Verdict::Broken(_)), "{verdict:?}");
}
