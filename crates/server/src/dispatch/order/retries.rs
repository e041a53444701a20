//! Failed deliveries of one key, by position. Nearly every key has one at most, which lies in the key itself: a tree of
//! one would take as much memory as the event that waits.

use std::collections::BTreeMap;

use wayhold_model::Position;

use super::key::Retry;

#[derive(Debug, Default)]
pub(super) enum Retries {
    #[default]
    None,
    One(Position, Retry),
    Many(BTreeMap<Position, Retry>),
}

impl Retries {
    /// Adds one; one that was at that position is replaced.
    pub(super) fn insert(&mut self, position: Position, retry: Retry) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(position, retry),
            Self::One(before, _) if before == position => Self::One(position, retry),
            Self::One(before, other) => {
                Self::Many(BTreeMap::from([(before, other), (position, retry)]))
            }
            Self::Many(mut all) => {
                all.insert(position, retry);
                Self::Many(all)
            }
        };
    }

    /// Takes the one at that position.
    pub(super) fn remove(&mut self, position: Position) -> Option<Retry> {
        let (left, removed) = match std::mem::take(self) {
            Self::One(at, retry) if at == position => (Self::None, Some(retry)),
            Self::Many(mut all) => {
                let removed = all.remove(&position);
                match all.is_empty() {
                    true => (Self::None, removed),
                    false => (Self::Many(all), removed),
                }
            }
            other => (other, None),
        };
        *self = left;
        removed
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Position, &Retry)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(position, retry) => (Some((*position, retry)), None),
            Self::Many(all) => (None, Some(all)),
        };
        let many = many.into_iter().flatten();
        one.into_iter()
            .chain(many.map(|(position, retry)| (*position, retry)))
    }

    /// The first of them.
    pub(super) fn first(&self) -> Option<Position> {
        self.iter().next().map(|(position, _)| position)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(all) => all.len(),
        }
    }

    /// All of them, in order.
    pub(super) fn into_all(self) -> impl Iterator<Item = (Position, Retry)> {
        let (one, many) = match self {
            Self::None => (None, BTreeMap::new()),
            Self::One(position, retry) => (Some((position, retry)), BTreeMap::new()),
            Self::Many(all) => (None, all),
        };
        one.into_iter().chain(many)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wayhold_model::{Generation, Sequence, ShardId, Timestamp};

    use super::*;
    use crate::dispatch::order::History;

    fn at(sequence: u64) -> Position {
        Position {
            generation: Generation(1),
            shard: ShardId(0),
            sequence: Sequence(sequence),
        }
    }

    fn retry(micros: u64) -> Retry {
        Retry {
            history: History::default(),
            at: Timestamp::from_micros(micros),
            event: None,
        }
    }

    proptest! {
        #[test]
        fn it_is_a_tree_whatever_its_shape(
            steps in prop::collection::vec((any::<bool>(), 0..4_u64, any::<u64>()), 1..40),
        ) {
            let (mut retries, mut tree) = (Retries::default(), BTreeMap::new());
            for (inserts, sequence, micros) in steps {
                let position = at(sequence);
                if inserts {
                    retries.insert(position, retry(micros));
                    tree.insert(position, micros);
                } else {
                    let removed = retries.remove(position).map(|retry| retry.at.as_micros());
                    prop_assert_eq!(removed, tree.remove(&position));
                }
                let all: Vec<_> = retries.iter().map(|(at, retry)| (at, retry.at.as_micros())).collect();
                prop_assert_eq!(&all, &tree.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(retries.len(), tree.len());
                prop_assert_eq!(retries.is_empty(), tree.is_empty());
                prop_assert_eq!(retries.first(), tree.keys().next().copied());
            }
            let left: Vec<_> = retries.into_all().map(|(at, _)| at).collect();
            prop_assert_eq!(left, tree.into_keys().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_key_with_one_delivery_that_waits_takes_less_than_half_of_an_event_of_a_kibibyte() {
        // The alarm that wakes it, its key's entry and what progress keeps of it are beside that.
        assert!(size_of::<crate::dispatch::order::Key>() <= 400);
    }
}
