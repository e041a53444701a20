//! What one transaction of the application does: a pure function of the seed and its number.

use std::time::Duration;

use crate::dice::Dice;

/// Aggregates that transactions write to: few, so that many of them meet.
pub const AGGREGATES: u64 = 24;

/// Most events of one transaction.
const ROWS_MAX: u64 = 4;

/// Of a hundred transactions so many are rolled back, and so many lose their client before their end.
const ROLLED_BACK: u64 = 30;
const ABANDONED: u64 = 1;

/// One transaction in so many locks its aggregates before it writes.
const LOCKS_ONE_IN: u64 = 3;

/// Of the others one in so many draws its places in the order long before it writes.
const DRAWS_ONE_IN: u64 = 3;

/// One transaction in so many stays open for very long.
const LONG_ONE_IN: u64 = 400;

/// The type of an event.
pub const KIND: &str = "com.example.order.changed";

/// The type of an event that no route wants, until somebody mends it.
pub const UNWANTED: &str = "com.example.order.unwanted";

/// Of 256 rows so many are unwanted.
const UNWANTED_OF_256: u8 = 3;

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `COMMIT`.
    Commit,
    /// `ROLLBACK`.
    Rollback,
    /// Its client is killed.
    Abandon,
}

/// One event that it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// A UUID that says nothing of when it was made.
    pub id: String,
    /// Which aggregate it is about.
    pub aggregate: u64,
}

impl Row {
    /// Whether it is unwanted, in a table that has such rows.
    pub fn is_unwanted(&self) -> bool {
        let last = self.id.get(self.id.len() - 2..).unwrap();
        u8::from_str_radix(last, 16).unwrap() < UNWANTED_OF_256
    }
}

/// What it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Counted from 0, in the order in which they are begun.
    pub number: u64,
    /// Its events, in the order in which it writes them.
    pub rows: Vec<Row>,
    /// Whether it locks its aggregates before it writes.
    pub locks: bool,
    /// Whether it draws its places in the order of the table before it waits.
    pub draws: bool,
    /// How long it waits before it writes, and between that and its end.
    pub waits: [Duration; 2],
    /// How it ends.
    pub end: End,
}

impl Transaction {
    /// The one of this number.
    pub fn of(seed: u64, number: u64) -> Self {
        let mut dice = Dice::new(seed.rotate_left(32) ^ number);
        let count = 1 + dice.below(ROWS_MAX);
        let rows = (0..count).map(|_| row(&mut dice)).collect();
        let locks = dice.one_in(LOCKS_ONE_IN);
        let draws = dice.one_in(DRAWS_ONE_IN) && !locks;
        let is_long = dice.one_in(LONG_ONE_IN);
        let waits = [wait(&mut dice), wait(&mut dice)];
        let end = match dice.below(100) {
            ..ROLLED_BACK => End::Rollback,
            roll if roll < ROLLED_BACK + ABANDONED => End::Abandon,
            _ => End::Commit,
        };
        Self {
            number,
            rows,
            locks,
            draws,
            waits: match is_long {
                true => [waits[0], Duration::from_millis(500 + dice.below(1_500))],
                false => waits,
            },
            end,
        }
    }

    /// The aggregates that it is about, each once, in the order in which all transactions lock them.
    pub fn aggregates(&self) -> Vec<u64> {
        let mut aggregates: Vec<u64> = self.rows.iter().map(|row| row.aggregate).collect();
        aggregates.sort_unstable();
        aggregates.dedup();
        aggregates
    }
}

fn row(dice: &mut Dice) -> Row {
    let (high, low) = (dice.next(), dice.next());
    // Marked as random: version 4 of the first variant.
    let high = (high & !0xf000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    Row {
        id: format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        ),
        aggregate: dice.below(AGGREGATES),
    }
}

/// Mostly next to nothing, sometimes as long as a call to another service.
fn wait(dice: &mut Dice) -> Duration {
    let milliseconds = match dice.below(100) {
        ..60 => 0,
        60..90 => dice.below(8),
        90..98 => dice.below(40),
        _ => dice.below(200),
    };
    Duration::from_millis(milliseconds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_transaction_follows_from_its_seed_and_number() {
        assert_eq!(Transaction::of(7, 3), Transaction::of(7, 3));
        assert_ne!(Transaction::of(7, 3).rows, Transaction::of(8, 3).rows);
        let ids: BTreeSet<String> = (0..1_000)
            .flat_map(|number| Transaction::of(7, number).rows)
            .map(|row| row.id)
            .collect();
        let rows: usize = (0..1_000)
            .map(|number| Transaction::of(7, number).rows.len())
            .sum();
        assert_eq!(ids.len(), rows, "an id came twice");
        assert!(
            ids.iter()
                .all(|id| id.len() == 36 && id.as_bytes()[14] == b'4')
        );
    }

    #[test]
    fn every_kind_of_transaction_comes_up() {
        let all: Vec<_> = (0..2_000)
            .map(|number| Transaction::of(1, number))
            .collect();
        let share = |is: fn(&Transaction) -> bool| all.iter().filter(|one| is(one)).count();
        assert!((500..700).contains(&share(|one| one.end == End::Rollback)));
        assert!(share(|one| one.end == End::Abandon) > 5);
        assert!(share(|one| one.locks) > 500);
        assert!(share(|one| one.draws) > 300);
        assert!(share(|one| one.waits[1] >= Duration::from_millis(500)) > 1);
        assert!(share(|one| one.aggregates().len() > 2) > 300);
        assert_eq!(share(|one| one.locks && one.draws), 0);
        assert!((30..90).contains(&share(|one| one.rows.iter().any(Row::is_unwanted))));
    }
}
