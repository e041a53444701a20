//! Which segments are compacted together. Decided here, carried out by the compactor.
//!
//! A compaction writes what is still needed of some segments once more, so it has to give back a multiple of what
//! it writes: then all compactions together write a fraction of what was accepted, however often something is
//! compacted again. Segments are taken until what is left of them fills a segment, so that many of them become few.

use std::ops::Range;

use crate::options::{COMPACTION_LIVE_MAX, COMPACTION_SOURCES_MAX};

/// A closed segment, in order of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// First and last sequence that it spans.
    pub(super) span: (u64, u64),
    /// Events of it that are still needed; at most, where several lanes need different ones.
    pub(super) live_rows: u64,
    /// Bytes of those, as if all its events were alike.
    pub(super) live: u64,
    /// Bytes of all of it.
    pub(super) total: u64,
    /// Whether it may be compacted now.
    pub(super) may: bool,
}

/// How much is compacted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes that the compacted segment may have.
    pub(super) bytes: u64,
    /// Events that it may have.
    pub(super) rows: u64,
    /// Bytes that it must give back at least.
    pub(super) gain: u64,
}

/// A run of candidates that is worth compacting, the oldest and then the longest.
pub(super) fn choose(candidates: &[Candidate], limits: Limits) -> Option<Range<usize>> {
    (0..candidates.len()).find_map(|from| {
        let mut sum = Sum::default();
        let rest = candidates.get(from..).unwrap_or_default().iter();
        rest.zip(from + 1..)
            .take(COMPACTION_SOURCES_MAX)
            .map_while(|(candidate, until)| sum.add(candidate, limits).then_some((sum, until)))
            .filter(|(sum, _)| sum.is_worth(limits))
            .last()
            .map(|(_, until)| from..until)
    })
}

/// What some candidates are together.
#[derive(Clone, Copy, Default)]
struct Sum {
    first: Option<u64>,
    live_rows: u64,
    live: u64,
    total: u64,
}

impl Sum {
    /// Takes one more; `false` where it does not fit or may not be taken.
    fn add(&mut self, candidate: &Candidate, limits: Limits) -> bool {
        let first = *self.first.get_or_insert(candidate.span.0);
        self.live_rows = self.live_rows.saturating_add(candidate.live_rows);
        self.live = self.live.saturating_add(candidate.live);
        self.total = self.total.saturating_add(candidate.total);
        candidate.may
            && self.live <= limits.bytes
            && self.live_rows <= limits.rows
            // An index file names sequences by 32 bits.
            && candidate.span.1 - first <= u64::from(u32::MAX)
    }

    fn is_worth(&self, limits: Limits) -> bool {
        let gain = self.total.saturating_sub(self.live);
        self.live <= self.total / COMPACTION_LIVE_MAX && gain >= limits.gain.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 100,
        rows: 1_000,
        gain: 50,
    };

    /// Candidates of these live and total bytes, ten sequences each.
    fn candidates(bytes: &[(u64, u64)]) -> Vec<Candidate> {
        (0..)
            .zip(bytes)
            .map(|(at, (live, total))| Candidate {
                span: (at * 10 + 1, at * 10 + 10),
                live_rows: *live,
                live: *live,
                total: *total,
                may: true,
            })
            .collect()
    }

    #[test]
    fn consecutive_segments_of_which_at_most_a_quarter_is_needed_are_taken_until_one_is_full() {
        for (name, bytes, expected) in [
            ("nothing", vec![], None),
            ("a quarter", vec![(25, 100)], Some(0..1)),
            ("more than that", vec![(26, 100)], None),
            ("too little to gain", vec![(1, 50)], None),
            ("together it is enough", vec![(1, 40), (1, 40)], Some(0..2)),
            ("as many as fill one", vec![(20, 100); 7], Some(0..5)),
            ("a full one stays", vec![(100, 100), (1, 100)], Some(1..2)),
            (
                "what is left of others is taken up",
                vec![(20, 20), (1, 100)],
                Some(0..2),
            ),
            (
                "but not for too little",
                vec![(60, 60), (1, 100)],
                Some(1..2),
            ),
            (
                "one in the middle is carried along",
                vec![(1, 100), (20, 20), (1, 100)],
                Some(0..3),
            ),
            (
                "up to the last that is worth it",
                vec![(1, 100), (90, 90)],
                Some(0..1),
            ),
        ] {
            assert_eq!(choose(&candidates(&bytes), LIMITS), expected, "{name}");
        }
    }

    #[test]
    fn what_may_not_be_taken_parts_those_before_from_those_behind() {
        let mut all = candidates(&[(1, 40); 5]);
        all[1].may = false;
        assert_eq!(choose(&all, LIMITS), Some(2..5));
        all[3].may = false;
        assert_eq!(choose(&all, LIMITS), None);
    }

    #[test]
    fn rows_the_number_of_sources_and_what_an_index_can_name_are_bounds_too() {
        let all = candidates(&[(1, 100); 5]);
        let rows = Limits { rows: 3, ..LIMITS };
        assert_eq!(choose(&all, rows), Some(0..3));
        let less_room = Limits { bytes: 2, ..LIMITS };
        assert_eq!(choose(&all, less_room), Some(0..2));
        let none = Limits { bytes: 0, ..LIMITS };
        assert_eq!(choose(&all, none), None);
        let many = candidates(&vec![(0, 100); COMPACTION_SOURCES_MAX + 1]);
        assert_eq!(choose(&many, LIMITS), Some(0..COMPACTION_SOURCES_MAX));
        let mut far = candidates(&[(1, 100); 3]);
        far[2].span = (1 << 33, (1 << 33) + 9);
        assert_eq!(choose(&far, LIMITS), Some(0..2));
    }
}
