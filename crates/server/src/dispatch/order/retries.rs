//! Failed deliveries of one key, by position: those that sleep until their time, and those that are due. Nearly every
//! key has one at most, which lies in the key itself and holds nothing but where its event is: a tree of one would take
//! as much memory as the event that waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayhold_model::{Position, StoredEvent, Timestamp};

use super::{History, Redrive, Turn};

/// A delivery that failed, or is redriven, and is to be sent again.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    /// Not before this time.
    pub(super) at: Timestamp,
    attempts: u32,
    put_off: u32,
    after_unknown: bool,
    // Few are redriven, and many wait: theirs lies apart.
    redriven: Option<Box<Redriven>>,
}

#[derive(Clone, Debug)]
struct Redriven {
    redrive: Redrive,
    event: Option<Arc<StoredEvent>>,
}

impl Retry {
    /// A delivery with this history. Its body is held where it is a redrive, since the store may not have it any
    /// more; every other one is read again when it is due.
    pub(super) fn new(history: History, event: Option<Arc<StoredEvent>>, at: Timestamp) -> Self {
        let History {
            attempts,
            put_off,
            letter,
            after_unknown,
        } = history;
        Self {
            at,
            attempts,
            put_off,
            after_unknown,
            redriven: letter.map(|redrive| Box::new(Redriven { redrive, event })),
        }
    }

    /// What happened to it before.
    pub(super) fn history(&self) -> History {
        History {
            attempts: self.attempts,
            put_off: self.put_off,
            letter: self.redriven.as_ref().map(|redriven| redriven.redrive),
            after_unknown: self.after_unknown,
        }
    }

    /// Whether it redrives a dead letter.
    pub(super) fn is_redrive(&self) -> bool {
        self.redriven.is_some()
    }

    /// Its turn has come.
    pub(super) fn into_turn(self, position: Position, key: Option<u64>) -> Turn {
        Turn {
            position,
            key,
            history: self.history(),
            event: self.redriven.and_then(|redriven| redriven.event),
        }
    }
}

/// At most one at a position.
#[derive(Debug, Default)]
pub(super) enum Retries {
    #[default]
    None,
    Sleeping(Position, Retry),
    Due(Position, Retry),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub(super) struct Many {
    sleeping: BTreeMap<Position, Retry>,
    due: BTreeMap<Position, Retry>,
}

impl Many {
    /// Removes the one at a position.
    fn remove(&mut self, position: Position) -> Option<Retry> {
        let sleeping = self.sleeping.remove(&position);
        sleeping.or_else(|| self.due.remove(&position))
    }
}

impl Retries {
    /// Adds one that sleeps.
    pub(super) fn sleep(&mut self, position: Position, retry: Retry) {
        self.remove(position);
        if self.is_empty() {
            *self = Self::Sleeping(position, retry);
        } else {
            let mut many = self.take_many();
            many.sleeping.insert(position, retry);
            *self = Self::Many(many);
        }
    }

    /// Adds one that is due.
    pub(super) fn add_due(&mut self, position: Position, retry: Retry) {
        self.remove(position);
        if self.is_empty() {
            *self = Self::Due(position, retry);
        } else {
            let mut many = self.take_many();
            many.due.insert(position, retry);
            *self = Self::Many(many);
        }
    }

    /// The one at that position is due, if it is there.
    pub(super) fn wake(&mut self, position: Position) {
        if let Some(retry) = self.remove(position) {
            self.add_due(position, retry);
        }
    }

    /// Takes the one at that position, whether it is due or not.
    pub(super) fn remove(&mut self, position: Position) -> Option<Retry> {
        let removed = match self {
            Self::Sleeping(at, _) | Self::Due(at, _) if *at == position => {
                match std::mem::take(self) {
                    Self::Sleeping(_, retry) | Self::Due(_, retry) => Some(retry),
                    Self::None | Self::Many(_) => None,
                }
            }
            Self::Many(many) => many.remove(position),
            Self::None | Self::Sleeping(..) | Self::Due(..) => None,
        };
        if self.is_empty() {
            *self = Self::None;
        }
        removed
    }

    /// All of them, as trees.
    fn take_many(&mut self) -> Box<Many> {
        match std::mem::take(self) {
            Self::None => Box::default(),
            Self::Sleeping(position, retry) => Box::new(Many {
                sleeping: BTreeMap::from([(position, retry)]),
                due: BTreeMap::new(),
            }),
            Self::Due(position, retry) => Box::new(Many {
                sleeping: BTreeMap::new(),
                due: BTreeMap::from([(position, retry)]),
            }),
            Self::Many(many) => many,
        }
    }

    /// Those that are due, in order.
    pub(super) fn due(&self) -> impl Iterator<Item = (Position, &Retry)> {
        let (one, many) = match self {
            Self::None | Self::Sleeping(..) => (None, None),
            Self::Due(position, retry) => (Some((*position, retry)), None),
            Self::Many(many) => (None, Some(&many.due)),
        };
        in_order(one, many)
    }

