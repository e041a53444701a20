//! What the kernel counted for this process and its disk.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{major, minor, stat};

use crate::BenchError;

/// Bytes of a sector in `/proc/diskstats`, whatever the device's own.
const SECTOR_BYTES: u64 = 512;

/// Counters at one moment; their differences are what lay between.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// User and system time of this process.
    pub cpu: Duration,
    /// Bytes passed to write calls.
    pub written: u64,
    /// Bytes that the disk of the data directory wrote, for whomever.
    pub device: u64,
}

impl Counters {
    /// Now, for the disk that holds `data`.
    pub fn read(data: &Path) -> Result<Self, BenchError> {
        Ok(Self {
            cpu: cpu("self")?,
            written: field(&std::fs::read_to_string("/proc/self/io")?, "wchar:")?,
            // A file system without a device of its own, such as a RAM disk, has nothing to count.
            device: device_bytes(data)?.unwrap_or_default(),
        })
    }
}

/// User and system time of a process, by id or `self`.
pub fn cpu(process: &str) -> Result<Duration, BenchError> {
    let fields = stat_fields(process)?;
    Ok(ticks(fields.iter().skip(UTIME).take(2)))
}

/// User and system time of a process and all of its children, those that have ended included.
pub fn cpu_of_family(parent: u32) -> Result<Duration, BenchError> {
    let fields = stat_fields(&parent.to_string())?;
    let mut time = ticks(fields.iter().skip(UTIME).take(4));
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        // One that ends meanwhile is counted with its parent the next time.
        let fields = stat_fields(process).unwrap_or_default();
        if fields
            .get(PARENT)
            .is_some_and(|of| *of == parent.to_string())
        {
            time += ticks(fields.iter().skip(UTIME).take(2));
        }
    }
    Ok(time)
}

/// Where the parent stands among the fields, and where the times begin: its own user and system time, then that of
/// children that it has buried.
const PARENT: usize = 1;
const UTIME: usize = 11;

/// What the kernel says of a process, from its state on.
fn stat_fields(process: &str) -> Result<Vec<String>, BenchError> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The fields begin after the command's name, which may itself hold blanks and brackets.
    let (_, fields) = stat.rsplit_once(')').ok_or("no fields in /proc/PID/stat")?;
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

fn ticks<'a>(fields: impl Iterator<Item = &'a String>) -> Duration {
    let ticks: u64 = fields
        .map(|ticks| ticks.parse::<u64>().unwrap_or_default())
        .sum();
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_micros(ticks * 1_000_000 / ticks_per_second)
}

/// Bytes that a process caused to be written to disks, by id or `self`.
pub fn written(process: &str) -> Result<u64, BenchError> {
    let io = std::fs::read_to_string(format!("/proc/{process}/io"))?;
    field(&io, "write_bytes:")
}

/// Resident memory of a process, in bytes.
pub fn resident(process: &str) -> Result<u64, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(field(&status, "VmRSS:")? * 1024)
}

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident now.
    pub resident: f64,
    /// The most that was resident since its start.
    pub peak: f64,
}

/// Resident memory of a process, now and at its peak.
pub fn memory(process: &str) -> Result<Memory, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(Memory {
        resident: mebibytes(field(&status, "VmRSS:")?),
        peak: mebibytes(field(&status, "VmHWM:")?),
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

/// Bytes that the disk under `data` wrote so far, for whomever; `None` where the kernel does not tell.
pub fn device_bytes(data: &Path) -> Result<Option<u64>, BenchError> {
    let device = stat(data)?.st_dev;
    let (major, minor) = (major(device).to_string(), minor(device).to_string());
    let stats = std::fs::read_to_string("/proc/diskstats")?;
    let sectors = stats.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let found = fields.first() == Some(&&*major) && fields.get(1) == Some(&&*minor);
        fields.get(9).filter(|_| found)?.parse::<u64>().ok()
    });
    Ok(sectors.map(|sectors| sectors * SECTOR_BYTES))
}

fn field(text: &str, name: &str) -> Result<u64, BenchError> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next());
    Ok(value
        .ok_or_else(|| format!("no {name} where the kernel should tell it"))?
        .parse()?)
}
