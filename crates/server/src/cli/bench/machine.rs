//! What the kernel says of this machine and of a process.

use std::io;
use std::time::Duration;

use serde::Serialize;

/// What measures are worth: where they were taken.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory in bytes; absent where the kernel does not say.
    pub memory_bytes: Option<u64>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").ok();
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: memory.and_then(|text| kibibytes(&text, "MemTotal:")),
        }
    }
}

/// User and system time of a process so far, by number or `self`; ten milliseconds are its grain.
///
/// # Errors
/// When there is no such process.
pub fn cpu(process: &str) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The fields begin after the command's name, which may itself hold blanks and brackets.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_micros(ticks * 1_000_000 / ticks_per_second))
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// Now.
    pub now: u64,
    /// The most it ever was.
    pub peak: u64,
}

/// Resident memory of a process.
///
/// # Errors
/// When there is no such process.
pub fn resident(process: u32) -> io::Result<Resident> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let told = |name| kibibytes(&status, name);
    told("VmRSS:")
        .zip(told("VmHWM:"))
        .map(|(now, peak)| Resident { now, peak })
        .ok_or_else(|| io::Error::other("its memory is not told"))
}

/// The value of a line of `name` in kB, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_a_processor() {
        let here = Machine::here();
        assert!(here.cores > 0);
        let resident = resident(std::process::id()).unwrap();
        assert!(resident.now > 0 && resident.now <= resident.peak);
        assert!(here.memory_bytes.is_some_and(|all| resident.peak < all));
        assert!(cpu("self").is_ok() && cpu("0").is_err());
    }

    #[test]
    fn values_are_found_by_the_whole_of_their_name() {
        let text = "VmHWM:\t  90 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(kibibytes(text, "VmRSS:"), Some(12 * 1024));
        assert_eq!(kibibytes(text, "Vm:"), None);
        assert_eq!(kibibytes("VmRSS: many", "VmRSS:"), None);
    }
}
