//! Numbers that name things: destinations, lanes, shards, generations, sequences; and the opaque
//! position made of them that producers see.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Durable number of a configured destination; its name is user data and lives in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationId(pub u32);

/// Durable number of a lane: a destination's own, or one replay's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Lanes of replays are told from those of destinations by this bit, so that neither takes numbers from the other.
const OF_REPLAY: u32 = 1 << 31;

impl LaneId {
    /// The lane of a replay.
    pub fn of_replay(replay: u64) -> Self {
        // Replays are begun by hand: nobody begins two thousand million of them.
        Self(OF_REPLAY | u32::try_from(replay).unwrap_or(u32::MAX))
    }

    /// Number of the replay that it is the lane of; `None` for a destination's own.
    pub fn replay(self) -> Option<u64> {
        (self.0 & OF_REPLAY != 0).then(|| u64::from(self.0 & !OF_REPLAY))
    }
}

/// Number of a shard within its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Version of the shard map; counts from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// Place of an event in its shard: given inside the commit, never reused, with gaps as a normal thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// Where an event lies: the public, opaque form of generation, shard and sequence (`g1.s0.123`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Version of the shard map that stored the event.
    pub generation: Generation,
    /// Shard within it.
    pub shard: ShardId,
    /// Place within the shard.
    pub sequence: Sequence,
}

/// A text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a position; expected the form that a receipt shows, such as g1.s0.123")]
pub struct InvalidPosition;

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "g{}.s{}.{}",
            self.generation.0, self.shard.0, self.sequence.0
        )
    }
}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let mut parts = text.split('.');
        let mut number = |prefix: &str| {
            let digits = parts.next()?.strip_prefix(prefix)?;
            // `u64::from_str` alone would take "+1".
            digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)
        };
        let generation = number("g")
            .and_then(|d| d.parse().ok())
            .ok_or(InvalidPosition)?;
        let shard = number("s")
            .and_then(|d| d.parse().ok())
            .ok_or(InvalidPosition)?;
        let sequence = number("")
            .and_then(|d| d.parse().ok())
            .ok_or(InvalidPosition)?;
        if parts.next().is_some() {
            return Err(InvalidPosition);
        }
        Ok(Self {
            generation: Generation(generation),
            shard: ShardId(shard),
            sequence: Sequence(sequence),
        })
    }
}

/// The destinations one event owes a delivery to, fixed at acceptance: sorted, without repeats, and
/// carried with its disk form (decimal ids joined by commas) so that storing it costs nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DestinationSet {
    ids: Box<[DestinationId]>,
    text: Box<str>,
}

impl DestinationSet {
    /// The set of these ids, in any order and with repeats.
    pub fn new(ids: impl IntoIterator<Item = DestinationId>) -> Self {
        let mut ids: Vec<_> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let text = ids
            .iter()
            .map(|id| id.0.to_string())
            .collect::<Vec<_>>()
            .join(",");
        Self {
            ids: ids.into_boxed_slice(),
            text: text.into_boxed_str(),
        }
    }

    /// Reads the disk form; `None` when it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::new([]));
        }
        let ids: Option<Vec<_>> = text
            .split(',')
            .map(|id| id.parse().ok().map(DestinationId))
            .collect();
        Some(Self::new(ids?))
    }

    /// The ids, ascending.
    pub fn ids(&self) -> &[DestinationId] {
        &self.ids
    }

    /// The disk form: `"1,4"`, or empty for no destination.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the event owes a delivery to `id`.
    pub fn contains(&self, id: DestinationId) -> bool {
        self.ids.binary_search(&id).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_a_round_trip() {
        for (generation, shard, sequence) in
            [(1, 0, 0), (1, 0, 123), (u32::MAX, u16::MAX, u64::MAX)]
        {
            let position = Position {
                generation: Generation(generation),
                shard: ShardId(shard),
                sequence: Sequence(sequence),
            };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
    }

    #[test]
    fn a_lane_of_a_replay_is_no_destinations() {
        for replay in [0, 1, 77] {
            assert_eq!(LaneId::of_replay(replay).replay(), Some(replay));
        }
        assert_eq!((LaneId(1).replay(), LaneId(77).replay()), (None, None));
    }

    #[test]
    fn texts_that_no_receipt_shows_are_refused() {
        for text in [
            "",
            "g1",
            "g1.s0",
            "g1.s0.",
            "1.0.5",
            "g1.s0.5.6",
            "g1.s0.-5",
            "g1.s0.+5",
            "g1.s70000.1",
        ] {
            assert_eq!(text.parse::<Position>(), Err(InvalidPosition), "{text}");
        }
    }

    #[test]
    fn a_destination_set_is_sorted_unique_and_reads_back() {
        let set = DestinationSet::new([4, 1, 4].map(DestinationId));
        assert_eq!(set.text(), "1,4");
        assert_eq!(DestinationSet::parse("1,4"), Some(set));
        assert_eq!(DestinationSet::parse(""), Some(DestinationSet::new([])));
        assert_eq!(DestinationSet::parse("1,,4"), None);
    }
}
