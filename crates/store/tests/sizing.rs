//! What is said of sizes beforehand is what files have.

#![expect(unreachable_pub, reason = "the support is shared by suites")]
#![expect(
    dead_code,
    reason = "the support is shared by suites, and this one needs little of it"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{HandClock, destinations, eventually, files, fill, open, tiny};
use wayhold_store::{Options, sizing};

/// Bytes that a file's head and directory may add.
const HEAD_BYTES: u64 = 1_024;

#[tokio::test]
async fn index_files_are_as_large_as_said() {
    for lanes in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            segment_rows: 500,
            segment_bytes: 64 * 1024 * 1024,
            ..tiny()
        };
        let (store, _) = open(folder.path(), &options, &HandClock::new());
        let to = destinations(&store, lanes);
        fill(&store, 0, 501, 100, &to).await;
        eventually("the segment has its index file", || {
            files(folder.path(), ".idx").len() == 1
        });
        let file = folder
            .path()
            .join("g1/s0")
            .join(&files(folder.path(), ".idx")[0]);
        let there = std::fs::metadata(file).unwrap().len();
        let said = sizing::index_bytes(500, lanes as u64);
        assert!(
            (said..said + HEAD_BYTES).contains(&there),
            "{lanes} lanes: said {said}, there are {there}"
        );
        store.stop();
    }
}
