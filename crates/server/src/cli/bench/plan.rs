//! What is measured, in which order, and what of the time and the disk each step may take.

use std::time::Duration;

use wayhold_store::Options;

/// Callers that send single events, where nobody asked for others: alone, few, many, very many.
pub const CALLERS: [usize; 4] = [1, 16, 64, 256];

/// Callers that send many events in one request, and how many.
pub const BULK_CALLERS: usize = 64;
/// Events in one of their requests.
pub const BULK_EVENTS: usize = 100;

/// Bytes that one event may add to the disk when commits are large: its own kibibyte, attributes, half
/// empty pages and its share of an index file.
const BYTES_IN_GROUPS: u64 = 2_560;

/// Bytes that one event may add when it is committed alone: whole pages of a table, and their frames.
const BYTES_ALONE: u64 = 16_384;

/// Events that share a commit at the least, with so many callers, count as a group.
const GROUP_MIN: usize = 16;

/// Bytes of events that one step may store for each second of the whole.
const STORED_PER_SECOND: u64 = 12 * MIB;

const MIB: u64 = 1024 * 1024;

/// One step of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// How long the disk takes to have what was written.
    Sync,
    /// Events in, by so many callers with so many events a request.
    Accept {
        /// Connections, each with one request under way.
        callers: usize,
        /// Events in one request.
        batch: usize,
    },
    /// A backlog: its memory, and how fast it is worked off.
    Backlog,
    /// Memory by destinations.
    Lanes,
    /// Bytes on disk of events that wait for long.
    Disk,
}

impl Step {
    /// Its share of the time, beside the others.
    fn weight(self) -> u32 {
        match self {
            Self::Sync | Self::Lanes => 12,
            Self::Accept { .. } => 11,
            Self::Backlog => 22,
            Self::Disk => 4,
        }
    }

    /// What it does, for a person who waits.
    pub fn words(self) -> String {
        match self {
            Self::Sync => "writing and syncing files".to_owned(),
            Self::Accept {
                callers: 1,
                batch: 1,
            } => "accepting from 1 caller".to_owned(),
            Self::Accept { callers, batch: 1 } => format!("accepting from {callers} callers"),
            Self::Accept { callers, batch } => {
                format!("accepting from {callers} callers, {batch} events a request")
            }
            Self::Backlog => "filling a backlog and draining it".to_owned(),
            Self::Lanes => "counting memory by destinations".to_owned(),
            Self::Disk => "counting bytes on disk".to_owned(),
        }
    }
}

/// All steps, with these numbers of callers for single events.
pub fn steps(callers: &[usize]) -> Vec<Step> {
    let single = callers
        .iter()
        .map(|&callers| Step::Accept { callers, batch: 1 });
    let bulk = Step::Accept {
        callers: BULK_CALLERS,
        batch: BULK_EVENTS,
    };
    std::iter::once(Step::Sync)
        .chain(single)
        .chain([bulk, Step::Backlog, Step::Lanes, Step::Disk])
        .collect()
}

/// What the first of `steps` may take of the time that is left for all of them. What a step leaves
/// over, or takes too much, is shared by those after it.
pub fn share(left: Duration, steps: &[Step]) -> Duration {
    let weights: u32 = steps.iter().map(|step| step.weight()).sum();
    let weight = steps.first().map_or(0, |step| step.weight());
    (left * weight).checked_div(weights).unwrap_or_default()
}

/// How much disk one step may fill, in bytes; what is filled is removed before the next.
pub fn bytes_per_step(time: Duration) -> u64 {
    time.as_secs()
        .saturating_mul(STORED_PER_SECOND)
        .clamp(128 * MIB, 2_048 * MIB)
}

/// Events that fit into so many bytes when so many are under way at a time.
pub fn events_within(bytes: u64, under_way: usize) -> u64 {
    bytes
        / if under_way < GROUP_MIN {
            BYTES_ALONE
        } else {
            BYTES_IN_GROUPS
        }
}

/// Free bytes without which nothing is begun: a step's events, the files that a store keeps ready, and
/// what must stay free for a server to accept at all.
pub fn bytes_needed(time: Duration, options: &Options) -> u64 {
    bytes_per_step(time)
        .saturating_add(options.segment_bytes.saturating_mul(2))
        .saturating_add(options.reserve_bytes)
        .saturating_add(options.min_free_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_use_up_the_time_whatever_single_steps_take() {
        let steps = steps(&CALLERS);
        let whole = Duration::from_secs(120);
        let mut left = whole;
        for at in 0..steps.len() {
            let share = share(left, &steps[at..]);
            assert!(share > whole / 50, "{:?} gets {share:?}", steps[at]);
            left -= share;
        }
        assert!(left < Duration::from_millis(1), "{left:?} are left over");
        // A step that took all leaves nothing to share, and no step nothing to divide by.
        assert_eq!(share(Duration::ZERO, &steps), Duration::ZERO);
        assert_eq!(share(whole, &[]), Duration::ZERO);
    }

    #[test]
    fn a_step_fills_no_more_than_was_checked_to_be_free() {
        let options = Options::default();
        for seconds in [10, 120, 3_600] {
            let time = Duration::from_secs(seconds);
            let bytes = bytes_per_step(time);
            assert!(bytes_needed(time, &options) >= bytes + options.min_free_bytes());
            assert!(events_within(bytes, 1) * BYTES_ALONE <= bytes);
            assert!(events_within(bytes, 6_400) * BYTES_IN_GROUPS <= bytes);
        }
    }
}
