//! Events of a segment by when they were accepted, in either direction: what a scan reads next. Sequences and
//! times ascend together, so that both ends are found by halving.

use super::{Loaded, ROW_BYTES, long, partition, word};
use crate::scan::{ScanOrder, TimeRange};
use crate::shard::recent::Recent;

/// Which events of a segment are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) order: ScanOrder,
    /// Only above this sequence.
    pub(crate) above: u64,
    /// Only up to this sequence.
    pub(crate) through: u64,
    pub(crate) range: TimeRange,
    /// At most so many, the first ones in this order.
    pub(crate) max: usize,
}

impl Wanted {
    /// The wanted ones of `count` events, of which `event` gives sequence and acceptance; ascending.
    fn of(&self, count: usize, event: impl Fn(usize) -> (u64, u64)) -> Vec<u64> {
        let until = |is_before: &dyn Fn((u64, u64)) -> bool| {
            partition(count, |index| is_before(event(index)))
        };
        let (from_at, until_at) = (self.range.from.as_micros(), self.range.until.as_micros());
        let low = until(&|(sequence, at)| sequence <= self.above || at < from_at);
        let high = until(&|(sequence, at)| sequence <= self.through && at < until_at);
        let chosen = match self.order {
            ScanOrder::OldestFirst => low..high.min(low.saturating_add(self.max)),
            ScanOrder::NewestFirst => low.max(high.saturating_sub(self.max))..high,
        };
        chosen.map(|index| event(index).0).collect()
    }
}

impl Loaded {
    /// The wanted sequences, ascending.
    pub(crate) fn wanted(&self, wanted: &Wanted) -> Vec<u64> {
        wanted.of(self.rows.len() / ROW_BYTES, |index| {
            let row = self.rows.get(index * ROW_BYTES..).unwrap_or_default();
            (self.first + u64::from(word(row, 0)), long(row, 4))
        })
    }
}

impl Recent {
    /// The wanted sequences, ascending.
    pub(crate) fn wanted(&self, wanted: &Wanted) -> Vec<u64> {
        let entries = self.entries();
        wanted.of(entries.len(), |index| {
            let entry = entries.get(index);
            entry.map_or((u64::MAX, u64::MAX), |entry| {
                (entry.sequence, entry.accepted_at)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use wayhold_model::Timestamp;

    use super::*;

    #[test]
    fn both_ends_and_both_orders_give_the_first_that_are_wanted() {
        // Sequences 10, 12, 14, .. accepted at 100, 101, 102, ..
        let event = |index: usize| (10 + 2 * index as u64, 100 + index as u64);
        let all = TimeRange::default();
        let range = |from, until| TimeRange {
            from: Timestamp::from_micros(from),
            until: Timestamp::from_micros(until),
        };
        use ScanOrder::{NewestFirst, OldestFirst};
        for (order, above, through, range, max, expected) in [
            (OldestFirst, 0, u64::MAX, all, 2, vec![10, 12]),
            (NewestFirst, 0, u64::MAX, all, 2, vec![16, 18]),
            (OldestFirst, 12, u64::MAX, all, 9, vec![14, 16, 18]),
            (NewestFirst, 0, 13, all, 9, vec![10, 12]),
            (OldestFirst, 0, u64::MAX, range(101, 103), 9, vec![12, 14]),
            (NewestFirst, 12, 18, range(0, 104), 9, vec![14, 16]),
            (NewestFirst, 12, 18, range(0, 104), 1, vec![16]),
            (OldestFirst, 18, u64::MAX, all, 9, vec![]),
            (OldestFirst, 0, u64::MAX, range(105, 200), 9, vec![]),
            (OldestFirst, 0, u64::MAX, range(104, 101), 9, vec![]),
        ] {
            let wanted = Wanted {
                order,
                above,
                through,
                range,
                max,
            };
            assert_eq!(wanted.of(5, event), expected, "{wanted:?}");
        }
    }
}