    /// Those that sleep, in order.
    pub(super) fn sleeping(&self) -> impl Iterator<Item = (Position, &Retry)> {
        let (one, many) = match self {
            Self::None | Self::Due(..) => (None, None),
            Self::Sleeping(position, retry) => (Some((*position, retry)), None),
            Self::Many(many) => (None, Some(&many.sleeping)),
        };
        in_order(one, many)
    }

    /// The first that is due.
    pub(super) fn first_due(&self) -> Option<Position> {
        self.due().next().map(|(position, _)| position)
    }

    /// Whether one is due.
    pub(super) fn has_due(&self) -> bool {
        self.due().next().is_some()
    }

    /// The first of all.
    pub(super) fn first(&self) -> Option<(Position, &Retry)> {
        let first = [self.due().next(), self.sleeping().next()];
        first
            .into_iter()
            .flatten()
            .min_by_key(|(position, _)| *position)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Sleeping(..) | Self::Due(..) => 1,
            Self::Many(many) => many.sleeping.len() + many.due.len(),
        }
    }

    /// All of them.
    pub(super) fn into_all(mut self) -> impl Iterator<Item = (Position, Retry)> {
        let Many { sleeping, due } = *self.take_many();
        sleeping.into_iter().chain(due)
    }
}

fn in_order<'a>(
    one: Option<(Position, &'a Retry)>,
    many: Option<&'a BTreeMap<Position, Retry>>,
) -> impl Iterator<Item = (Position, &'a Retry)> {
    let many = many.into_iter().flatten();
    one.into_iter()
        .chain(many.map(|(position, retry)| (*position, retry)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wayhold_model::{Generation, Sequence, ShardId};

    use super::*;

    fn at(sequence: u64) -> Position {
        Position {
            generation: Generation(1),
            shard: ShardId(0),
            sequence: Sequence(sequence),
        }
    }

    fn retry(micros: u64) -> Retry {
        Retry::new(History::default(), None, Timestamp::from_micros(micros))
    }

    /// Position, whether it is due, and its time.
    fn all(retries: &Retries) -> BTreeMap<Position, (bool, u64)> {
        let of =
            |is_due: bool| move |(at, retry): (_, &Retry)| (at, (is_due, retry.at.as_micros()));
        let (due, sleeping) = (
            retries.due().map(of(true)),
            retries.sleeping().map(of(false)),
        );
        due.chain(sleeping).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_tree_whatever_its_shape(
            steps in prop::collection::vec((0..4_u8, 0..4_u64, any::<u64>()), 1..40),
        ) {
            let (mut retries, mut tree) = (Retries::default(), BTreeMap::new());
            for (step, sequence, micros) in steps {
                let position = at(sequence);
                match step {
                    0 => {
                        retries.sleep(position, retry(micros));
                        tree.insert(position, (false, micros));
                    }
                    1 => {
                        retries.add_due(position, retry(micros));
                        tree.insert(position, (true, micros));
                    }
                    2 => {
                        retries.wake(position);
                        if let Some((is_due, _)) = tree.get_mut(&position) {
                            *is_due = true;
                        }
                    }
                    _ => {
                        let removed = retries.remove(position).map(|retry| retry.at.as_micros());
                        prop_assert_eq!(removed, tree.remove(&position).map(|(_, micros)| micros));
                    }
                }
                prop_assert_eq!(&all(&retries), &tree);
                prop_assert!(retries.due().is_sorted_by_key(|(at, _)| at));
                prop_assert!(retries.sleeping().is_sorted_by_key(|(at, _)| at));
                prop_assert_eq!(retries.len(), tree.len());
                prop_assert_eq!(retries.is_empty(), tree.is_empty());
                prop_assert_eq!(retries.first().map(|(at, _)| at), tree.keys().next().copied());
                let has = |due: bool| tree.values().any(|(is_due, _)| *is_due == due);
                prop_assert_eq!((retries.has_due(), retries.sleeping().next().is_some()), (has(true), has(false)));
            }
            let mut left: Vec<_> = retries.into_all().map(|(at, _)| at).collect();
            left.sort_unstable();
            prop_assert_eq!(left, tree.into_keys().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_retry_says_what_it_was_made_of() {
        let redrive = Redrive {
            letter: 7,
            attempts_before: 3,
            of_replay: true,
        };
        for letter in [None, Some(redrive)] {
            let history = History {
                attempts: 4,
                put_off: 2,
                letter,
                after_unknown: true,
            };
            let turn = Retry::new(history, None, Timestamp::EPOCH).into_turn(at(1), Some(9));
            assert_eq!(
                (turn.history, turn.key, turn.position),
                (history, Some(9), at(1))
            );
        }
    }
}
