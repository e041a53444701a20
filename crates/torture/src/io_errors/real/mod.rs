//! The shipped binary on disks that fail for real: its syncs (`failing`), or for want of room (`full`). Both need
//! root, which may mount.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a harness that meets the unexpected stops there, and says where"
)]

pub mod failing;
pub mod full;

use std::time::Duration;

use crate::black_box::volume::can_cut_power;

/// Accepting resumes within this time once the disk is well again, without a restart: that is promised.
const RESUMES_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait for the server to notice that its disk fails or is full.
const NOTICES_WITHIN: Duration = Duration::from_secs(30);

/// What a test or a run says that cannot mount.
const NEEDS: &str = "real failing disks need root, ext4 in a loop image and a C compiler";

/// Whether it can be tried here: says what is skipped where it cannot.
pub fn is_possible() -> bool {
    can_cut_power("real failing and full disks")
}
