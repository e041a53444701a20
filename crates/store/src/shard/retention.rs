//! How long resolved segments are kept for replay: which of them have been kept long enough. Decided here,
//! carried out by the remover.

use std::time::Duration;

/// A resolved segment whose database is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Its number.
    pub(crate) number: u64,
    /// What its files occupy.
    pub(crate) bytes: u64,
    /// How long it has been resolved.
    pub(crate) age: Duration,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// A segment goes once it has been resolved for this long.
    pub(crate) time: Duration,
    /// The oldest go until the rest occupies at most this.
    pub(crate) bytes: u64,
    /// What the volume lacks: retention is the first to give way, before anything is refused.
    pub(crate) wanted: u64,
}

/// Numbers of those that have been kept long enough; `kept` ascends by age of events, the oldest first.
pub(crate) fn over(kept: &[Kept], limits: Limits) -> Vec<u64> {
    let mut left: u64 = kept.iter().map(|segment| segment.bytes).sum();
    let mut freed = 0;
    let mut over = Vec::new();
    for segment in kept {
        // Nothing is kept at zero, whatever is known of sizes.
        let is_over = limits.bytes == 0
            || segment.age >= limits.time
            || left > limits.bytes
            || freed < limits.wanted;
        if is_over {
            over.push(segment.number);
            left -= segment.bytes;
            freed += segment.bytes;
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn kept(number: u64, bytes: u64, hours: u32) -> Kept {
        Kept {
            number,
            bytes,
            age: HOUR * hours,
        }
    }

    fn limits(hours: u32, bytes: u64, wanted: u64) -> Limits {
        Limits {
            time: HOUR * hours,
            bytes,
            wanted,
        }
    }

    #[test]
    fn time_bytes_and_what_the_volume_lacks_each_end_a_retention_and_the_oldest_goes_first() {
        // The second was stuck, so it was resolved after the third.
        let held = [
            kept(1, 10, 9),
            kept(2, 10, 1),
            kept(3, 10, 5),
            kept(4, 5, 0),
        ];
        for (name, limits, expected) in [
            ("nothing is over", limits(10, 35, 0), vec![]),
            ("an age that is reached is over", limits(9, 35, 0), vec![1]),
            ("also in the middle", limits(5, 35, 0), vec![1, 3]),
            ("as few as make it fit", limits(10, 34, 0), vec![1]),
            ("until the rest fits", limits(10, 16, 0), vec![1, 2]),
            ("the newest too", limits(10, 4, 0), vec![1, 2, 3, 4]),
            ("what the volume lacks", limits(10, 35, 11), vec![1, 2]),
            (
                "all, if it lacks more",
                limits(10, 35, u64::MAX),
                vec![1, 2, 3, 4],
            ),
            ("both rules count the same", limits(5, 25, 1), vec![1, 3]),
            ("no time keeps nothing", limits(0, 35, 0), vec![1, 2, 3, 4]),
            ("no bytes keep nothing", limits(10, 0, 0), vec![1, 2, 3, 4]),
        ] {
            assert_eq!(over(&held, limits), expected, "{name}");
        }
        assert_eq!(over(&[], limits(0, 0, 0)), Vec::<u64>::new());
        assert_eq!(over(&[kept(1, 0, 0)], limits(1, 0, 0)), [1]);
    }
}
