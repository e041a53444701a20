//! How long the disk takes to have what was written: a file that grows and a file that is written over,
//! small and larger, each followed by `fdatasync`. Everything that is acknowledged waits for this.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::rehearsal::distribution::Distribution;

/// Most syncs of one kind: enough for a steady p99, and at 64 KiB a quarter of a gibibyte.
const SYNCS_MAX: usize = 4_000;

/// Length of the file that is written over, filled with zeros and synced beforehand.
const OVERWRITTEN_BYTES: u64 = 16 * 1024 * 1024;

/// Half of the syncs faster than this, in milliseconds: no disk that keeps what it confirms is.
const IMPLAUSIBLE_MS: f64 = 0.008;

/// Half of the syncs slower than this, in milliseconds: few callers will see few events a second.
const SLOW_MS: f64 = 5.0;

/// One in a hundred so much slower than half of them, and slower than `SLOW_MS`: acknowledgements stall.
const UNEVEN: f64 = 20.0;

/// What is written before each sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Write {
    /// The next bytes of a file that grows, as a store writes.
    Append,
    /// Bytes of a file that has its length.
    Overwrite,
}

/// The kinds that are measured, in bytes per sync.
pub const KINDS: [(Write, usize); 4] = [
    (Write::Append, 4 * 1024),
    (Write::Append, 64 * 1024),
    (Write::Overwrite, 4 * 1024),
    (Write::Overwrite, 64 * 1024),
];

/// What one kind of sync takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Syncs {
    /// What is written before.
    pub write: Write,
    /// How much of it.
    pub bytes: usize,
    /// Write and sync together.
    #[serde(flatten)]
    pub took: Distribution,
}

/// Measures every kind in `folder` within `time`, unless told to stop. Blocking.
///
/// # Errors
/// When the disk refuses.
pub fn measure(folder: &Path, time: Duration, stop: &AtomicBool) -> io::Result<Vec<Syncs>> {
    let begun = Instant::now();
    let mut all = Vec::new();
    for (at, (write, bytes)) in KINDS.into_iter().enumerate() {
        let left = time.saturating_sub(begun.elapsed());
        let share = left / u32::try_from(KINDS.len() - at).unwrap_or(1);
        let path = folder.join("sync");
        let took = Distribution::of(of_kind(&path, write, bytes, share, stop)?);
        std::fs::remove_file(&path)?;
        all.push(Syncs { write, bytes, took });
    }
    Ok(all)
}

fn of_kind(
    path: &Path,
    write: Write,
    bytes: usize,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Vec<Duration>> {
    let file = File::create(path)?;
    // Not zeros: some disks do not write those.
    let content: Vec<u8> = (0..bytes)
        .map(|at| u8::try_from(at % 251).unwrap_or_default())
        .collect();
    let step = bytes as u64;
    if write == Write::Overwrite {
        for at in 0..OVERWRITTEN_BYTES / step {
            file.write_all_at(&content, at * step)?;
        }
    }
    file.sync_all()?;
    let begun = Instant::now();
    let mut took = Vec::new();
    while took.len() < SYNCS_MAX
        && (took.is_empty() || begun.elapsed() < time)
        && !stop.load(Ordering::Relaxed)
    {
        let at = took.len() as u64 * step;
        let at = match write {
            Write::Append => at,
            Write::Overwrite => at % OVERWRITTEN_BYTES,
        };
        let started = Instant::now();
        file.write_all_at(&content, at)?;
        file.sync_data()?;
        took.push(started.elapsed());
    }
    Ok(took)
}

/// What a person should know of a disk that syncs like this, where it is not as a disk should be.
pub fn warnings(syncs: &[Syncs], in_memory: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let half = |syncs: &Syncs| syncs.took.p50_ms;
    let fastest = syncs.iter().map(half).fold(f64::INFINITY, f64::min);
    let appended = syncs.iter().find(|syncs| syncs.write == Write::Append);
    if in_memory {
        warnings.push(
            "this folder is in memory (tmpfs): a power failure takes everything in it, and a disk will be \
             slower; measure on the disk that will be used, with --data DIR"
                .to_owned(),
        );
    } else if fastest < IMPLAUSIBLE_MS {
        warnings.push(format!(
            "a sync takes {fastest:.3} ms, faster than any disk: something between here and the disk says \
             \"done\" before it is (a virtual disk with unsafe caching, a file system without barriers), and \
             a power failure would take acknowledged events"
        ));
    }
    if let Some(appended) = appended.filter(|syncs| half(syncs) > SLOW_MS) {
        warnings.push(format!(
            "a sync takes {:.1} ms: one caller alone sees at most {:.0} events a second; send batches or from \
             more connections, or use a faster disk",
            half(appended),
            1e3 / half(appended)
        ));
    }
    if let Some(appended) = appended
        .filter(|syncs| syncs.took.p99_ms > SLOW_MS && syncs.took.p99_ms > UNEVEN * half(syncs))
    {
        warnings.push(format!(
            "one sync in a hundred takes {:.1} ms, where half take {:.2} ms: something else keeps this disk \
             busy, or it stalls; acknowledgements stall with it",
            appended.took.p99_ms,
            half(appended)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syncs(p50_ms: f64, p99_ms: f64) -> Vec<Syncs> {
        let took = Distribution {
            count: 100,
            mean_ms: p50_ms,
            p50_ms,
            p99_ms,
            max_ms: p99_ms,
        };
        let of = |(write, bytes)| Syncs { write, bytes, took };
        KINDS.into_iter().map(of).collect()
    }

    #[test]
    fn a_disk_that_is_not_as_it_should_be_is_named() {
        for (p50_ms, p99_ms, in_memory, expected) in [
            (0.25, 0.5, false, vec![]),
            (0.02, 0.1, false, vec![]),
            (0.002, 0.01, true, vec!["tmpfs"]),
            (0.25, 0.5, true, vec!["tmpfs"]),
            (0.002, 0.01, false, vec!["faster than any disk"]),
            (12.0, 20.0, false, vec!["at most 83 events"]),
            (0.25, 30.0, false, vec!["one sync in a hundred"]),
            (0.01, 0.9, false, vec![]),
            (
                6.0,
                200.0,
                false,
                vec!["at most 167", "one sync in a hundred"],
            ),
        ] {
            let found = warnings(&syncs(p50_ms, p99_ms), in_memory);
            let context = format!("{p50_ms} {p99_ms} {in_memory}: {found:?}");
            assert_eq!(found.len(), expected.len(), "{context}");
            for (words, expected) in found.iter().zip(expected) {
                assert!(words.contains(expected), "{context}");
            }
        }
    }

    #[test]
    fn every_kind_is_measured_at_least_once_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let all = measure(folder.path(), Duration::ZERO, &AtomicBool::new(false)).unwrap();
        assert_eq!(all.len(), KINDS.len());
        assert!(all.iter().all(|syncs| syncs.took.count == 1));
        assert!(all.iter().all(|syncs| syncs.took.max_ms > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
